"""Read sentences of tagged words from CoNLL files or from tables such as JSON lines."""

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
    is_tag,
    join_tag,
    parse_tag,
)
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines

_log = logging.getLogger("data_pipelines")

_DOCSTART = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\f\v]+")  # without the no-break space, which is part of a word
_CONLL_SUFFIXES = (".conll", ".bio", ".iob")
TAGGED_SUFFIXES = (*_CONLL_SUFFIXES, ".txt", ".tsv", *LIST_SUFFIXES)
_WORD_KEYS = ("words", "tokens")  # keys of a JSON object
_TAG_KEYS = ("tags", "labels", "ner_tags", "ner")


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """A sentence of words.

    Attributes:
      words: the words.
      tags: tag of each word; None if unknown.
      locations: file and line of each word, for error messages.
      document: index of the sentence's document, ascending.
    """

    words: Sequence[str]
    tags: Sequence[str] | None
    locations: Sequence[str]
    document: int = 0


@dataclasses.dataclass(frozen=True)
class TokenClassificationDataset:
    """A data set with BIO tags."""

    name: str
    sentences: Sequence[TaggedSentence]

    @property
    def words(self) -> list[str]:
        """The words of all sentences."""
        return [word for sentence in self.sentences for word in sentence.words]

    @property
    def tags(self) -> list[str]:
        """The tags of all words."""
        return [tag for sentence in self.sentences for tag in sentence.tags or ()]


def read_tagged_file(path: epath.PathLike, fix_tags: bool = False) -> TokenClassificationDataset:
    """Read a file of tagged sentences.

    Args:
      path: JSON lines, Parquet or Arrow by suffix, with columns "words" (or "tokens") and "tags"
        (or "labels", "ner_tags", "ner"). Other files have one word per line, columns separated by
        tabs or spaces, the word first and its tag last, and an empty line after each sentence.
      fix_tags: accept tags that violate the scheme, as conlleval does, with a warning. An I that
        continues no entity begins one.

    Raises:
      InputError: the file has another format, a word has no tag, or tags violate the scheme.
    """
    path = check_file(path)
    if file_format(path) in LIST_SUFFIXES:
        sentences = sentences_from_rows(read_table(path))
    else:
        sentences = list(parse_conll(str(path), read_lines(path)))
    return make_tagged_dataset(str(path), sentences, fix_tags)


def is_conll(path: epath.PathLike) -> bool:
    """Return whether a file's suffix is that of CoNLL files, which have one word per line."""
    return file_format(epath.Path(path)) in _CONLL_SUFFIXES


def make_tagged_dataset(
    name: str, sentences: Sequence[TaggedSentence], fix_tags: bool = False
) -> TokenClassificationDataset:
    """Return the data set of the sentences, with tags converted to BIO; see `read_tagged_file`."""
    if not sentences:
        raise InputError(f"{name}: no sentences. Give a file with words and their tags.")
    untagged = next((sentence for sentence in sentences if sentence.tags is None), None)
    if untagged:
        raise InputError(
            f"{untagged.locations[0]}: words without tags. Give a file with words and their tags."
        )
    for sentence in sentences:
        for tag, location in zip(sentence.tags or (), sentence.locations, strict=True):
            try:
                parse_tag(tag)
            except ValueError as error:
                raise InputError(f"{location}: {error}. Fix the tag.") from None
    tags = [sentence.tags or () for sentence in sentences]
    try:
        scheme, violations = detect_scheme(tags)
    except ValueError as error:
        raise InputError(f"{name}: {error}. Write all tags in one scheme.") from None
    if violations and not fix_tags:
        number, word = violations[0]
        raise InputError(
            f"{sentences[number].locations[word]}: tag {tags[number][word]!r} violates the scheme "
            f"of the file, {scheme} ({len(violations)} in all). Fix the tags, or read them as "
            "conlleval does with data.fix_tags=True."
        )
    if violations:
        _log.warning("%s: fixed %d tags that violate scheme %s.", name, len(violations), scheme)
    if scheme != "BIO":
        _log.info("%s: converted tags from %s to BIO.", name, scheme)
    bio_tags = [entities_to_tags(entities(old), len(old)) for old in tags]
    pairs = zip(sentences, bio_tags, strict=True)
    converted = [dataclasses.replace(sentence, tags=new) for sentence, new in pairs]
    return TokenClassificationDataset(name, converted)


