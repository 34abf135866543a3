"""Tables of examples: CSV, TSV, JSON lines, Parquet, Arrow or TensorFlow Datasets, row by row."""

import csv
import itertools
import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file
from data_pipelines.text import arrow_tables
from data_pipelines.text.lines import read_lines
from data_pipelines.text.sources import tfds_records

COMPRESSION_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_JSON = (".json", ".jsonl", ".ndjson")
LIST_SUFFIXES = (*_JSON, *arrow_tables.SUFFIXES)  # whose rows may hold lists
SUFFIXES = (".csv", ".tsv", ".txt", *LIST_SUFFIXES)
_log = logging.getLogger("data_pipelines")

csv.field_size_limit(2**31 - 1)  # a field may be a whole document


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
      place: where it stands, for messages, such as "train.csv line 7".
      values: by the names of the columns.
    """

    place: str
    values: dict[str, Any]

    def text(self, columns: Sequence[str]) -> str:
        """The text of some columns, joined by spaces where there are several.

        Raises:
          InputError: one is missing, is no text or is empty.
        """
        parts = []
        for column in columns:
            value = self.value(column)
            known = isinstance(value, str | int | float) and value == value  # NaN is not
            if isinstance(value, bool) or not known:
                raise InputError(
                    f"{self.place}: column {column!r} is {value!r}, which is no text: mend the row."
                )
            parts.append(str(value).strip())
            if not parts[-1]:
                raise InputError(
                    f"{self.place}: column {column!r} is empty: leave the row out, or write its "
                    "text."
                )
        return " ".join(parts)

    def first_blank_column(self, columns: Sequence[str]) -> str:
        """The first of some columns that is there and has no text; "" where none is."""
        values = ((column, self.values.get(column, "-")) for column in columns)
        nothing = (None, "")  # and NaN, which is nothing and not itself
        stripped = ((name, v.strip() if isinstance(v, str) else v) for name, v in values)
        return next((name for name, v in stripped if v in nothing or v != v), "")

    def value(self, column: str) -> Any:
        """The value in a column.

        Raises:
          InputError: there is no such column.
        """
        if column not in self.values:
            raise InputError(
                f"{self.place}: there is no column {column!r}, but "
                f"{', '.join(map(repr, self.values)) or 'none'}: name one of these."
            )
        return self.values[column]


def read_table(path: epath.PathLike, max_bad_fraction: float = 0.0) -> list[TableRow]:
    """The rows of a file, of which its name says what it is, perhaps compressed.

    - `.csv`: a header, commas, fields in double quotes where they hold commas, quotes or line ends;
    - `.tsv`, `.txt`: a header, tabs, and no quoting: quotes are text;
    - `.jsonl`, `.json`, `.ndjson`: an object on each line;
    - `.parquet`, `.arrow`, `.feather`.

    Args:
      max_bad_fraction: share of the rows that may be of too few or too many fields; they are left out,
        and counted.
    Raises:
      InputError: there is no such file, it is of none of these, or more of its rows are bad.
    """
    path = check_file(path)
    kind = file_format(path)
    if kind in arrow_tables.SUFFIXES:
        if path.suffix in COMPRESSION_SUFFIXES:
            raise InputError(f"{path} is compressed: its format does so by itself, so unpack it.")
        rows = [
            TableRow(f"{path} row {i}", row)
            for i, row in enumerate(arrow_tables.read_rows(path), 1)
        ]
    elif kind in _JSON:
        rows = list(parse_objects(str(path), read_lines(path, _raise_error)))
    elif kind in (".csv", ".tsv", ".txt"):
        rows = _read_delimited(path, "," if kind == ".csv" else "\t", max_bad_fraction)
    else:
        raise InputError(
            f"{path} is no table by its name: let it end in .csv, .tsv, .jsonl or .parquet."
        )
    if not rows:
        raise InputError(f"{path} has no rows: give a file with examples.")
    return rows


def is_table(path: epath.PathLike) -> bool:
    """Whether a file has columns by its name, and is not lines of text or JSON."""
    return file_format(epath.Path(path)) in (".csv", ".tsv", *arrow_tables.SUFFIXES)


def file_format(path: epath.Path) -> str:
    """The suffix of a file, that of what is compressed."""
    name = path.name
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return epath.Path(name).suffix.lower()


def read_tfds_table(source: str, split: str, numbered: Collection[str] = ()) -> list[TableRow]:
    """The rows of a split of `tfds:NAME/CONFIG`; classes by their names, None for unlabelled ones.

    Args:
      numbered: columns whose classes are left as numbers.
    Raises:
      InputError: see `tfds_records`.
    """
    names = {
        column: classes
        for column, classes in _class_names(source).items()
        if column not in numbered
    }
    return [
        TableRow(
            f"{source} {split} record {i}",
            {name: _to_json_value(value, names.get(name)) for name, value in record.items()},
        )
        for i, record in enumerate(tfds_records(source, split), 1)
    ]


def _to_json_value(value: Any, classes: Sequence[str] | None) -> Any:
    """A value of a record as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _to_json_value(inner, None) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_to_json_value(inner, classes) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value  # what is no text is refused where it is to be one
    if classes is not None:
        return classes[value] if value >= 0 else None
    return value


