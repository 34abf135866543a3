"""Tables of text, CSV and TSV, recognized by their content and read row by row."""

import csv
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.text.plain_text import LINE_BYTES, MAX_DOCUMENT_BYTES

csv.field_size_limit(2**31 - 1)  # a cell may be a whole document

_AS_TEXT = {  # by delimiter, the way to have lines read as text
    "\t": "replace its tabs",
    ",": "write a space behind its commas",
    ";": "write a space behind its semicolons",
    "|": "replace its vertical bars",
}
_EXCEL_DELIMITER = re.compile(r"\s*(sep=.\s*)?")  # or a blank line, before the header
_NAME = re.compile(r"(?! )[^!?\t\"]{0,40}(?<!\.)")
_SAMPLE_LINES = 100
_MIN_ROWS = 5  # of a table that is recognized by its rows alone
_OPEN_QUOTE = "an open quote"
_MAX_CELL_LINES = 1000  # in a table with tabs, where an open quote may be text

Row = list[str] | str  # cells, or what is wrong with the row


class Header(NamedTuple):
    """The layout of a table.

    Attributes:
      delimiter: character between cells.
      columns: cells of the first row.
    """

    delimiter: str
    columns: tuple[str, ...]


def find_header(sample: Sequence[str], is_whole: bool, field: str, suffix: str) -> Header | None:
    """Return the header if the first lines of a text are those of a table.

    A table has two or more columns and a row below its header. Any of these identifies it:
    - a column with the name of the field, in a file named .csv or .tsv, or if four of five rows
      have as many cells as the header;
    - names of columns (short, no sentences) in a file named .csv or .tsv, if half of the rows have
      as many cells; rows from one on that the end of the first lines cuts are left out;
    - five or more rows that all have as many cells, without blank lines between. Text has spaces
      behind its commas and semicolons, so no cell may begin with a space.

    In a file named .csv or .tsv, a single column is recognized by the name of the field or by
    quotes around lines.

    Args:
      sample: the first lines.
      is_whole: whether these are all lines.
      field: name of the text column.
      suffix: ".csv", ".tsv" or another suffix of the file.
    """
    lines = list(sample[:_SAMPLE_LINES])
    is_whole = is_whole and len(lines) == len(sample)
    while lines and not lines[-1].strip():
        lines.pop()
    has_suffix = suffix in (".csv", ".tsv")
    head = [line for line in lines if line.strip()][:3]
    headers: list[tuple[tuple[bool, float, int], Header]] = []
    for delimiter in _AS_TEXT:
        if not has_suffix and not any(delimiter in line for line in head):
            continue
        rows = [[] if isinstance(row, str) else row for _, row in _rows(lines, delimiter)]
        if rows and not is_whole:
            rows.pop()  # it may be cut
        if len(rows) < 2 or not rows[0]:
            continue
        header = Header(delimiter, tuple(cell.strip() for cell in rows[0]))
        share = _share_of_whole_rows(rows[1:], len(rows[0]))
        has_field = field in header.columns
        has_names = all(map(_NAME.fullmatch, rows[0])) and re.search(r"[^\W\d]", "".join(rows[0]))
        is_even = _is_even(rows, delimiter)
        if len(rows[0]) == 1:
            is_quoted = has_names and share == 1 and any(line[:1] == '"' for line in lines[1:])
            is_delimiter = delimiter == ("," if suffix == ".csv" else "\t")
            is_table = has_suffix and is_delimiter and (has_field or is_quoted)
        elif has_suffix:
            is_table = has_field or is_even
            if has_names and not is_table:
                uncut = None if is_whole else _rows_before_cut(lines, delimiter)
                is_cut = uncut is not None and (
                    len(uncut) < 2 or _share_of_whole_rows(uncut[1:], len(rows[0])) >= 0.5
                )
                is_table = share >= 0.5 or is_cut
        else:
            is_table = is_even or (has_field and share >= 0.8)
        if is_table:
            headers.append(((has_field, share, len(rows[0])), header))
    return max(headers)[1] if headers else None


def _share_of_whole_rows(rows: Iterable[Row], num_columns: int) -> float:
    """Return the share of the rows that are not blank which have as many cells as the header."""
    filled = [row for row in rows if row]
    return sum(len(row) == num_columns for row in filled) / max(1, len(filled))


def _rows_before_cut(lines: Iterable[str], delimiter: str) -> list[Row] | None:
    """Return the rows before one that the end of the lines cuts within quotes, or None."""
    rows: list[Row] = []
    for _, row in _quoted_rows(*_skip_excel_delimiter(lines), delimiter):
        if row == _OPEN_QUOTE:
            return rows
        rows.append([] if isinstance(row, str) else row)
    return None