def parse_conll(name: str, lines: Iterable[str]) -> Iterator[TaggedSentence]:
    """Yield the sentences of a CoNLL file, whose lines have columns.

    If tabs separate the columns, a word may be empty. A line that begins with # is a comment if it
    has more or fewer columns than the first line, or does not end in a tag. If all lines have one
    column, words have no tags.

    Raises:
      InputError: a line has more or fewer columns than the first one, or no tag.
    """
    words: list[tuple[int, list[str]]] = []  # line and columns of the words of a sentence
    has_tabs: bool | None = None
    num_columns, first_line = 0, 0
    document, document_has_sentences = 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(_DOCSTART):
            if words:
                yield _make_sentence(name, words, document)
                words, document_has_sentences = [], True
            document += document_has_sentences and line.startswith(_DOCSTART)
            continue
        split_at_tabs = "\t" in line.strip() if has_tabs is None else has_tabs
        if split_at_tabs:
            columns = [column.strip() for column in line.rstrip().split("\t")]
        else:
            columns = _SPACES.split(line.strip())
        if line.startswith("#") and not _is_word(columns, num_columns):
            continue
        if not num_columns:
            has_tabs, num_columns, first_line = split_at_tabs, len(columns), number
        if len(columns) != num_columns:
            raise InputError(
                f"{name}:{number}: {len(columns)} columns, line {first_line} has {num_columns}. "
                "Write the same columns on every line, the word first and its tag last."
            )
        if not columns[-1]:
            raise InputError(
                f"{name}:{number}: no tag. Write one, O for a word outside of entities."
            )
        words.append((number, columns))
    if words:
        yield _make_sentence(name, words, document)


def _is_word(columns: Sequence[str], num_columns: int) -> bool:
    """Return whether a line that begins with # is a word and not a comment.

    Args:
      columns: the columns of the line.
      num_columns: columns of earlier lines; 0 for the first line.
    """
    if num_columns:
        return len(columns) == num_columns and (num_columns == 1 or is_tag(columns[-1]))
    return len(columns) > 1 and is_tag(columns[-1])


def _make_sentence(
    name: str, words: Sequence[tuple[int, list[str]]], document: int
) -> TaggedSentence:
    locations = [f"{name}:{line}" for line, _ in words]
    rows = [columns for _, columns in words]
    tags = [columns[-1] for columns in rows] if len(rows[0]) > 1 else None
    return TaggedSentence([columns[0] for columns in rows], tags, locations, document)


def sentences_from_rows(rows: Iterable[TableRow]) -> list[TaggedSentence]:
    """Return the sentences of a table, one per row; the column "document" names their documents.

    Raises:
      InputError: a row has no words, or more or fewer tags than words.
    """
    sentences: list[TaggedSentence] = []
    document, previous_name = 0, None
    for row in rows:
        words, tags = _read_strings(row, _WORD_KEYS), _read_strings(row, _TAG_KEYS)
        if words == []:
            raise InputError(f"{row.location}: no words. Write some or delete the row.")
        if not words:
            columns = ", ".join(map(repr, row.values)) or "none"
            raise InputError(
                f"{row.location}: no column 'words', only {columns}. Write a list of words, or "
                f"give a file with one word per line a name that ends in {_CONLL_SUFFIXES[0]}."
            )
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{row.location}: {len(words)} words and {len(tags)} tags. Write one tag for each "
                "word."
            )
        document_name = row.values.get("document")
        document += bool(sentences) and document_name is not None and document_name != previous_name
        previous_name = document_name
        locations = [f"{row.location}, word {number}" for number in range(1, len(words) + 1)]
        sentences.append(TaggedSentence(words, tags, locations, document))
    return sentences


def _read_strings(row: TableRow, names: Sequence[str]) -> list[str] | None:
    """Return the list of strings in the first column of `names` that exists; None without one."""
    name = next((name for name in names if row.values.get(name) is not None), None)
    if name is None:
        return None
    value = row.values[name]
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        fix = "Write one, with names of tags, not numbers" if names is _TAG_KEYS else "Write one"
        raise InputError(f"{row.location}: column {name!r} is not a list of strings. {fix}.")
    return value


def label_names(*datasets: TokenClassificationDataset) -> tuple[str, ...]:
    """Return "O" and the BIO tags of all entity types, sorted by type.

    Raises:
      InputError: there are no entities.
    """
    types = {parse_tag(tag)[1] for data in datasets for tag in set(data.tags) if tag != OUTSIDE}
    if not types:
        raise InputError(f"{datasets[0].name}: all tags are O. Give data with entities.")
    return (OUTSIDE, *(join_tag(prefix, name) for name in sorted(types) for prefix in "BI"))
