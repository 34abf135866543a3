"""Columns of words and tags in a file with one word per line, chosen by their content."""

import collections
import dataclasses
import functools
import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import (
    IO,
    OUTSIDE,
    is_tag,
    parse_tag,
    tag_style,
    to_standard_form,
)
from data_pipelines.finetuning.token_classification.sentences import (
    ANY_COLUMNS,
    ColumnNames,
)

_log = logging.getLogger("data_pipelines")

# Names of columns in headers, in lower case; the first that a header has is taken.
_WORD_NAMES = ("word", "words", "token", "tokens", "form", "text", "sentence", "sentences")
_ENTITY_NAMES = (
    "tag",
    "tags",
    "label",
    "labels",
    "ner_tag",
    "ner_tags",
    "ner",
    "entity",
    "bio",
    "ner tag",
)
_POS_NAMES = ("upos", "pos", "pos_tag", "pos_tags", "xpos", "chunk", "pos tag")
# Types of chunks of CoNLL-2000, of the German part of CoNLL-2003 and of LST20's clauses.
_CHUNK_TYPES = {
    *("NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"),
    *("NC", "VC", "PC", "CLS"),
}
_MIN_OUTSIDE = 0.1  # of the words, in a column of entity types: "O" may be a word or a lemma
_MIN_NESTED = 0.95  # of the words in inner entities that are also in outer ones


class WordRow(NamedTuple):
    """A line with a word.

    Attributes:
      line: number of the line.
      sentence: index of its sentence, ascending.
      document: index of its document, ascending.
      values: its columns.
    """

    line: int
    sentence: int
    document: int
    values: Sequence[str]


@dataclasses.dataclass
class WordTable:
    """Words of a file, with equally many columns in each row.

    Attributes:
      name: name of the file.
      rows: its words.
      names: names of the columns; empty without a header.
    """

    name: str
    rows: list[WordRow]
    names: Sequence[str] = ()

    def describe(self, column: int) -> str:
        """Return the name of a column, or its number from 1."""
        return repr(self.names[column]) if self.names else str(column + 1)


class Column:
    """Content of a column.

    Args:
      rows: all rows of the table.
      index: index of the column.
    """

    def __init__(self, rows: Sequence[WordRow], index: int) -> None:
        self.index = index
        self.values = [row.values[index] for row in rows]
        self.counts = collections.Counter(self.values)
        self.style = tag_style(self.counts)
        if self.style != "prefix" and (standard := to_standard_form(self.counts)):
            self.values = [standard[value] for value in self.values]
            self.counts, self.style = collections.Counter(self.values), "prefix"

    @functools.cached_property
    def is_number(self) -> bool:
        """True if values differ in digits alone, as identifiers do, or are numbers or offsets."""
        patterns = {re.sub(r"\d+", "0", value) for value in self.counts}
        if len(patterns) == 1:
            return "0" in patterns.pop()
        return all(re.fullmatch(r"[-+.,:]?0([-.,:]0)*", pattern) for pattern in patterns)

    @functools.cached_property
    def has_entities(self) -> bool:
        """True if the values are O and types of entities, with or without prefixes."""
        if self.style == "prefix":
            return self.counts.keys() != {OUTSIDE}
        return self.style == IO and self.counts[OUTSIDE] >= _MIN_OUTSIDE * len(self.values)

    @functools.cached_property
    def has_chunks(self) -> bool:
        """True if most of the values with a type have one of chunks."""
        types = {tag: parse_tag(tag)[1] if is_tag(tag) else tag for tag in self.counts}
        inside = self.counts.total() - self.counts[OUTSIDE]
        return 2 * sum(self.counts[tag] for tag in types if types[tag] in _CHUNK_TYPES) > inside

    def encloses(self, other: "Column") -> bool:
        """Return whether entities of another column lie inside those of this one."""
        inside = [
            own != OUTSIDE
            for own, value in zip(self.values, other.values, strict=True)
            if value != OUTSIDE
        ]
        num_words = len(self.values) - self.counts[OUTSIDE]
        return num_words > len(inside) and sum(inside) >= _MIN_NESTED * len(inside)


def has_header(rows: Sequence[WordRow], wanted: ColumnNames = ANY_COLUMNS) -> bool:
    """Return whether the first row has names of columns: two, or one and no value of other rows.

    Args:
      rows: the rows.
      wanted: names that a header may have besides the known ones.
    """
    names = [value.lower() for value in rows[0].values]
    filled = {*names} - {""}
    word, tag = ("" if name.isdecimal() else name.lower() for name in (wanted.word, wanted.tag))
    has_word = filled & {*_WORD_NAMES, word}
    has_tag = filled & {*_ENTITY_NAMES, *_POS_NAMES, tag}
    if has_word and has_tag:
        return len({*names}) > 1
    return bool(has_word or has_tag) and not any(
        is_tag(name.upper()) or any(row.values[index].lower() == name for row in rows[1:])
        for index, name in enumerate(names)
    )


