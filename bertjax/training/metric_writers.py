"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard, the terminal and who asks for them.

A line of WORKDIR/metrics.jsonl is one JSON object: "step", "split" ("train" or "heldout"), then
the metrics. Of several runs that are trained at once the splits are RUN/train and RUN/heldout. A
metric that is not known is null; one that is no finite number, for which JSON has no notation, is
the string "NaN", "Infinity" or "-Infinity", which Python's float() reads.
"""

import json
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

import numpy as np
from etils import epath

from bertjax.html.tables import align_columns, eval_set_table
from bertjax.steps.histograms import Histogram
from bertjax.training.tensorboard import TensorBoardWriter
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write, is_remote

Metrics = Mapping[str, float | int | None]
MetricsCallback = Callable[
    [dict[str, Any]], object
]  # is given each line as `read_metrics` gives it

REMOTE_FLUSH_SECONDS = 60.0


def metrics_path(workdir: epath.PathLike) -> epath.Path:
    """The file of a run's metrics."""
    return epath.Path(workdir) / "metrics.jsonl"


def read_metrics(workdir: epath.PathLike) -> list[dict[str, Any]]:
    """The metrics of a run, a dictionary a line, oldest first, non-finite numbers as floats.

    A last line that is not finished, as a running or a killed job leaves it, is not read. Raises
    InputError when there is no such file or when a line is not what `MetricWriters` writes.
    """
    path = metrics_path(workdir)
    if not path.exists():
        raise InputError(f"{path} does not exist: give the --workdir of a run that has trained")
    return [
        {key: value if key == "split" else _parse_number(value) for key, value in entry.items()}
        for _, entry in _finished_lines(path)
    ]


def truncate_metrics(workdir: epath.PathLike, step: int) -> None:
    """Drops the lines of metrics.jsonl after `step`, and a last line that is not finished.

    A run that resumes from the checkpoint of `step` then ends with the lines of a run that was
    never stopped, as long as the lines of a step are written before its checkpoint is. The file is
    replaced in one move, so a job killed here loses nothing. Raises InputError for a damaged file.
    """
    path = metrics_path(workdir)
    if not path.exists():
        return
    kept = b"".join(line for line, entry in _finished_lines(path) if entry["step"] <= step)
    if len(kept) != path.stat().length:
        with atomic_write(path) as partial:
            partial.write_bytes(kept)


