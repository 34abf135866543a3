"""Sentences of words, each of which has a tag: CoNLL's columns, or a JSON object a line."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import LIST_SUFFIXES, TableRow, file_format, read_table
from data_pipelines.finetuning.tag_schemes import (
    OUTSIDE,
    detect_scheme,
    entities,
    entities_to_tags,
    parse_tag,
)
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines

_log = logging.getLogger("data_pipelines")

DOCSTART = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\f\v]+")  # a no-break space is part of a word
_CONLL_SUFFIXES = (".conll", ".bio", ".iob")
TAGGED_SUFFIXES = (*_CONLL_SUFFIXES, ".txt", ".tsv", *LIST_SUFFIXES)  # what files may end in
_WORD_KEYS = ("words", "tokens")  # keys of a JSON object
_TAG_KEYS = ("tags", "labels", "ner_tags", "ner")


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """Some words.

    Attributes:
      tags: of each word; None where they are not known.
      places: of each word, for messages.
      document: number of the document that it is of; sentences of one follow one another.
    """

    words: Sequence[str]
    tags: Sequence[str] | None
    locations: Sequence[str]
    document: int = 0


@dataclasses.dataclass(frozen=True)
class TokenClassificationDataset:
    """A data set; its tags are BIO, and `scheme` is what they were."""

    name: str
    sentences: Sequence[TaggedSentence]
    scheme: str = "BIO"

    @property
    def words(self) -> list[str]:
        """All words, one after the other."""
        return [word for sentence in self.sentences for word in sentence.words]

    @property
    def tags(self) -> list[str]:
        """Those of all words."""
        return [tag for sentence in self.sentences for tag in sentence.tags or ()]


def read_tagged_file(path: epath.PathLike, fix_tags: bool = False) -> TokenClassificationDataset:
    """The sentences of a file with tags.

    Args:
      path: JSON lines or another table by its name, with "words" (or "tokens") and "tags" (or
        "labels", "ner_tags"); else columns between tabs or white space, the word in the first and
        its tag in the last one, an empty line after each sentence.
      mend: takes tags that break the scheme of the others as conlleval does, and counts them: an I
        without a beginning begins an entity.
    Raises:
      InputError: it is none of these, a word has no tag, or tags are of no scheme; with the line.
    """
    path = check_file(path)
    if file_format(path) in LIST_SUFFIXES:
        found = from_rows(read_table(path))
    else:
        found = list(parse_conll(str(path), read_lines(path, _raise_error)))
    return make_tagged_dataset(str(path), found, fix_tags)


def is_conll(path: epath.PathLike) -> bool:
    """Whether a file has a word a line by its name, and is nothing else."""
    return file_format(epath.Path(path)) in _CONLL_SUFFIXES


def make_tagged_dataset(
    name: str, sentences: Sequence[TaggedSentence], fix_tags: bool = False
) -> TokenClassificationDataset:
    """A data set whose tags become BIO; see `read_tagged_file`."""
    if not sentences:
        raise InputError(f"{name} has no sentence: give a file with words and their tags.")
    bare = next((each for each in sentences if each.tags is None), None)
    if bare:
        raise InputError(f"{bare.locations[0]}: words have no tags: give a file that has them.")
    for sentence in sentences:
        for tag, place in zip(sentence.tags or (), sentence.locations, strict=True):
            try:
                parse_tag(tag)
            except ValueError as error:
                raise InputError(f"{place}: {error}: mend it.") from None
    tags = [sentence.tags or () for sentence in sentences]
    try:
        scheme, broken = detect_scheme(tags)
    except ValueError as error:
        raise InputError(f"{name}: its {error}: write them in one scheme.") from None
    if broken and not fix_tags:
        number, word = broken[0]
        raise InputError(
            f"{sentences[number].locations[word]}: tag {tags[number][word]!r} breaks the scheme of "
            f"the file, {scheme} ({len(broken)} do): mend it, or read all as conlleval would with "
            "data.fix_tags=True."
        )
    if broken:
        _log.warning("%s: %d tags break its scheme, %s: mended.", name, len(broken), scheme)
    if scheme != "BIO":
        _log.info("%s: its tags are %s, and are learned as BIO.", name, scheme)
    return TokenClassificationDataset(
        name,
        [
            dataclasses.replace(sentence, tags=entities_to_tags(entities(each), len(each)))
            for sentence, each in zip(sentences, tags, strict=True)
        ],
        scheme,
    )


def parse_conll(name: str, lines: Iterable[str]) -> Iterator[TaggedSentence]:
    """The sentences of lines of columns.

    A word may be empty between tabs, as some are that a machine has cleaned. A line that begins
    with # and has not the columns of the others, or no tag, is a comment. Where no line has more
    than one column, words have no tags.

    Raises:
      InputError: a line has not the columns of the others, or no word.
    """
    kept: list[tuple[int, list[str]]] = []  # of a sentence
    tabs: bool | None = None
    columns, first = 0, 0
    document, begun = 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(DOCSTART):
            if kept:
                yield _make_sentence(name, kept, document)
                kept, begun = [], True
            document += begun and line.startswith(DOCSTART)
            continue
        split_at_tabs = "\t" in line.strip() if tabs is None else tabs
        fields = [each.strip() for each in line.rstrip().split("\t")]
        if not split_at_tabs:
            fields = _SPACES.split(line.strip())
        if line.startswith("#") and not _is_word(fields, columns):
            continue
        if not columns:
            tabs, columns, first = split_at_tabs, len(fields), number
        place = f"{name} line {number}"
        if len(fields) != columns:
            raise InputError(
                f"{place} has {len(fields)} columns where line {first} has {columns}: write the "
                "word first and its tag last, with the same columns everywhere."
            )
        if not fields[-1]:
            raise InputError(f"{place} has no tag: write one, O for a word of no entity.")
        kept.append((number, fields))
    if kept:
        yield _make_sentence(name, kept, document)


def _is_word(fields: Sequence[str], columns: int) -> bool:
    """Whether a line that begins with # is one of a word, where others have so many columns, 0 if
    there is none yet; else it is a comment.
    """
    if columns:
        return len(fields) == columns and (columns == 1 or _is_tag(fields[-1]))
    return len(fields) > 1 and _is_tag(fields[-1])


def _is_tag(text: str) -> bool:
    try:
        parse_tag(text)
    except ValueError:
        return False
    return True


def _make_sentence(
    name: str, kept: Sequence[tuple[int, list[str]]], document: int
) -> TaggedSentence:
    tags = [fields[-1] for _, fields in kept] if len(kept[0][1]) > 1 else None
    locations = [f"{name} line {number}" for number, _ in kept]
    return TaggedSentence([fields[0] for _, fields in kept], tags, locations, document)


def from_rows(rows: Iterable[TableRow]) -> list[TaggedSentence]:
    """The sentences of a table, a row each; "document" may tell its documents apart.

    Raises:
      InputError: a row has no words, or not a tag for each.
    """
    found: list[TaggedSentence] = []
    document, last = 0, None
    for row in rows:
        words, tags = _read_strings(row, _WORD_KEYS), _read_strings(row, _TAG_KEYS)
        if words == []:
            raise InputError(f"{row.place} has no words: write some, or leave the row out.")
        if not words:
            known = ", ".join(map(repr, row.values)) or "nothing"
            raise InputError(
                f'{row.place} has no "words", but {known}: write a list of words; a file with a '
                f"word a line ends in {_CONLL_SUFFIXES[0]}."
            )
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{row.place} has {len(words)} words and {len(tags)} tags: write a tag for each."
            )
        own = row.values.get("document")
        document += bool(found) and own is not None and own != last
        last = own
        locations = [f"{row.place}, word {at}" for at in range(1, len(words) + 1)]
        found.append(TaggedSentence(words, tags, locations, document))
    return found


def _read_strings(row: TableRow, names: Sequence[str]) -> list[str] | None:
    """The texts in the first of some columns that there is."""
    name = next((each for each in names if row.values.get(each) is not None), None)
    if name is None:
        return None
    value = row.values[name]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        fix = "write one, names of tags in place of numbers" if names is _TAG_KEYS else "write one"
        raise InputError(f"{row.place}: {name!r} is no list of texts: {fix}.")
    return value


def label_names(*sets: TokenClassificationDataset) -> tuple[str, ...]:
    """The BIO tags of the types that occur, "O" first, whatever the order of sentences.

    Raises:
      InputError: no word of any is of an entity.
    """
    types = {parse_tag(tag)[1] for each in sets for tag in set(each.tags) if tag != OUTSIDE}
    if not types:
        raise InputError(f"{sets[0].name} has no entity: all its tags are O.")
    return (OUTSIDE, *(tag for kind in sorted(types) for tag in _bio_tags(kind)))


def _bio_tags(kind: str) -> tuple[str, str]:
    return (f"B-{kind}", f"I-{kind}") if kind else ("B", "I")


def _raise_error(complaint: InputError) -> None:
    raise complaint
