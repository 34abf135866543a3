"""CSV and TSV: rows of fields, with quotes and separators detected by content."""

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_object
from data_pipelines.text.lines import read_lines

# A field with quotes around it, which may hold tabs, line ends and doubled quotes; or one without.
_FIELD = re.compile(r'("(?>[^"]*(?:""[^"]*)*)"|[^"\t]*)\t')
_NEEDS_QUOTES = re.compile('[\t\r\n"]')
_NUMBER = re.compile(r"[-+.\d]*(?:e[-+]?\d+)?", re.IGNORECASE)
_MIN_QUOTED_FIELDS = 5  # that show that quotes are markup if none of them needs its quotes
_log = logging.getLogger("data_pipelines")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}

csv.field_size_limit(2**31 - 1)  # a field may be a whole document

NumberedRow = tuple[int, list[str]]  # number of its first line, and its fields


class DelimitedRows(NamedTuple):
    """Content of a file.

    Attributes:
      columns: names of the columns.
      rows: the rows, with a field for each column.
      numbers: number of each of them in the file, from 0.
      bad: an error for each other row, without its full stop.
    """

    columns: list[str]
    rows: list[NumberedRow]
    numbers: list[int]
    bad: list[str]


def read_delimited(
    path: epath.Path, suffix: str, columns: Sequence[str] = (), keep_quotes: bool = False
) -> DelimitedRows:
    """Read a file whose fields are separated by commas, semicolons or tabs.

    CSV has quotes around fields with separators, quotes or line ends. In TSV quotes are text, as in
    the files of GLUE, unless all of them are those of a writer of CSV, such as pandas. Names of the
    header are stripped. Columns without a name are left out. Line ends within quotes are those of
    the file, so that offsets into a text stay valid.

    Args:
      path: the file.
      suffix: ".csv" for commas, or semicolons if the header has no commas; else tabs.
      columns: names of the columns of a file without a header.
      keep_quotes: leave the quotes of TSV as they are.

    Raises:
      InputError: the file is damaged, or the header has other separators or a name twice.
    """
    lines = list(read_lines(path, keep_line_ends=True))
    if not columns:
        _reject_json(path, lines)
    if suffix == ".csv":
        numbered = iter(_csv_rows(path, iter(lines)))
    else:
        if len(columns) != 1:
            _check_separator(path, lines)
        numbered = iter(_tsv_rows(path, lines, keep_quotes))
    names = list(columns)
    if not names:
        names = [name.strip(" \t\xa0\ufeff") for name in next(numbered, (1, []))[1]]
        _check_header(path, names)
    named = [i for i, name in enumerate(names) if name] or [*range(len(names))]
    rows: list[NumberedRow] = []
    numbers: list[int] = []
    bad: list[str] = []
    unnamed: list[tuple[int, str]] = []
    for index, (number, values) in enumerate(numbered):
        # Excel writes the header "text,label,," and may end rows after their last value.
        if not named[-1] < len(values) <= len(names):
            bad.append(
                f"{path}:{number}: {len(values)} fields instead of {len(names)}. Fix the row"
            )
        elif values == names and len(names) > 1:
            fix = "Delete the row if that is a header, name the columns if not with data.columns"
            bad.append(f"{path}:{number}: repeats the first line. {fix}")
        elif len(named) == len(names):
            rows.append((number, values))
            numbers.append(index)
        else:
            rows.append((number, [values[i] for i in named]))
            numbers.append(index)
            # The first column without a name is the index of pandas.
            unnamed += [
                (number, v) for i, v in enumerate(values) if i and not names[i] and v.strip()
            ]
    if unnamed:
        _log.warning(
            "%s: columns without a name are left out; %d of their fields have text, such as %.60r "
            "in line %d.",
            path,
            len(unnamed),
            *reversed(unnamed[0]),
        )
    return DelimitedRows([names[i] for i in named], rows, numbers, bad)