def choose_columns(
    table: WordTable, wanted: ColumnNames, has_tags: bool = True
) -> tuple[int, int | None]:
    """Return the indices of the columns of words and tags; log the choice if there are others.

    Args:
      table: the words, at least one.
      wanted: names or numbers of the columns.
      has_tags: False if tags are not needed.

    Raises:
      InputError: a column does not exist, or several may hold the tags.
    """
    indices = range(len(table.rows[0].values))
    columns = [Column(table.rows, index) for index in indices]
    tag = _find(table, "tag_column", wanted.tag)
    word = _find(table, "word_column", wanted.word)
    if word is None:
        word = _first_name(table, _WORD_NAMES)
    if word is None:
        word = _word_column([column for column in columns if column.index != tag])
    if tag is None and has_tags and len(columns) > 1:
        tag = _tag_column(table, [column for column in columns if column.index != word], word)
    if len(columns) > 2 or (word, tag) == (1, 0):
        _log_choice(table, word, tag)
    return word, tag


def _find(table: WordTable, field: str, value: str) -> int | None:
    if not value:
        return None
    if value.lower() in table.names:
        return [*table.names].index(value.lower())
    num_columns = len(table.rows[0].values)
    if not value.isdecimal() or not 1 <= int(value) <= num_columns:
        names = f"{', '.join(table.names)}, or a number" if table.names else "a number"
        raise InputError(
            f"data.{field}={value!r}: {table.name} has no such column. Set {names} from 1 to "
            f"{num_columns}."
        )
    return int(value) - 1


def _first_name(table: WordTable, names: Sequence[str]) -> int | None:
    return next((table.names.index(name) for name in names if name in table.names), None)


def _word_column(columns: Sequence[Column]) -> int:
    """Return the first column that is no number and no tag, and is as varied as words are."""
    candidates = [
        column
        for column in columns
        if len(column.counts) > 1 and not column.is_number and not column.has_entities
    ]
    if not candidates:
        fallback = (c for c in columns if not c.is_number and not c.has_entities)
        return next(fallback, columns[0]).index
    most = max(len(column.counts) for column in candidates)
    return next(column.index for column in candidates if 2 * len(column.counts) >= most)


def _tag_column(table: WordTable, columns: Sequence[Column], word: int) -> int | None:
    named = [_first_name(table, [name]) for name in _ENTITY_NAMES]
    if len(matches := [index for index in named if index is not None]) == 1:
        return matches[0]
    if len(columns) == 1:
        return None if _counts_words(table, columns[0]) else columns[0].index
    candidates = [column for column in columns if column.has_entities]
    entities = [column for column in candidates if not column.has_chunks]
    if not entities:  # a file without entities, or of chunks
        entities = [column for column in columns if column.counts.keys() == {OUTSIDE}][-1:]
    entities = entities or candidates
    for column in entities:
        if all(column.encloses(other) for other in entities if other is not column):
            return column.index
    if not entities:  # parts of speech
        if (index := _first_name(table, _POS_NAMES)) is not None:
            return index
        num_words = len({row.values[word] for row in table.rows})
        varied = [column for column in columns if len(column.counts) > 1 and not column.is_number]
        entities = [column for column in varied if 2 * len(column.counts) <= num_words] or varied
    if len(entities) == 1:
        return entities[0].index
    if not entities and all(column.is_number for column in columns):
        return None
    choices = " or ".join(
        f"{table.describe(column.index)} ({_example(column)})" for column in entities or columns
    )
    raise InputError(
        f"{table.name}: the tags may be in column {choices}. Choose one with data.tag_column, and "
        "the column of the words with data.word_column."
    )


def _counts_words(table: WordTable, column: Column) -> bool:
    """Return whether a column counts the words of each sentence."""
    previous = None
    for row in table.rows:
        value = row.values[column.index]
        if not value.isdecimal():
            return False
        if previous and previous.sentence == row.sentence:
            if int(value) != int(previous.values[column.index]) + 1:
                return False
        elif int(value) > 1:
            return False
        previous = row
    return True


def _example(column: Column) -> str:
    """Return the first values of a column that are not O."""
    values = [value for value in column.counts if value != OUTSIDE] or [OUTSIDE]
    return ", ".join(values[:3])


def _log_choice(table: WordTable, word: int, tag: int | None) -> None:
    rows = table.rows
    row = rows[0] if tag is None else next((r for r in rows if r.values[tag] != OUTSIDE), rows[0])
    tags = "no tags" if tag is None else f"tags in column {table.describe(tag)}"
    example = row.values[word] if tag is None else f"{row.values[word]} {row.values[tag]}"
    others = "" if tag is None else " Set data.word_column or data.tag_column for others."
    _log.info(
        "%s: words in column %s, %s, such as %r.%s",
        table.name, table.describe(word), tags, example, others,
    )  # fmt: skip
