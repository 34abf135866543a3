"""Progress of a run in the terminal."""

import logging
import shutil
import textwrap
import time
from typing import TextIO

from bertjax.html.tables import align_columns, eval_set_table
from bertjax.mesh import distributed
from bertjax.training.metrics_file import Metrics

_RATE_UNITS = {"sequences_per_second": "seq/s", "examples_per_second": "examples/s"}

_log = logging.getLogger("bertjax")


class ProgressPrinter:
    """A tracker that redraws one line in a terminal and prints plain lines elsewhere.

    Args:
      total_steps: steps of the run; None with a time budget.
      stream: where it prints.
    """

    def __init__(self, total_steps: int | None, stream: TextIO) -> None:
        self._total = total_steps
        self._stream = stream
        self._redraws = stream.isatty()
        self._current_line = ""
        self._first: tuple[int, float] | None = None

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Print the metrics of a split after `step` updates."""
        if "/" in split:  # one of several parallel runs, which would be too many lines
            return
        position = f"step {step:,}" + (f"/{self._total:,}" if self._total else "")
        if split != "train":
            table = eval_set_table(metrics)
            shown = {key: metrics[key] for key in metrics if not (table.rows and "/" in key)}
            self.print_line(
                "  ".join([position, split, *map(_format_metric, shown, shown.values())])
            )
            if table.rows:
                self.print_line(textwrap.indent(align_columns(*table), "  "))
            return
        progress = step / self._total if self._total else metrics.get("progress") or 0
        names = ("loss", "mlm_accuracy", "nsp_accuracy", *_RATE_UNITS, "mfu")
        values = [
            _format_metric(name, metrics[name]) for name in names if metrics.get(name) is not None
        ]
        line = "  ".join([f"{position} {progress:4.0%}", *values, *self._remaining_time(step)])
        if self._redraws:
            self._current_line = line
            self._draw()
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def print_line(self, text: str) -> None:
        """Print a line of text above the progress line."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._redraws else f"{text}\n")
        self._draw()

    def close(self) -> None:
        """End the line that is redrawn."""
        if self._current_line:
            self._stream.write("\n")
            self._stream.flush()
            self._current_line = ""

    def _draw(self) -> None:
        # A line as wide as the terminal would wrap, and could not be drawn over.
        columns = shutil.get_terminal_size().columns - 1
        if self._current_line:
            self._stream.write(f"\r{self._current_line[:columns]}\x1b[K")
        self._stream.flush()

    def _remaining_time(self, step: int) -> list[str]:
        """Return the time left at the speed since the first line, which excludes compilation."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        first_step, first_time = self._first
        if not self._total or step <= first_step or step >= self._total:
            return []
        seconds = (now - first_time) / (step - first_step) * (self._total - step)
        return [f"{format_duration(seconds)} left"]


def log_on_process_0(text: str) -> None:
    """Log lines of text once for all processes."""
    if distributed.is_process_0():
        _log.info("%s", text)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: "2d 03h", "5h 20m", "3m 09s", "12s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


def _format_metric(name: str, value: float | int | None) -> str:
    """Return a metric as text: "loss 3.142", "mlm accuracy 41.2%", "812 seq/s"."""
    words = name.replace("_", " ")
    if value is None:
        return f"{words} -"
    if unit := _RATE_UNITS.get(name):
        return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"
    if name.endswith("accuracy") or name in ("mfu", "input_wait_fraction"):
        return f"{words} {value:.1%}"
    if isinstance(value, int):
        return f"{value:,} {words}"
    return f"{words} {value:.4g}" if value < 1e4 else f"{words} {value:,.0f}"
