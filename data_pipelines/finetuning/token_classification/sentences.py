"""Sentences of tagged words, and tables with a sentence in each row."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow

_log = logging.getLogger("data_pipelines")

WORD_KEYS = ("words", "tokens")
# In the order of preference; a row may have several.
TAG_KEYS = ("tags", "labels", "ner_tags", "ner")
_OTHER_TAG_KEYS = ("tag", "label", "entities", "upos", "pos_tags", "chunk_tags")  # if lists
TEXT_KEYS = ("text", "sentence", "content", "originalText", "source_text", "document", "data")
_NUMBERS_FIX = (
    "Write one, with names of tags, not numbers, or give a Parquet file of Hugging Face's "
    "datasets, whose schema has the names"
)


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
class ColumnNames:
    """Names, or numbers from 1 in a file of columns, of the columns to read; "" chooses one.

    Attributes:
      word: column of the words, or of the text with spans.
      tag: column of the tags, or of the spans.
    """

    word: str = ""
    tag: str = ""


ANY_COLUMNS = ColumnNames()


def sentences_from_rows(
    rows: Iterable[TableRow],
    columns: ColumnNames = ANY_COLUMNS,
    tag_names: Mapping[str, Sequence[str]] | None = None,
) -> list[TaggedSentence]:
    """Return the sentences of a table, one per row; the column "document" names their documents.

    Args:
      rows: rows with a list of words and perhaps a list of tags.
      columns: columns to read.
      tag_names: names of the tags of columns in which tags are numbers.

    Raises:
      InputError: a row has no words, or more or fewer tags than words.
    """
    sentences: list[TaggedSentence] = []
    document, previous_name = 0, None
    for row in rows:
        words = _read_strings(row, _word_column(row, columns))
        if words == []:
            raise InputError(f"{row.location}: no words. Write some or delete the row.")
        if not words:
            names = ", ".join(map(repr, row.values)) or "none"
            raise InputError(
                f"{row.location}: no column 'words', only {names}. Write a list of words, or spans "
                "with start, end and label, or name the columns with data.word_column and "
                "data.tag_column. Give a file with one word per line a name that ends in .conll."
            )
        tag_column = _tag_column(row, columns)
        if not sentences:
            _log_choice(row, tag_column)
        tags = _read_strings(row, tag_column, (tag_names or {}).get(tag_column))
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


def is_sentence_row(row: TableRow, columns: ColumnNames) -> bool:
    """Return whether a row has lists of words and of tags."""
    words = row.values.get(_word_column(row, columns))
    tags = row.values.get(_tag_column(row, columns))
    are_words = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return are_words and isinstance(tags, list)


def _first_column(row: TableRow, names: Iterable[str]) -> str:
    return next((name for name in names if row.values.get(name) is not None), "")


def _word_column(row: TableRow, columns: ColumnNames) -> str:
    if columns.word:
        row.value(columns.word)
        return columns.word
    texts = (name for name in TEXT_KEYS[:2] if isinstance(row.values.get(name), list))
    return _first_column(row, WORD_KEYS) or next(texts, "")


def _tag_column(row: TableRow, columns: ColumnNames) -> str:
    if columns.tag:
        row.value(columns.tag)
    others = (name for name in _OTHER_TAG_KEYS if _is_list_of_values(row.values.get(name)))
    return columns.tag or _first_column(row, TAG_KEYS) or next(others, "")


def _is_list_of_values(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)


def _log_choice(row: TableRow, tag_column: str) -> None:
    lists = (name for name in (*TAG_KEYS, *_OTHER_TAG_KEYS) if row.values.get(name))
    others = [name for name in lists if name != tag_column]
    if tag_column and others:
        example = json.dumps(row.values[tag_column][:3], ensure_ascii=False)
        _log.info(
            "%s: tags from column %r, such as %s. For %s set data.tag_column.",
            row.location, tag_column, example, " or ".join(others),
        )  # fmt: skip


def _read_strings(
    row: TableRow, name: str, value_names: Sequence[str] | None = None
) -> list[str] | None:
    """Return the list of strings in a column; None if `name` is "".

    Args:
      row: the row.
      name: name of the column.
      value_names: names of the values if these are numbers.
    """
    if not name:
        return None
    value: Any = row.values[name]
    if isinstance(value, list) and value_names:
        value = [_value_name(row, name, element, value_names) for element in value]
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        has_numbers = isinstance(value, list) and any(isinstance(x, int) for x in value)
        fix = _NUMBERS_FIX if has_numbers else "Write one"
        raise InputError(f"{row.location}: column {name!r} is not a list of strings. {fix}.")
    return value


def _value_name(row: TableRow, column: str, value: Any, names: Sequence[str]) -> Any:
    if not isinstance(value, int):
        return value
    if not 0 <= value < len(names):
        raise InputError(
            f"{row.location}: {value} in column {column!r} is not one of {len(names)} tags. Fix "
            "the row."
        )
    return names[value]
