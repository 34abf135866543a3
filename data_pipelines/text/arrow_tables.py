"""Values and rows of Parquet and Arrow files, read in small batches."""

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote
from data_pipelines.schema import check_regular, check_schema

SUFFIXES = (".parquet", ".arrow", ".feather")
_BATCH_ROWS = 1024
_BUFFER_BYTES = 1 << 20  # of a remote file, read at a time


def read_column(path: epath.Path, column: str) -> Iterator[Any]:
    """Yield the values of a column in order, None for a null.

    Args:
      path: a Parquet file, or an Arrow file or stream (the cache format of Hugging Face's
        datasets), by suffix.
      column: name of the column; OUTER.INNER for a field of a struct column.

    Raises:
      InputError: the file is damaged or has no such column.
    """
    for batch in _batches(path, column):
        yield from _to_list(path, _column(batch, column))


def read_rows(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yield the rows in order as {column: value}; raises as `read_column`."""
    for batch in _batches(path, None):
        yield from _to_list(path, batch)


def _to_list(path: epath.Path, values: Any) -> list[Any]:
    try:
        rows: list[Any] = values.to_pylist()
        return rows
    except UnicodeDecodeError as error:  # of the name of a column
        raise InputError(f"{path}: damaged ({error}). Download it again.") from None


def _batches(path: epath.Path, column: str | None) -> Iterator[Any]:
    import pyarrow

    read_batches = _parquet if path.suffix == ".parquet" else _arrow
    try:
        check_regular(path, "Name a file.")
        with _open(path) as file:
            for batch in read_batches(path, file, column):
                batch.validate(full=True)  # reading a damaged batch would end the process
                yield batch
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged ({error}). Download it again.") from None


class _RemoteFile(io.RawIOBase):
    """A remote file, for pyarrow: TensorFlow's `GFile` lacks `closed` and others of its methods."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end of the file."""
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position and return it."""
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        """Return the position."""
        position: int = self._file.tell()
        return position


@contextlib.contextmanager
def _open(path: epath.Path) -> Iterator[Any]:
    """Yield a file that pyarrow can read."""
    with path.open("rb") as file:
        if is_remote(path):
            yield io.BufferedReader(_RemoteFile(file), _BUFFER_BYTES)
        else:
            yield file


def _parquet(path: epath.Path, file: Any, column: str | None) -> Iterator[Any]:
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    _check_column(path, column, table.schema_arrow)
    yield from table.iter_batches(_BATCH_ROWS, columns=None if column is None else [column])


def _arrow(path: epath.Path, file: Any, column: str | None) -> Iterator[Any]:
    from pyarrow import ipc

    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    if is_file:
        reader = ipc.open_file(file)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = batches = ipc.open_stream(file)
    _check_column(path, column, reader.schema)
    yield from batches


def _check_column(path: epath.Path, column: str | None, schema: Any) -> None:
    if column is None:
        return
    names = schema.empty_table().flatten().column_names  # OUTER.INNER for a field of a struct
    if column not in names:
        raise InputError(
            f"{path}: no column {column!r}, only {', '.join(sorted(names)) or 'none'}. Choose one "
            "with --field."
        )


def _column(batch: Any, column: str) -> Any:
    outer, _, inner = column.partition(".")
    if column in batch.schema.names:
        return batch.column(column)
    return batch.column(outer).field(inner)


def read_class_names(path: epath.Path) -> dict[str, list[str]]:
    """Return the class names of columns, from the schema metadata of Hugging Face's datasets.

    Args:
      path: a Parquet or Arrow file.
    """
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        with _open(path) as file:
            if path.suffix == ".parquet":
                schema = parquet.read_schema(file)
            else:
                is_file = file.read(6) == b"ARROW1"
                file.seek(0)
                schema = (ipc.open_file if is_file else ipc.open_stream)(file).schema
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged ({error}). Download it again.") from None
    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info.get("info", {}).get("features", {})
        names = {column: _class_names(feature) for column, feature in features.items()}
        check_schema("", names, {str: [str]}, "")
    except (ValueError, AttributeError, TypeError, IndexError, RecursionError):
        return {}
    return {column: value for column, value in names.items() if value}


def _class_names(feature: Any) -> list[str]:
    """Return the names of a ClassLabel, or of the ClassLabel in a list; [] for another feature."""
    if isinstance(feature, list):
        feature = feature[0]
    if isinstance(feature, dict) and "names" in feature:
        names: list[str] = feature["names"]
        return names
    return _class_names(feature["feature"]) if "feature" in feature else []
