"""JSON parsing that tolerates byte-order marks and rejects deep nesting."""

import itertools
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from data_pipelines.errors import InputError

_ROWS_KEYS = ("data", "rows", "records", "examples", "items")  # of an object that holds all rows
# Fields that tell a row from an object that holds all rows: texts of the tasks' examples.
_TEXT_FIELDS = (
    "text",
    "sentence",
    "sentence1",
    "premise",
    "question",
    "context",
    "tokens",
    "words",
)
_LINES_NAME = re.compile(r"\.(?:jsonl|ndjson)(?:\.\w+)?$", re.IGNORECASE)  # perhaps compressed
_SPACES = re.compile(r"\s*")
_log = logging.getLogger("data_pipelines")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, without the byte-order mark it may begin with.

    Raises:
      json.JSONDecodeError: it is not JSON, or nested more deeply than Python can parse.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None


def parse_object(location: str, line: str) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises:
      InputError: the line, at `location`, is not a JSON object.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise InputError(f"{location}: not JSON ({error}). Write one object per line.") from None
    return _check_object(location, value)


def _check_object(location: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise InputError(f"{location}: {kind}, not a JSON object. Write one object per line.")
    return value


def read_json_records(
    name: str, lines: Iterable[str], text_fields: Collection[str] = _TEXT_FIELDS
) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Yield location and content of each record of a JSON file, detected by content.

    - JSON lines: the lines that are not blank, not yet parsed and one at a time.
    - One list of objects, objects over several lines, or one object with the rows: the objects. The
      whole file is in memory. The rows are a list under a name such as "data", or in one of the
      layouts of pandas' `orient`: columns, index or split.

    One object is a row, although it has a list of objects under such a name, if it also has a text
    field, or is one line of a file named as JSON lines.

    Args:
      name: name of the file, for locations.
      lines: its lines.
      text_fields: names of fields, one of which a row has.

    Raises:
      InputError: a file of several lines, none of which is a JSON object, is not JSON, or holds
        other values than objects.
    """
    numbered = ((i, line) for i, line in enumerate(lines, 1) if line.strip())
    start = list(itertools.islice(numbered, 2))
    values = _parse_start([line for _, line in start])
    all_lines = itertools.chain(start, numbered)
    if values is None:
        for number, line in all_lines:
            yield f"{name}:{number}", line
        return
    is_line = bool(values) and _LINES_NAME.search(name) is not None
    if not values:
        values = _parse_values(name, all_lines)
    records = values
    if len(values) == 1:
        fields = values[0] if isinstance(values[0], dict) else {}
        has_text = any(isinstance(fields.get(name), str | list | dict) for name in text_fields)
        layout, records = _rows_of(values[0], () if is_line or has_text else _ROWS_KEYS)
        if layout:
            _log.info("%sread %s, %d rows.", f"{name}: " if name else "", layout, len(records))
    for number, record in enumerate(records, 1):
        location = f"{name} record {number}" if len(records) > 1 else f"{name}:{start[0][0]}"
        yield location, _check_object(location, record)


def _parse_start(lines: list[str]) -> list[Any] | None:
    """Return the only value of a file, [] for values over several lines, None for JSON lines.

    Args:
      lines: the first two lines that are not blank.
    """
    if not lines or lines[0].strip(" \t\ufeff")[:1] not in ("[", "{"):
        return None
    parsed = [_try_parse(line) for line in lines]
    if isinstance(parsed[0], dict | list):
        return [parsed[0]] if len(lines) == 1 else None
    # A damaged first line of JSON lines is left to the reader of lines.
    is_opening = lines[0].strip(" \t\ufeff") in ("[", "{", "[{")
    return None if len(lines) == 1 or (isinstance(parsed[1], dict) and not is_opening) else []


def _try_parse(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _parse_values(name: str, numbered: Iterable[tuple[int, str]]) -> list[Any]:
    """Return the JSON values of a whole file, which follow one another."""
    numbers, lines = zip(*numbered, strict=True)
    text = "\n".join(lines).removeprefix("\ufeff").strip()
    decoder, values, position = json.JSONDecoder(), [], 0
    try:
        while position < len(text):
            value, position = decoder.raw_decode(text, position)
            values.append(value)
            position = _SPACES.match(text, position).end()  # type: ignore[union-attr]
    except json.JSONDecodeError as error:
        location = f"{name}:{numbers[error.lineno - 1]}"
        raise InputError(
            f"{location}: not JSON ({error.msg}). Fix the file, or write one object per line."
        ) from None
    except RecursionError:
        raise InputError(f"{name}: not JSON (it is nested too deeply). Fix the file.") from None
    return values


def _rows_of(value: Any, keys: Iterable[str]) -> tuple[str, list[Any]]:
    """Return the layout of a file's only value, "" for one row, and its rows.

    Args:
      value: the value.
      keys: names of a list of objects that are the rows.
    """
    if isinstance(value, list):
        is_list_of_rows = not value or any(isinstance(row, dict) for row in value)
        return ("one JSON list", value) if is_list_of_rows else ("", [value])
    for key in keys:
        rows = value.get(key)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return f"the list {key!r} of one JSON object", rows
    names, table = value.get("columns"), value.get("data")
    is_table = isinstance(names, list) and isinstance(table, list)
    if is_table and all(isinstance(row, list) for row in table):
        rows = [dict(zip(map(str, names), row, strict=False)) for row in table]
        return "columns and rows of one JSON object", rows
    columns = list(value.values())
    if not columns or not all(isinstance(column, dict) and column for column in columns):
        return "", [value]
    is_index = [all(key.isdecimal() for key in keys) for keys in (value, columns[0])]
    if is_index == [True, False]:
        return "an object of rows", columns
    if is_index == [False, True] and all(column.keys() == columns[0].keys() for column in columns):
        rows = [{name: column[key] for name, column in value.items()} for key in columns[0]]
        return "an object of columns", rows
    return "", [value]