class MetricWriters:
    """Writes each step's metrics to the file, TensorBoard and the terminal; a context manager.

    `start_step` is the step resumed from: what an earlier job wrote after it is dropped from
    metrics.jsonl and hidden in TensorBoard. With `active` false, as on every host but the first,
    nothing is written. `stream` is where progress goes, standard error by default: one line drawn
    over and over in a terminal, a line a time elsewhere. `tell` is called after each line that was
    written.

    On a local disk what `write` was given survives the death of the process. A remote file (gs://)
    cannot be appended to, so there it is kept in memory and the files are written anew once a
    minute, at the end and by `flush`, which must therefore be called before a checkpoint is saved.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        total_steps: int | None,
        *,
        start_step: int = 0,
        active: bool = True,
        stream: TextIO | None = None,
        tell: MetricsCallback | None = None,
    ) -> None:
        workdir = epath.Path(workdir)
        self._progress = ProgressPrinter(total_steps, stream or sys.stderr) if active else None
        self._files: list[_MetricWriter] = []
        self._tensorboard: TensorBoardWriter | None = None
        self._flush_seconds = REMOTE_FLUSH_SECONDS if is_remote(workdir) else 0.0
        self._flushed = time.monotonic()
        if active:
            workdir.mkdir(parents=True, exist_ok=True)
            truncate_metrics(workdir, start_step)
            kind = RemoteMetricsFile if is_remote(workdir) else LocalMetricsFile
            self._tensorboard = TensorBoardWriter(workdir / "tensorboard", start_step)
            self._files = [kind(metrics_path(workdir)), self._tensorboard]
            self._files += [CallbackWriter(tell)] if tell else []

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        """Records the metrics of `split` ("train", "heldout") after `step` updates.

        Values are Python or NumPy scalars, or None for what is not known. Raises OSError, naming
        the file, when the disk is full.
        """
        metrics = {name: _to_scalar(value) for name, value in metrics.items()}
        if self._progress:
            self._progress.write(step, split, metrics)
        for file in self._files:
            file.write(step, split, metrics)
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self.flush()

    def write_summaries(
        self, step: int, examples: Sequence[str], histograms: Mapping[str, Histogram]
    ) -> None:
        """Has TensorBoard show what is said of examples, and histograms by their names."""
        if self._tensorboard:
            self._tensorboard.write_summaries(step, examples, histograms)

    def print_metrics(self, step: int, split: str, metrics: Metrics) -> None:
        """Shows metrics in the terminal, and writes them nowhere."""
        if self._progress:
            self._progress.write(
                step, split, {n: _to_scalar(value) for n, value in metrics.items()}
            )

    def print_line(self, text: str) -> None:
        """Shows a line of text in the terminal without spoiling the progress line."""
        if self._progress:
            self._progress.print_line(text)

    def flush(self) -> None:
        """Returns once everything written is in the files."""
        for file in self._files:
            file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        if self._progress:
            self._progress.close()
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _MetricWriter(Protocol):
    def write(self, step: int, split: str, metrics: Metrics) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class LocalMetricsFile:
    """metrics.jsonl on a local disk; each line is handed to the system in one call."""

    def __init__(self, path: epath.Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        line = _line(step, split, metrics)
        try:
            written = self._file.write(line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if written != len(line):
            raise OSError(f"{self._path} could not be written to its end: free space on its disk")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class RemoteMetricsFile:
    """metrics.jsonl in remote storage, where a file is only ever replaced as a whole."""

    def __init__(self, path: epath.Path) -> None:
        self._path = path
        self._lines = path.read_bytes() if path.exists() else b""

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        self._lines += _line(step, split, metrics)

    def flush(self) -> None:
        self._path.write_bytes(self._lines)

    def close(self) -> None:
        self.flush()


class CallbackWriter:
    """Whoever started the run from Python."""

    def __init__(self, tell: MetricsCallback) -> None:
        self._callback = tell

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        self._callback({"step": int(step), "split": split, **metrics})

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ProgressPrinter:
    """One line redrawn in a terminal, plain lines elsewhere, each with what a person watches."""

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        self._total = total_steps
        self._stream = stream
        self._redraws = stream.isatty()
        self._line = ""
        self._first: tuple[int, float] | None = None

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        if "/" in split:  # of one of several runs, which would be too many lines
            return
        place = f"step {step:,}" + (f"/{self._total:,}" if self._total else "")
        if split != "train":
            name = {"eval": "held-out"}.get(split, split)
            table = eval_set_table(metrics)
            own = {key: metrics[key] for key in metrics if not (table.rows and "/" in key)}
            self.print_line("  ".join([place, name, *map(_format_metric, own, own.values())]))
            if table.rows:
                self.print_line(textwrap.indent(align_columns(*table), "  "))
            return
        share = step / self._total if self._total else metrics.get("budget") or 0
        parts = [f"{place} {share:4.0%}"]
        watched = ("loss", "mlm_accuracy", "nsp_accuracy", "sequences_per_second", "mfu")
        parts += [
            _format_metric(name, metrics[name]) for name in watched if metrics.get(name) is not None
        ]
        line = "  ".join([*parts, *self._remaining(step)])
        if self._redraws:
            self._line = line
            self._draw()
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def print_line(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}\n" if self._redraws else f"{text}\n")
        self._draw()

    def close(self) -> None:
        if self._line:
            self._stream.write("\n")
            self._stream.flush()
            self._line = ""

    def _draw(self) -> None:
        # A line as wide as the terminal would wrap, and then it could not be drawn over.
        columns = shutil.get_terminal_size().columns - 1
        if self._line:
            self._stream.write(f"\r{self._line[:columns]}\x1b[K")
        self._stream.flush()

    def _remaining(self, step: int) -> list[str]:
        """The time left at the pace since the first line, so that compilation does not count."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        first_step, first_time = self._first
        if not self._total or step <= first_step or step >= self._total:
            return []
        seconds = (now - first_time) / (step - first_step) * (self._total - step)
        return [f"{duration(seconds)} left"]


def duration(seconds: float) -> str:
    """A length of time in its two largest units: "2d 03h", "5h 20m", "3m 09s", "12s"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {whole:02}s" if minutes else f"{whole}s"


def _to_scalar(value: Any) -> float | int | None:
    """A Python number from any scalar: JSON knows no NumPy."""
    if value is None:
        return None
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _line(step: int, split: str, metrics: Metrics) -> bytes:
    entry: dict[str, Any] = {"step": int(step), "split": split}
    for name, value in metrics.items():
        finite = value is None or math.isfinite(value)
        entry[name] = value if finite else _NON_FINITE[str(value)]
    return json.dumps(entry, allow_nan=False).encode() + b"\n"


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _parse_number(value: Any) -> Any:
    return float(value) if value in _NON_FINITE.values() else value


def _finished_lines(path: epath.Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Each line that ends in a newline, raw and parsed."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            int(entry["step"]), str(entry["split"])
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"{path} line {number} is not a line of metrics: restore the file or move it away"
            ) from None
        found.append((line, entry))
    return found


def _format_metric(name: str, value: float | int | None) -> str:
    """A metric as a person reads it: "loss 3.142", "mlm accuracy 41.2%", "812 seq/s"."""
    words = name.replace("_", " ")
    if value is None:
        return f"{words} -"
    if name == "sequences_per_second":
        return f"{value:,.0f} seq/s" if value >= 10 else f"{value:.2f} seq/s"
    if name.endswith("accuracy") or name in ("mfu", "input_wait_fraction"):
        return f"{words} {value:.1%}"
    if isinstance(value, int):
        return f"{value:,} {words}"
    return f"{words} {value:.4g}" if value < 1e4 else f"{words} {value:,.0f}"
