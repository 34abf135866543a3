"""Documents in a field of records: lines of JSON, rows of tables, records of TF data sets."""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_object
from data_pipelines.text.plain_text import join_wrapped_lines

_log = logging.getLogger(__name__)

_MANY_BAD = 100_000  # bad records that may end the reading of an input early
_MIN_JSON_CHARS = 1 << 16  # parsed at a time
_WIKI40B = re.compile(r"\s*_START_ARTICLE_\n")
# Of the dumps of CirrusSearch (Elasticsearch), before each page.
_BULK_ACTION = re.compile(r'\{"index":\s*\{[^{}]*\}\}\s*$')
_SEPARATORS = re.compile(r"[\s,]*")


class BadRecordCounter:
    """Counter of an input's records and bad records that stops at too many bad ones."""

    def __init__(self, source: str, max_bad_fraction: float) -> None:
        self._source, self._max_bad_fraction = source, max_bad_fraction
        self._records = self._bad = 0
        self._first: InputError | None = None

    def count(self) -> None:
        """Count a record."""
        self._records += 1

    def count_all(self, records: Iterable[str]) -> Iterator[str]:
        """Yield the records, each counted."""
        for record in records:
            self.count()
            yield record

    def add_line(self, error: InputError) -> None:
        """Count a bad record that was not counted before: a line that is not text."""
        self.count()
        self.add(error)

    def add(self, error: InputError) -> None:
        """Count a bad record, or raise its error if there are too many."""
        if not self._max_bad_fraction:
            if self._records > 1:  # if the first one is bad, more than a record needs a fix
                error = InputError(f"{error} --max-bad-fraction skips bad records.")
            raise error
        self._first = self._first or error
        self._bad += 1
        # So many that good ones that follow hardly make up for them: a file may take hours to read.
        if self._bad > _MANY_BAD and self._bad > 2 * self._max_bad_fraction * self._records:
            self._end(f"the first {self._records:,}")

    def end(self) -> None:
        """Log the bad records, or raise InputError if there are too many."""
        self._end(f"{self._records:,}")

    def _end(self, read: str) -> None:
        if not self._bad:
            return
        counts = f"{self._source}: {self._bad:,} of {read} records are bad"
        if self._bad > self._max_bad_fraction * self._records:
            raise InputError(
                f"{counts}, more than max_bad_fraction={self._max_bad_fraction:g}. Fix them, or "
                f"raise --max-bad-fraction. The first: {self._first}"
            )
        _log.warning("%s and skipped. The first: %s", counts, self._first)


def record_documents(
    prefix: str,
    numbered: Iterable[tuple[object, Any]],
    field: str,
    is_wrapped: bool,
    bad: BadRecordCounter,
) -> Iterator[list[str]]:
    """Yield the document in a field of each record.

    Args:
      prefix: start of the location of a record; its number follows.
      numbered: numbers or locations, and records: objects, lines of JSON, or the errors of
        unreadable records. Blank lines and actions of bulk files are skipped.
      field: name of the field; OUTER.INNER for a field of an object.
      is_wrapped: whether the lines of a paragraph are joined.
      bad: counts records, and bad ones, whose document is empty.
    """
    for number, record in numbered:
        is_line = isinstance(record, str)
        if is_line and (not record.strip() or _BULK_ACTION.match(record)):
            continue
        bad.count()
        location = f"{prefix}{number}"
        try:
            if isinstance(record, InputError):
                raise record
            if is_line:
                record = parse_object(location, record)
            lines = _split_lines(location, _get_field(location, record, field), field)
            yield list(join_wrapped_lines(lines)) if is_wrapped else _strip_lines(lines)
        except InputError as error:
            bad.add(error)
            yield []


def read_json_list(
    path: str, lines: Iterable[str]
) -> Iterator[tuple[int, dict[str, Any] | InputError]]:
    """Yield number and object of the elements of a file that is one JSON list of objects.

    An element that is no object is an error in its place. An object at a time is in memory, or a
    line if that is longer.

    Raises:
      InputError: the file is not a JSON list.
    """
    decoder, remaining = json.JSONDecoder(), iter(lines)
    text, number = "", 0
    is_end = is_open = False
    while not is_end:
        # Twice as long as the part that holds no whole object, which is thus parsed few times.
        parts, missing = [text], len(text) + _MIN_JSON_CHARS
        while missing > 0 and not is_end:
            line = next(remaining, None)
            is_end = line is None
            parts += [line or "", "\n"]
            missing -= len(parts[-2]) + 1
        text, at = "".join(parts), 0
        if not is_open:
            at, is_open = text.index("[") + 1, True
        while (at := _SEPARATORS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            if text[at] == "]":
                if text[at + 1 :].strip() or any(line.strip() for line in remaining):
                    raise InputError(f"{path}: text after the end of the list. Remove it.")
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                is_cut = isinstance(error, json.JSONDecodeError) and (
                    error.pos > len(text) - 64 or error.msg.startswith("Unterminated")
                )
                if is_cut and not is_end:
                    break
                raise InputError(
                    f"{path} element {number + 1}: not JSON ({error}). Fix the element."
                ) from None
            number += 1
            if isinstance(value, dict):
                yield number, value
            else:
                kind = type(value).__name__
                yield (
                    number,
                    InputError(
                        f"{path} element {number}: {kind}, not a JSON object. Write it as one."
                    ),
                )
        text = text[at:]
    raise InputError(f"{path}: the list has no end. Download it again.")


def _get_field(location: str, record: dict[str, Any], field: str) -> Any:
    if field in record:
        return record[field]
    outer, dot, inner = field.partition(".")
    if dot and isinstance(record.get(outer), dict):
        return _get_field(location, record[outer], inner)
    names = ", ".join(sorted(record)) or "none"
    raise InputError(f"{location}: no field {field!r}, only {names}. Choose one with --field.")


def _split_lines(location: str, text: Any, field: str) -> list[str]:
    """Return the lines in a field; blank lines do not end a document."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        else:
            text.encode()
    except AttributeError:
        kind = type(text).__name__
        raise InputError(f"{location}: field {field!r} is {kind}, not text. Fix it.") from None
    except UnicodeError as error:
        raise InputError(f"{location}: field {field!r} is not Unicode ({error}). Fix it.") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not _WIKI40B.match(text):
        return lines
    # Marks are lines of their own. Paragraphs alone are kept, as from Wikipedia's dumps.
    is_paragraph = (mark == "_START_PARAGRAPH_" for mark in lines)
    kept = (line for mark, line in zip(is_paragraph, lines[1:], strict=False) if mark)
    return [part for line in kept for part in line.split("_NEWLINE_")]


def _strip_lines(lines: list[str]) -> list[str]:
    return [stripped for line in lines if (stripped := line.strip())]