def _csv_rows(path: epath.Path, lines: Iterator[str]) -> list[NumberedRow]:
    """Return number of the first line and fields of each row that is not empty."""
    first = next(lines, "")
    skipped = 0
    delimiter = ","
    if match := re.fullmatch(r'"?sep=([,;\t])"?', first.strip("\ufeff \r\n")):  # Excel's
        delimiter, skipped, first = match[1], 1, next(lines, "")
    else:
        separators = {*re.sub('"[^"]*"', "", first)} & {",", ";", "\t"}
        if separators == {";"}:
            delimiter = ";"
        elif separators == {"\t"}:
            raise _other_separator(path, "\t", ".csv")
    if delimiter != ",":
        _log.info(
            "%s: columns are separated by %s: %r.", path, _NAMES[delimiter], first.rstrip()[:60]
        )
    all_lines = [first, *lines]
    rows = list(_parse_csv(path, all_lines, delimiter, skipped))
    spaced = (field for _, row in rows for field in row if field.lstrip(" ")[:1] == '"' != field[0])
    if example := next(spaced, ""):
        try:
            others = list(_parse_csv(path, all_lines, delimiter, skipped, skip_spaces=True))
        except InputError:
            return rows
        if _count_bad(others) <= _count_bad(rows):
            _log.info("%s: spaces before quotes are left out, as before %.60r.", path, example)
            return others
    return rows


def _parse_csv(
    path: epath.Path,
    lines: Sequence[str],
    delimiter: str,
    skipped: int,
    skip_spaces: bool = False,
) -> Iterator[NumberedRow]:
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        skipinitialspace=skip_spaces,
        strict=True,
    )
    number = 1
    try:
        for values in reader:
            if values:
                yield number + skipped, values
            number = reader.line_num + 1
    except csv.Error as error:
        location = f"{path}:{number + skipped}"
        raise InputError(f"{location}: not CSV ({error}). Fix its quotes.") from None


def _tsv_rows(path: epath.Path, lines: list[str], keep_quotes: bool) -> list[NumberedRow]:
    """Return number of the first line and fields of each row that is not blank."""
    verbatim = [
        (i, line.rstrip("\r\n").split("\t")) for i, line in enumerate(lines, 1) if line.strip()
    ]
    rows = _parse_quoted(lines, verbatim)
    if rows is None or keep_quotes:
        _warn_of_quotes(path, verbatim)
        return verbatim
    examples = ((i, field) for i, fields in rows for field in fields if field.startswith('"'))
    number, field = next(examples)
    _log.info(
        "%s: %d fields are in quotes, as in CSV, and read without, such as %.60r in line %d.",
        path,
        1 + sum(1 for _ in examples),
        field,
        number,
    )
    return [(i, [_unquote(field) for field in fields]) for i, fields in rows]


def _parse_quoted(lines: Sequence[str], verbatim: list[NumberedRow]) -> list[NumberedRow] | None:
    """Return the rows of a TSV file with their quotes; None if the quotes are text.

    Quotes are those of a writer of CSV if every field with a quote begins and ends with one and has
    them in pairs within, and if all fields of text are in quotes, or those alone that need it.
    """
    if not any('"' in line for line in lines):
        return None
    rows: list[NumberedRow] = []
    numbered = enumerate(lines, 1)
    for start, line in numbered:
        parts, num_quotes = [line], line.count('"')
        while num_quotes % 2:  # a field continues on the next line
            _, following = next(numbered, (0, None))
            if following is None:
                return None
            parts.append(following)
            num_quotes += following.count('"')
        row = "".join(parts).rstrip("\r\n")
        fields = _split_quoted(row) if num_quotes else row.split("\t")
        if fields is None:
            return None
        if len(parts) > 1 or line.strip():
            rows.append((start, fields))
    quoted = [field for _, fields in rows for field in fields if field.startswith('"')]
    num_bad, num_bad_verbatim = _count_bad(rows), _count_bad(verbatim)
    if any(re.search("[\t\r\n]", field) for field in quoted):
        num_bad += 1  # quotes with a tab or a line end between may belong to two fields
    if num_bad > num_bad_verbatim:
        return None
    needed = [_NEEDS_QUOTES.search(field[1:-1]) is not None for field in quoted]
    if all(needed):
        return rows
    others = [
        field
        for _, fields in rows
        for field in fields
        if not (field.startswith('"') and _NEEDS_QUOTES.search(field[1:-1]))
    ]
    is_excel = all(("," in field) == field.startswith('"') for field in others)
    is_all = all(field.startswith('"') or _NUMBER.fullmatch(field) for field in others)
    if (is_excel or is_all) and (any(needed) or len(quoted) >= _MIN_QUOTED_FIELDS):
        return rows
    return None


