"""Sentences of words, each of which has a tag: CoNLL's columns, or a JSON object a line."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import OBJECTS, Row, kind_of, read_table
from data_pipelines.finetuning.tag_schemes import (
    OUTSIDE,
    entities,
    parse_tag,
    recognise,
    write_tags,
)
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines

_log = logging.getLogger("data_pipelines")

DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\f\v]+")  # a no-break space is part of a word
_COLUMNS = (".conll", ".bio", ".iob")
NAMES = (*_COLUMNS, ".txt", ".tsv", *OBJECTS)  # what files may end in
_WORDS = ("words", "tokens")  # keys of a JSON object
_TAGS = ("tags", "labels", "ner_tags", "ner")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Some words.

    Attributes:
      tags: of each word; None where they are not known.
      places: of each word, for messages.
      document: number of the document that it is of; sentences of one follow one another.
    """

    words: Sequence[str]
    tags: Sequence[str] | None
    places: Sequence[str]
    document: int = 0


@dataclasses.dataclass(frozen=True)
class Tagged:
    """A data set; its tags are BIO, and `scheme` is what they were."""

    name: str
    sentences: Sequence[Sentence]
    scheme: str = "BIO"

    @property
    def words(self) -> list[str]:
        """All words, one after the other."""
        return [word for sentence in self.sentences for word in sentence.words]

    @property
    def tags(self) -> list[str]:
        """Those of all words."""
        return [tag for sentence in self.sentences for tag in sentence.tags or ()]


def read_tagged(path: epath.PathLike, mend: bool = False) -> Tagged:
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
    if kind_of(path) in OBJECTS:
        found = from_rows(read_table(path))
    else:
        found = list(parse_columns(str(path), read_lines(path, _refuse)))
    return make_tagged(str(path), found, mend)


def is_columns(path: epath.PathLike) -> bool:
    """Whether a file has a word a line by its name, and is nothing else."""
    return kind_of(epath.Path(path)) in _COLUMNS


def make_tagged(name: str, sentences: Sequence[Sentence], mend: bool = False) -> Tagged:
    """A data set whose tags become BIO; see `read_tagged`."""
    if not sentences:
        raise InputError(f"{name} has no sentence: give a file with words and their tags.")
    bare = next((each for each in sentences if each.tags is None), None)
    if bare:
        raise InputError(f"{bare.places[0]}: words have no tags: give a file that has them.")
    for sentence in sentences:
        for tag, place in zip(sentence.tags or (), sentence.places, strict=True):
            try:
                parse_tag(tag)
            except ValueError as error:
                raise InputError(f"{place}: {error}: mend it.") from None
    tags = [sentence.tags or () for sentence in sentences]
    try:
        scheme, broken = recognise(tags)
    except ValueError as error:
        raise InputError(f"{name}: its {error}: write them in one scheme.") from None
    if broken and not mend:
        number, word = broken[0]
        raise InputError(
            f"{sentences[number].places[word]}: tag {tags[number][word]!r} breaks the scheme of "
            f"the file, {scheme} ({len(broken)} do): mend it, or read all as conlleval would with "
            "data.mend_tags=True."
        )
    if broken:
        _log.warning("%s: %d tags break its scheme, %s: mended.", name, len(broken), scheme)
    if scheme != "BIO":
        _log.info("%s: its tags are %s, and are learned as BIO.", name, scheme)
    return Tagged(
        name,
        [
            dataclasses.replace(sentence, tags=write_tags(entities(each), len(each)))
            for sentence, each in zip(sentences, tags, strict=True)
        ],
        scheme,
    )


def parse_columns(name: str, lines: Iterable[str]) -> Iterator[Sentence]:
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
        if not line.strip() or line.startswith(DOCUMENT):
            if kept:
                yield _sentence(name, kept, document)
                kept, begun = [], True
            document += begun and line.startswith(DOCUMENT)
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
        yield _sentence(name, kept, document)


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


def _sentence(name: str, kept: Sequence[tuple[int, list[str]]], document: int) -> Sentence:
    tags = [fields[-1] for _, fields in kept] if len(kept[0][1]) > 1 else None
    places = [f"{name} line {number}" for number, _ in kept]
    return Sentence([fields[0] for _, fields in kept], tags, places, document)


def from_rows(rows: Iterable[Row]) -> list[Sentence]:
    """The sentences of a table, a row each; "document" may tell its documents apart.

    Raises:
      InputError: a row has no words, or not a tag for each.
    """
    found: list[Sentence] = []
    document, last = 0, None
    for row in rows:
        words, tags = _list(row, _WORDS), _list(row, _TAGS)
        if words == []:
            raise InputError(f"{row.place} has no words: write some, or leave the row out.")
        if not words:
            known = ", ".join(map(repr, row.values)) or "nothing"
            raise InputError(
                f'{row.place} has no "words", but {known}: write a list of words; a file with a '
                f"word a line ends in {_COLUMNS[0]}."
            )
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{row.place} has {len(words)} words and {len(tags)} tags: write a tag for each."
            )
        own = row.values.get("document")
        document += bool(found) and own is not None and own != last
        last = own
        places = [f"{row.place}, word {at}" for at in range(1, len(words) + 1)]
        found.append(Sentence(words, tags, places, document))
    return found


def _list(row: Row, names: Sequence[str]) -> list[str] | None:
    """The texts in the first of some columns that there is."""
    name = next((each for each in names if row.values.get(each) is not None), None)
    if name is None:
        return None
    value = row.values[name]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        cure = "write one, names of tags in place of numbers" if names is _TAGS else "write one"
        raise InputError(f"{row.place}: {name!r} is no list of texts: {cure}.")
    return value


def label_names(*sets: Tagged) -> tuple[str, ...]:
    """The BIO tags of the types that occur, "O" first, whatever the order of sentences.

    Raises:
      InputError: no word of any is of an entity.
    """
    types = {parse_tag(tag)[1] for each in sets for tag in set(each.tags) if tag != OUTSIDE}
    if not types:
        raise InputError(f"{sets[0].name} has no entity: all its tags are O.")
    return (OUTSIDE, *(tag for kind in sorted(types) for tag in _both(kind)))


def _both(kind: str) -> tuple[str, str]:
    return (f"B-{kind}", f"I-{kind}") if kind else ("B", "I")


def _refuse(complaint: InputError) -> None:
    raise complaint
