"""Tables of examples: CSV, TSV, JSON lines, Parquet, Arrow or TensorFlow Datasets."""

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.delimited import read_delimited
from data_pipelines.parsing import parse_object, read_json_records
from data_pipelines.paths import check_file
from data_pipelines.text import arrow_tables
from data_pipelines.text.lines import read_lines
from data_pipelines.text.tfds import read_tfds_class_names, read_tfds_records
from data_pipelines.vocabulary.basic_tokenization import is_blank

_COMPRESSION_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
LIST_SUFFIXES = (*JSON_SUFFIXES, *arrow_tables.SUFFIXES)  # formats whose rows may hold lists
SUFFIXES = (".csv", ".tsv", ".txt", *LIST_SUFFIXES)
_ANSWERS = {"accept", "reject", "ignore"}  # of annotators in Prodigy
_MAX_NAME = 60  # characters of a column name
_WORKBOOKS = (".xlsx", ".xls", ".ods")
_log = logging.getLogger("data_pipelines")


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
      location: file and line for error messages, such as "train.csv:7".
      values: values by column name.
      number: number of the row in its file, from 0, rows that were skipped included; or None.
    """

    location: str
    values: dict[str, Any]
    number: int | None = None

    def text(self, columns: Sequence[str]) -> str:
        """Return the text of one column, or of several joined by spaces; some may be empty.

        Raises:
          InputError: a column is missing, all are empty, or one is neither text nor a number.
        """
        parts = []
        for column in columns:
            value = self.value(column)
            if len(columns) > 1 and self.first_blank_column((column,)):
                continue
            is_finite = isinstance(value, float) and math.isfinite(value)
            if isinstance(value, bool) or not (isinstance(value, str | int) or is_finite):
                raise InputError(
                    f"{self.location}: column {column!r} is {value!r}, not text. Fix the row."
                )
            parts.append(str(value).strip())
        if all(map(is_blank, parts)):
            problem = f"column {columns[0]!r} is empty"
            if len(columns) > 1:
                problem = f"columns {', '.join(map(repr, columns))} are empty"
            raise InputError(f"{self.location}: {problem}. Write its text or delete the row.")
        return " ".join(parts)

    def first_blank_column(self, columns: Sequence[str]) -> str:
        """Return the first column that exists and is blank, None or NaN; "" if there is none."""
        values = ((column, self.values[column]) for column in columns if column in self.values)
        stripped = ((name, "" if isinstance(v, str) and is_blank(v) else v) for name, v in values)
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
    path: epath.PathLike,
    max_bad_fraction: float = 0.0,
    columns: Sequence[str] = (),
    keep_quotes: bool = False,
    class_columns: Collection[str] = (),
) -> list[TableRow]:
    """Read a table, perhaps compressed; the suffix of its name decides the format.

    - `.csv`: a header, commas or semicolons, double quotes around fields that need them;
    - `.tsv`, `.txt`: a header, tabs; quotes are text unless all of them are those of CSV;
    - `.jsonl`, `.json`, `.ndjson`: one object per line, or all in one list or object;
    - `.parquet`, `.arrow`, `.feather`.

    Args:
      path: the file.
      max_bad_fraction: maximal fraction of the rows that may have too few or too many fields. Bad
        rows are skipped with a warning.
      columns: column names of a file without a header, with commas if it ends in .csv, else tabs.
      keep_quotes: leave the quotes of .tsv and .txt as they are, as GLUE's files need it.
      class_columns: columns of Parquet and Arrow files in which class ids become class names, if
        the schema has some, and those of unlabeled rows None.

    Raises:
      InputError: the file does not exist, is empty, has another format or more bad rows, or the
        schema has no name for a class id.
    """
    path = check_file(path)
    suffix, name = file_format(path), str(path)  # of epath, a microsecond for every location
    if columns and suffix != ".csv":
        suffix = ".tsv"
    if suffix in (".csv", ".tsv", ".txt"):
        table = read_delimited(path, suffix, columns, keep_quotes=keep_quotes)
        rows = [
            TableRow(f"{name}:{line}", dict(zip(table.columns, values, strict=True)), number)
            for (line, values), number in zip(table.rows, table.numbers, strict=True)
        ]
        check_bad_rows(table.bad, len(rows) + len(table.bad), max_bad_fraction)
    elif suffix in arrow_tables.SUFFIXES:
        if path.suffix in _COMPRESSION_SUFFIXES:
            raise InputError(f"{path}: {suffix} inside another compression. Decompress it first.")
        rows = [
            TableRow(f"{name} row {i}", row)
            for i, row in enumerate(arrow_tables.read_rows(path), 1)
        ]
        class_names = arrow_tables.read_class_names(path) if class_columns else {}
        for column in class_names.keys() & {*class_columns}:
            for row in rows if rows and column in rows[0].values else ():  # it may be lost
                row.values[column] = _class_names(row, column, class_names[column])
    elif suffix in JSON_SUFFIXES:
        rows = [
            TableRow(location, parse_object(location, row) if isinstance(row, str) else row)
            for location, row in read_json_records(str(path), read_lines(path))
        ]
    else:
        fix = ", such as the sheet saved as CSV UTF-8" if suffix in _WORKBOOKS else ""
        raise InputError(
            f"{path}: unknown table format. Use a file that ends in .csv, .tsv, .jsonl or "
            f".parquet{fix}."
        )
    if not rows:
        raise InputError(f"{path}: no rows. Give a file with examples.")
    return rows


def _class_names(row: TableRow, column: str, names: Sequence[str]) -> Any:
    """Return the value of a column, a class id or a list of them, with names for class ids."""

    def name(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        if value >= len(names):
            raise InputError(
                f"{row.location}: {value} in column {column!r} is not one of {len(names)} classes. "
                "Fix the row."
            )
        return names[value] if value >= 0 else None

    value = row.values[column]
    return [*map(name, value)] if isinstance(value, list) else name(value)


def describe_missing_column(rows: Sequence[TableRow], column: str, field: str) -> str:
    """Return problem and fix for a column that no row has.

    Args:
      rows: the rows of a table.
      column: name of the column.
      field: configuration field that names it.
    """
    known = dict.fromkeys(name for row in rows for name in row.values)
    if any(name.startswith("__label__") for name in known):
        return (
            "the lines are those of fastText. Write JSON lines with a text and a list of labels, "
            'such as {"text": "...", "label": ["..."]}.'
        )
    problem = f"there is no column {column!r}, but {', '.join(map(repr, known)) or 'none'}"
    if data := next((name for name in known if _is_data(name, [*known], rows)), ""):
        return (
            f"{problem}. The first line seems to be a row, as {data!r} is no name. Write a header, "
            "or name all columns with data.columns=text+label, in their order."
        )
    if not any(isinstance(value, str) for row in rows for value in row.values.values()):
        return f"{problem}, which have no text. Write rows with a text and a label."
    others = "COLUMN, or data.columns if the file has no header"
    similar = [name for name in known if _normalize(name) == _normalize(column)]
    return f"{problem}. Set {field}={similar[0] if len(similar) == 1 else others}."


def _normalize(name: str) -> str:
    return name.casefold().replace(" ", "").replace("_", "")


def _is_data(name: str, names: Sequence[str], rows: Sequence[TableRow]) -> bool:
    """Return whether the name of a column is a value: long, a number, or also in its rows."""
    is_number = name.replace(".", "", 1).isdecimal()
    has_numbers = names == [str(i) for i in range(len(names))]  # the names of pandas
    is_value = any(row.values.get(name) == name for row in rows)
    return len(name) > _MAX_NAME or is_value or (is_number and not has_numbers)


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


def accepted_rows(name: str, rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows whose label an annotator accepted, if this is an export of Prodigy."""
    rows = list(rows)
    answers = [row.values.get("answer") for row in rows]
    if not {"accept"} < {answer for answer in answers if isinstance(answer, str)} <= _ANSWERS:
        return rows
    kept = [row for row, answer in zip(rows, answers, strict=True) if answer == "accept"]
    _log.warning(
        "%s: left out %d of %d rows, whose 'answer' in Prodigy is not 'accept'.",
        name,
        len(rows) - len(kept),
        len(rows),
    )
    return kept


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