def _is_even(rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Return whether rows have equally many cells and no prose's spaces behind delimiters."""
    return (
        len(rows) > _MIN_ROWS
        and all(len(row) == len(rows[0]) for row in rows)
        # Otherwise it is an indentation, or verse with commas at the ends of lines.
        and all(any(row[column].strip() for row in rows) for column in (0, -1))
        and not (delimiter in ",;" and any(cell[:1] == " " for row in rows for cell in row))
        and not (delimiter == "|" and any(cell[-1:] == "<" for cell in rows[0]))  # <|mark|>
    )


def read_rows(
    path: str, lines: Iterable[str], header: Header, field: str
) -> Iterator[tuple[int, dict[str, str] | InputError]]:
    """Yield line number and {field: text} of each row, or the error of a damaged row.

    Raises:
      InputError: there is no column `field`, or two.
    """
    columns = header.columns
    if columns.count(field) != 1:
        names = ", ".join(repr(name[:30]) for name in columns)
        problem = "two columns" if field in columns else "a table without a column"
        raise InputError(
            f"{path}: {problem} {field!r}: {names}. Choose one with --field, or write a header if "
            f"there is none. If it is text, {_AS_TEXT[header.delimiter]}."
        )
    index = columns.index(field)
    for number, row in itertools.islice(_rows(lines, header.delimiter), 1, None):
        if isinstance(row, str):
            yield number, InputError(f"{path}:{number}: not a row ({row}). Fix its quotes.")
        elif len(row) == len(columns):
            yield number, {field: row[index]}
        elif row:
            count = f"{len(row)} cells instead of {len(columns)}"
            yield number, InputError(f"{path}:{number}: {count}. Fix the row.")


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, Row]]:
    """Yield the number of the first line and the cells of each row; blank lines have none."""
    remaining, first = _skip_excel_delimiter(lines)
    if delimiter == "\t":
        yield from _tab_rows(remaining, first)
        return
    yield from _quoted_rows(remaining, first, delimiter)


def _skip_excel_delimiter(lines: Iterable[str]) -> tuple[Iterator[str], int]:
    """Return the lines from the header on, and its number."""
    remaining = iter(lines)
    first = 1
    for line in remaining:
        if not _EXCEL_DELIMITER.fullmatch(line):
            return itertools.chain([line], remaining), first
        first += 1
    return remaining, first


def _quoted_rows(lines: Iterator[str], number: int, delimiter: str) -> Iterator[tuple[int, Row]]:
    """Yield rows whose cells may be in double quotes, with line ends in them.

    After an error, the line after the row's first one begins the next row. A quote is open if the
    lines, or those of the size that a document may have, do not close it.
    """
    pending: deque[str] = deque()  # lines to be read again
    parts: list[str] = []  # of the row
    size = 0  # of the row in memory

    def feed() -> Iterator[str]:
        nonlocal size
        while size <= MAX_DOCUMENT_BYTES:
            line = pending.popleft() if pending else next(lines, None)
            if line is None:
                return
            parts.append(line)
            size += len(line) + LINE_BYTES
            yield f"{line}\n"

    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        parts.clear()
        size = 0
        try:
            row: Row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row = _OPEN_QUOTE if "unexpected end" in str(error) else str(error)
            pending.extendleft(reversed(parts[1:]))
            del parts[1:]
            reader = csv.reader(feed(), delimiter=delimiter, strict=True)
        yield number, row
        number += len(parts)


def _tab_rows(lines: Iterator[str], number: int) -> Iterator[tuple[int, Row]]:
    """Yield rows with tabs between cells.

    A cell in double quotes is unquoted as pandas and Excel write it: with doubled quotes, tabs or
    line ends in it. Other quotes are text.
    """
    columns = 0
    pending: deque[str] = deque()  # lines to be read again

    def read() -> str | None:
        return pending.popleft() if pending else next(lines, None)

    line = read()
    while line is not None:
        row = line.split("\t") if line.strip() else []
        following = read()
        size = 1  # lines of the row
        if line.startswith('"') or '\t"' in line:
            parts, quotes = [line], line.count('"')
            while (
                quotes % 2
                and following is not None
                and len(parts) < _MAX_CELL_LINES
                # If this row and the next are whole, the open quote is text.
                and (min(len(row), following.count("\t") + 1) < columns or columns < 2)
            ):
                parts.append(following)
                quotes += following.count('"')
                following = read()
            try:
                (row,) = csv.reader((f"{part}\n" for part in parts), delimiter="\t", strict=True)
                size = len(parts)
            except (csv.Error, ValueError):
                if len(parts) > 1:
                    pending.extendleft(() if following is None else (following,))
                    pending.extendleft(reversed(parts[2:]))
                    following = parts[1]
        columns = columns or len(row)
        yield number, row
        number, line = number + size, following
