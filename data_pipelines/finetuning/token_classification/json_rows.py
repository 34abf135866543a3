"""Rows of JSON files, recognized by their first line: an object a line, or one value."""

from collections.abc import Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow
from data_pipelines.finetuning.token_classification.sentences import TEXT_KEYS, WORD_KEYS
from data_pipelines.finetuning.token_classification.span_layouts import has_spans
from data_pipelines.parsing import parse_json


def read_json_rows(name: str, lines: Sequence[str]) -> list[TableRow] | None:
    """Return the rows of a JSON file; None if the first line begins no object and no list.

    Args:
      name: name of the file.
      lines: its lines. Each is an object, or together they are a list of objects, or an object
        with one list of objects, such as `{"data": [...]}`.

    Raises:
      InputError: a line is not JSON.
    """
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip(" \t\r\ufeff")]
    first = numbered[0][1].lstrip("\ufeff \t").rstrip() if numbered else ""
    if not first.startswith(("{", "[")):
        return None
    try:
        values = [(f"{name}:{numbered[0][0]}", parse_json(first))]
    except ValueError:
        try:
            values = [(name, parse_json("\n".join(lines)))]
        except ValueError as error:
            if first[1:].lstrip()[:1] not in ("", '"', "{", "["):
                return None  # a word that is a bracket
            raise InputError(f"{name}: not JSON ({error}). Write one object per line.") from None
    else:
        for number, line in numbered[1:]:
            try:
                values.append((f"{name}:{number}", parse_json(line)))
            except ValueError as error:
                raise InputError(
                    f"{name}:{number}: not JSON ({error}). Write one object per line."
                ) from None
    if len(values) == 1:
        values = _elements(*values[0])
    rows = [TableRow(location, _object(location, value)) for location, value in values]
    if not rows:
        raise InputError(f"{name}: no rows. Give a file with examples.")
    return rows


def _elements(location: str, value: Any) -> list[tuple[str, Any]]:
    """Return the elements of a file that is one value."""
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if _is_list_of_rows(inner)]
        is_row = any(isinstance(value.get(key), str | dict) for key in TEXT_KEYS)
        if is_row or {*value} & {*WORD_KEYS} or len(lists) != 1:
            return [(location, value)]
        value = lists[0]
    if _is_pair(value):
        return [(location, value)]
    return [(f"{location}, element {number}", inner) for number, inner in enumerate(value, 1)]


def _is_list_of_rows(value: Any) -> bool:
    if not isinstance(value, list) or not value or has_spans(value):
        return False
    return all(isinstance(row, dict) or _is_pair(row) for row in value)


def _is_pair(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and isinstance(value[0], str) and isinstance(value[1], dict)


def _object(location: str, value: Any) -> dict[str, Any]:
    if _is_pair(value):  # spaCy's [text, {"entities": [...]}]
        return {TEXT_KEYS[0]: value[0], **value[1]}
    if not isinstance(value, dict):
        raise InputError(
            f"{location}: {type(value).__name__}, not a JSON object. Write one object per line."
        )
    return value