def _class_names(source: str) -> dict[str, list[str]]:
    import tensorflow_datasets as tfds

    try:
        features = tfds.builder(source.removeprefix("tfds:")).info.features
    except ValueError:
        return {}  # reading the records says so
    found = {}
    for name, feature in (features or {}).items():
        inner = getattr(feature, "feature", feature)  # that of a sequence
        if isinstance(inner, tfds.features.ClassLabel) and inner.names:
            found[name] = inner.names
    return found


def parse_objects(name: str, lines: Iterable[str]) -> Iterator[TableRow]:
    """A row for each line that is not empty; see `parse_object`."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield parse_object(f"{name} line {number}", line)


def parse_object(place: str, line: str) -> TableRow:
    """The row that a line of JSON is.

    Raises:
      InputError: it is no object.
    """
    try:
        values = parse_json(line)
    except ValueError as error:
        raise InputError(f"{place} is no JSON ({error}): write an object on it.") from None
    if not isinstance(values, dict):
        raise InputError(f"{place} is {type(values).__name__} and no JSON object: write one.")
    return TableRow(place, values)


def _read_delimited(path: epath.Path, delimiter: str, max_bad_fraction: float) -> list[TableRow]:
    lines = read_lines(path, _raise_error)
    if delimiter == ",":
        head = list(itertools.islice(lines, 2))
        _reject_semicolons(path, head)
        lines = itertools.chain(head, lines)
        reader = csv.reader((f"{line}\n" for line in lines), strict=True)
        numbered = _number_rows(path, reader)
    else:
        numbered = ((i, line.split("\t")) for i, line in enumerate(lines, 1) if line.strip())
    columns = next(numbered, (1, []))[1]
    _check_header(path, columns, delimiter)
    rows, bad = [], []
    for number, values in numbered:
        place = f"{path} line {number}"
        if len(values) == len(columns):
            rows.append(TableRow(place, dict(zip(columns, values, strict=True))))
        else:
            bad.append(
                f"{place} has {len(values)} fields where the header has {len(columns)}: mend the "
                "row"
            )
    check_bad_rows(bad, len(rows) + len(bad), max_bad_fraction)
    return rows


def check_bad_rows(bad: Sequence[str], total: int, max_bad_fraction: float) -> None:
    """Refuses more bad rows than may be left out, and tells of those that are.

    Args:
      bad: a complaint of each, without its full stop.
    Raises:
      InputError: it is the first of the complaints, of `total` rows.
    """
    if len(bad) > math.floor(max_bad_fraction * total):
        more = f" ({len(bad)} of {total} rows are bad)" if len(bad) > 1 else ""
        raise InputError(f"{bad[0]}, or allow bad rows with data.max_bad_fraction{more}.")
    if bad:
        _log.warning("%d of %d rows are bad and left out; the first: %s.", len(bad), total, bad[0])


def _number_rows(path: epath.Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Line number, of its first line, and fields of each row that is not empty."""
    first = 1
    try:
        for values in reader:
            if values:
                yield first, values
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path} line {first} is no CSV ({error}): mend its quotes.") from None


def _reject_semicolons(path: epath.Path, head: Sequence[str]) -> None:
    """Refuses semicolons in the first two lines, unparsed: quotes beside them are no CSV at all."""
    counts = {line.count(";") for line in head}
    if len(head) == 2 and len(counts) == 1 and any(counts) and not re.search("[,\t]", head[0]):
        raise InputError(
            f"{path} has semicolons between its columns where its name says commas: save it with "
            "commas."
        )


def _check_header(path: epath.Path, columns: Sequence[str], delimiter: str) -> None:
    other = "\t" if delimiter == "," else ","
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(f"{path} has two columns {twice[0]!r}: name them apart.")
    if len(columns) == 1 and other in columns[0]:
        tab, comma = "tabs", "commas"
        has, wants = (tab, comma) if other == "\t" else (comma, tab)
        raise InputError(
            f"{path} has {has} between its columns where its name says {wants}: let it end in "
            f"{'.tsv' if has == tab else '.csv'}."
        )


def _raise_error(complaint: InputError) -> None:
    raise complaint
