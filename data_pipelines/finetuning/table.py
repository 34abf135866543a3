"""Tables of examples: CSV, TSV, JSON lines, Parquet, Arrow or TensorFlow Datasets."""

import csv
import itertools
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_object
from data_pipelines.paths import check_file
from data_pipelines.text import arrow_tables
from data_pipelines.text.lines import read_lines
from data_pipelines.text.tfds import read_tfds_class_names, read_tfds_records

_COMPRESSION_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_JSON = (".json", ".jsonl", ".ndjson")
LIST_SUFFIXES = (*_JSON, *arrow_tables.SUFFIXES)  # formats whose rows may hold lists
SUFFIXES = (".csv", ".tsv", ".txt", *LIST_SUFFIXES)
_log = logging.getLogger("data_pipelines")

csv.field_size_limit(2**31 - 1)  # a field may be a whole document


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
      location: file and line for error messages, such as "train.csv:7".
      values: values by column name.
    """

    location: str
    values: dict[str, Any]

    def text(self, columns: Sequence[str]) -> str:
        """Return the text of one column, or of several columns joined by spaces.

        Raises:
          InputError: a column is missing, empty, or neither text nor a number.
        """
        parts = []
        for column in columns:
            value = self.value(column)
            is_text = isinstance(value, str | int | float) and value == value  # false for NaN
            if isinstance(value, bool) or not is_text:
                raise InputError(
                    f"{self.location}: column {column!r} is {value!r}, not text. Fix the row."
                )
            parts.append(str(value).strip())
            if not parts[-1]:
                raise InputError(
                    f"{self.location}: column {column!r} is empty. Write its text or delete the "
                    "row."
                )
        return " ".join(parts)

    def first_blank_column(self, columns: Sequence[str]) -> str:
        """Return the first column that exists and is blank, None or NaN; "" if there is none."""
        values = ((column, self.values[column]) for column in columns if column in self.values)
        stripped = ((name, v.strip() if isinstance(v, str) else v) for name, v in values)
        return next((name for name, v in stripped if v in (None, "") or v != v), "")  # v != v: NaN

    def value(self, column: str) -> Any:
        """Return the value of a column.

        Raises:
          InputError: the column does not exist.
        """
        if column not in self.values:
            raise InputError(
                f"{self.location}: no column {column!r}, only "
                f"{', '.join(map(repr, self.values)) or 'none'}. Name one of these."
            )
        return self.values[column]


def read_table(
    path: epath.PathLike, max_bad_fraction: float = 0.0, tsv_columns: Sequence[str] = ()
) -> list[TableRow]:
    """Read a table, perhaps compressed; the suffix of its name decides the format.

    - `.csv`: a header, commas, double quotes around fields with commas, quotes or line ends;
    - `.tsv`, `.txt`: a header, tabs, no quoting: quotes are text;
    - `.jsonl`, `.json`, `.ndjson`: one object per line;
    - `.parquet`, `.arrow`, `.feather`.

    Args:
      path: the file.
      max_bad_fraction: maximal fraction of the rows that may have too few or too many fields. Bad
        rows are skipped with a warning.
      tsv_columns: column names of a file with tabs and without a header, whatever its suffix.

    Raises:
      InputError: the file does not exist, is empty, has another format or more bad rows.
    """
    path = check_file(path)
    suffix = file_format(path)
    if tsv_columns:
        rows = _read_delimited(path, "\t", max_bad_fraction, tsv_columns)
    elif suffix in arrow_tables.SUFFIXES:
        if path.suffix in _COMPRESSION_SUFFIXES:
            raise InputError(f"{path}: {suffix} inside another compression. Decompress it first.")
        rows = [
            TableRow(f"{path} row {i}", row)
            for i, row in enumerate(arrow_tables.read_rows(path), 1)
        ]
    elif suffix in _JSON:
        rows = list(_read_json_lines(path))
    elif suffix in (".csv", ".tsv", ".txt"):
        rows = _read_delimited(path, "," if suffix == ".csv" else "\t", max_bad_fraction)
    else:
        raise InputError(
            f"{path}: unknown table format. Use a file that ends in .csv, .tsv, .jsonl or .parquet."
        )
    if not rows:
        raise InputError(f"{path}: no rows. Give a file with examples.")
    return rows


def is_table(path: epath.PathLike) -> bool:
    """Return whether inputs in a file are rows for `read_table`.

    Inputs in `.txt` and JSON lines, which `read_table` also knows, are read line by line.
    """
    return file_format(epath.Path(path)) in (".csv", ".tsv", *arrow_tables.SUFFIXES)


def file_format(path: epath.Path) -> str:
    """Return the lower-case suffix of a file name, without the suffix of a compression."""
    name = path.name
    for suffix in _COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return epath.Path(name).suffix.lower()


def read_tfds_table(
    source: str, split: str, class_id_columns: Collection[str] = ()
) -> list[TableRow]:
    """Read a split of a TensorFlow Datasets builder.

    Class ids become class names, those of unlabeled rows None.

    Args:
      source: `tfds:NAME/CONFIG`.
      split: name of the split.
      class_id_columns: columns in which class ids are not replaced by class names.

    Raises:
      InputError: see `read_tfds_records`.
    """
    class_names = {
        column: names
        for column, names in read_tfds_class_names(source).items()
        if column not in class_id_columns
    }
    return [
        TableRow(
            f"{source} {split} record {i}",
            {name: _to_json_value(value, class_names.get(name)) for name, value in record.items()},
        )
        for i, record in enumerate(read_tfds_records(source, split), 1)
    ]


def _to_json_value(value: Any, class_names: Sequence[str] | None) -> Any:
    """Return a record's value as JSON types, class ids replaced by names if these are given."""
    if isinstance(value, Mapping):
        return {name: _to_json_value(inner, None) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_to_json_value(inner, class_names) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value  # rejected where text is expected
    if class_names is not None:
        return class_names[value] if value >= 0 else None
    return value


def _read_json_lines(path: epath.Path) -> Iterator[TableRow]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            location = f"{path}:{number}"
            yield TableRow(location, parse_object(location, line))


def _read_delimited(
    path: epath.Path, delimiter: str, max_bad_fraction: float, columns: Sequence[str] = ()
) -> list[TableRow]:
    lines = read_lines(path)
    if delimiter == ",":
        first_lines = list(itertools.islice(lines, 2))
        _reject_semicolons(path, first_lines)
        lines = itertools.chain(first_lines, lines)
        reader = csv.reader((f"{line}\n" for line in lines), strict=True)
        numbered = _number_rows(path, reader)
    else:
        numbered = ((i, line.split("\t")) for i, line in enumerate(lines, 1) if line.strip())
    if not columns:
        columns = next(numbered, (1, []))[1]
        _check_header(path, columns, delimiter)
    rows, bad = [], []
    for number, values in numbered:
        location = f"{path}:{number}"
        if len(values) == len(columns):
            rows.append(TableRow(location, dict(zip(columns, values, strict=True))))
        else:
            bad.append(f"{location}: {len(values)} fields instead of {len(columns)}. Fix the row")
    check_bad_rows(bad, len(rows) + len(bad), max_bad_fraction)
    return rows


def check_bad_rows(bad: Sequence[str], total: int, max_bad_fraction: float) -> None:
    """Check the number of bad rows and log how many are skipped.

    Args:
      bad: the error of each bad row, without its full stop.
      total: number of all rows.
      max_bad_fraction: maximal fraction of bad rows.

    Raises:
      InputError: there are more bad rows.
    """
    if len(bad) > math.floor(max_bad_fraction * total):
        count = f" ({len(bad)} of {total} rows are bad)" if len(bad) > 1 else ""
        raise InputError(f"{bad[0]}, or allow bad rows with data.max_bad_fraction{count}.")
    if bad:
        _log.warning("Skipped %d bad rows of %d. The first: %s.", len(bad), total, bad[0])


def check_unique_ids(ids: Sequence[str], locations: Sequence[str], unit: str) -> None:
    """Raise InputError if two examples, at `locations`, have the same id; `unit` names them."""
    location_of_id: dict[str, str] = {}
    for id_, location in zip(ids, locations, strict=True):
        if id_ in location_of_id:
            raise InputError(
                f"{location}: id {id_!r} is also at {location_of_id[id_]}. Give each {unit} "
                "another id."
            )
        location_of_id[id_] = location


def _number_rows(path: epath.Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the fields of each row that is not empty."""
    first = 1
    try:
        for values in reader:
            if values:
                yield first, values
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{first}: not CSV ({error}). Fix its quotes.") from None


def _reject_semicolons(path: epath.Path, first_lines: Sequence[str]) -> None:
    """Raise InputError if the first two lines have semicolons between columns.

    The lines are not parsed: with quotes next to semicolons they are not CSV.
    """
    counts = {line.count(";") for line in first_lines}
    has_other = first_lines and re.search("[,\t]", first_lines[0])
    if len(first_lines) == 2 and len(counts) == 1 and any(counts) and not has_other:
        raise InputError(f"{path}: semicolons between the columns. Save it with commas.")


def _check_header(path: epath.Path, columns: Sequence[str], delimiter: str) -> None:
    duplicates = sorted({name for name in columns if columns.count(name) > 1})
    if duplicates:
        raise InputError(f"{path}: two columns {duplicates[0]!r}. Rename one.")
    other = "\t" if delimiter == "," else ","
    if len(columns) == 1 and other in columns[0]:
        names = {",": "commas", "\t": "tabs"}
        suffix = ".csv" if other == "," else ".tsv"
        raise InputError(
            f"{path}: {names[other]} between the columns, the suffix stands for "
            f"{names[delimiter]}. Rename it to end in {suffix}."
        )
