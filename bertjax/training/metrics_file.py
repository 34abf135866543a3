"""WORKDIR/metrics.jsonl: one JSON object a line, with "step", "split" and the metrics.

The split is "train" or "eval"; runs that are trained in parallel have RUN/train and RUN/eval too.
An unknown metric is null. JSON has no notation for numbers that are not finite: they are the
strings "NaN", "Infinity" and "-Infinity", which Python's float() reads.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_bytes, is_remote
from data_pipelines.schema import check_schema, read_bytes

Metrics = Mapping[str, float | int | None]

_SCHEMA = {"step": int, "split": str}
_FIX = "Restore the file or move it away."
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def metrics_path(workdir: epath.PathLike) -> epath.Path:
    """Return the path of a run's metrics."""
    return epath.Path(workdir) / "metrics.jsonl"


def read_metrics(workdir: epath.PathLike) -> list[dict[str, Any]]:
    """Return the metrics of a run, one dictionary a line, oldest first.

    An unfinished last line, which a running or a killed process leaves, is skipped.

    Raises:
      InputError: the file does not exist, or a line of it is damaged.
    """
    path = metrics_path(workdir)
    if not path.exists():
        raise InputError(f"{path}: the file does not exist. Name the --workdir of a trained run.")
    return [
        {
            key: float(value) if key != "split" and isinstance(value, str) else value
            for key, value in entry.items()
        }
        for _, entry in _finished_lines(path)
    ]


def truncate_metrics(workdir: epath.PathLike, step: int) -> bytes:
    """Remove the lines after `step`, and an unfinished last line; return those that remain.

    A run that resumes from the checkpoint of `step` then ends with the same lines as a run without
    interruption. The file is replaced in one move, so a process killed here loses nothing.

    Raises:
      InputError: a line of the file is damaged.
    """
    path = metrics_path(workdir)
    if not path.exists():
        return b""
    kept = b"".join(line for line, entry in _finished_lines(path) if entry["step"] <= step)
    if len(kept) != path.stat().length:
        atomic_write_bytes(path, kept)
    return kept


class MetricsFile:
    """A tracker that appends to metrics.jsonl.

    On a local disk each line reaches the operating system in one call.

    Args:
      path: the file.
      before: its content, which is read only of a file in remote storage.
    """

    def __init__(self, path: epath.Path, before: bytes = b"") -> None:
        self._path, self._file = path, cast(Any, None)  # a rejected run leaves no file
        self._before = before

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates.

        Raises:
          OSError: the file cannot be written, or the disk is full; the file is named.
        """
        line = encode_line(step, split, metrics)
        with path_in_errors(self._path):
            if self._file is None and is_remote(self._path):
                self._file = RemoteFile(self._path, self._before)
            elif self._file is None:
                self._file = open(self._path, "ab", 0)  # noqa: SIM115 (closed by close)
            written = self._file.write(line)
        if written != len(line):
            raise OSError(f"{self._path}: the disk is full. Free space on it.")

    def flush(self) -> None:
        """Replace a remote file; a local one has every line already."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class RemoteFile:
    """A file in remote storage, where a file is only ever replaced as a whole.

    Nothing reaches the storage before `flush`.

    Args:
      path: the file.
      before: its content. It is not read later, when another run may have written the file.
    """

    def __init__(self, path: epath.Path, before: bytes = b"") -> None:
        self._path, self._content = path, bytearray(before)

    def write(self, data: bytes) -> int:
        """Append to the content in memory, and return the number of bytes."""
        self._content += data
        return len(data)

    def flush(self) -> None:
        """Replace the file."""
        self._path.write_bytes(bytes(self._content))

    def close(self) -> None:
        """Replace the file a last time."""
        self.flush()


@contextlib.contextmanager
def path_in_errors(path: epath.PathLike) -> Iterator[None]:
    """Add a path to an OSError, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def to_scalar(value: Any) -> float | int | None:
    """Return a metric as a Python number: JSON has no NumPy scalars."""
    if value is None:
        return None
    return int(value) if isinstance(value, int | np.integer) else float(value)


def encode_line(step: int, split: str, metrics: Metrics) -> bytes:
    """Return a line of the file."""
    entry: dict[str, Any] = {"step": int(step), "split": split}
    for name, value in metrics.items():
        finite = value is None or math.isfinite(value)
        entry[name] = value if finite else _NON_FINITE[str(value)]
    return json.dumps(entry, allow_nan=False).encode() + b"\n"


def _finished_lines(path: epath.Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Return each line that ends in a newline, raw and parsed."""
    lines = read_bytes(path, _FIX).splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = parse_json(line.decode())
        except ValueError:
            raise InputError(f"{path}:{number}: not a line of metrics. {_FIX}") from None
        location = f"{path}:{number}: not a line of metrics: "
        check_schema(location, entry, _SCHEMA, _FIX)
        for name, value in entry.items():
            if name != "split" and value not in _NON_FINITE.values():
                check_schema(location, {name: value}, {str: (float, None)}, _FIX)
        entries.append((line, entry))
    return entries