def _split_quoted(row: str) -> list[str] | None:
    """Return the fields of a row with their quotes; None if a quote is within a field."""
    fields, position = [], 0
    row += "\t"
    while position < len(row):
        match = _FIELD.match(row, position)
        if not match:
            return None
        fields.append(match[1])
        position = match.end()
    return fields


def _unquote(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _count_bad(rows: list[NumberedRow]) -> int:
    return sum(len(fields) != len(rows[0][1]) for _, fields in rows)


def _warn_of_quotes(path: epath.Path, rows: Sequence[NumberedRow]) -> None:
    """Warn of quotes that are read as text and may be those of a writer of CSV."""
    around: Counter[int] = Counter()  # fields in quotes of each column
    num_quotes = 0
    doubled: list[tuple[int, str]] = []
    example = (0, "")
    for number, fields in rows:
        if not any('"' in field for field in fields):
            continue
        for i, field in enumerate(fields):
            num_quotes += '"' in field
            if len(field) > 1 and field[0] == field[-1] == '"':
                around[i] += 1
                example = example if example[0] else (number, field)
                if '""' in field[1:-1] and '"' not in field[1:-1].replace('""', ""):
                    doubled.append((number, field))
    if max(around.values(), default=0) > len(rows) / 2 or len(doubled) > num_quotes / 2:
        number, field = doubled[0] if doubled else example
        _log.warning(
            "%s: quotes around fields are read as text, such as %.60r in line %d. If a writer of "
            "CSV added them, write the file again without.",
            path,
            field,
            number,
        )


def _reject_json(path: epath.Path, lines: Sequence[str]) -> None:
    try:
        parse_object("", lines[0] if lines else "")
    except InputError:
        return
    raise InputError(f"{path}: the first line is a JSON object. Rename it to end in .jsonl.")


def _check_separator(path: epath.Path, lines: Sequence[str]) -> None:
    """Raise InputError if the first line and most others have commas or semicolons, and no tabs."""
    first = lines[0] if lines else ""
    if any("\t" in line for line in lines) or first.startswith("__label__"):  # fastText
        return
    for mark in ",;":
        if mark in first and 2 * sum(mark in line for line in lines) > len(lines):
            raise _other_separator(path, mark, ".tsv")


def _check_header(path: epath.Path, columns: Sequence[str]) -> None:
    duplicates = sorted(name for name, count in Counter(columns).items() if count > 1 and name)
    if duplicates:
        raise InputError(f"{path}: two columns {duplicates[0]!r}. Rename one.")
    if len(columns) == 1 and "|" in columns[0]:
        raise InputError(f"{path}: bars between the columns. Write commas.")


def _other_separator(path: epath.Path, separator: str, suffix: str) -> InputError:
    better, expected = (".tsv", ",") if suffix == ".csv" else (".csv", "\t")
    return InputError(
        f"{path}: {_NAMES[separator]} between the columns, the suffix stands for "
        f"{_NAMES[expected]}. Rename it to end in {better}."
    )
