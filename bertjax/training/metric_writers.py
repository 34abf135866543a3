"""The trackers of a run, and the steps whose metrics they receive."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
from etils import epath

from bertjax.config.config import Config
from bertjax.errors import LockLostError, StoppedError
from bertjax.steps.histograms import compute_histograms
from bertjax.steps.train_step import Sums
from bertjax.tasks.task import Evaluation
from bertjax.training.metrics_file import (
    Metrics,
    MetricsFile,
    metrics_path,
    to_scalar,
    truncate_metrics,
)
from bertjax.training.tensorboard import TensorBoardTracker
from bertjax.training.terminal import ProgressPrinter
from bertjax.training.throughput import ThroughputMeter
from bertjax.training.trackers import Outcome, Tracker
from data_pipelines.paths import is_remote

REMOTE_FLUSH_SECONDS = 60.0
_EARLY_STEPS = {1, 11}  # steps of a process that are printed even if they are not logged
_MAX_SILENCE_SECONDS = 60.0  # after which a single process prints a step
_log = logging.getLogger("bertjax")


class MetricWriters:
    """A context manager that passes metrics to metrics.jsonl, TensorBoard, terminal and trackers.

    On a local disk everything that was written survives the death of the process. A remote file
    (gs://) cannot be appended to: its content stays in memory and replaces the file once a minute,
    at the end and in `flush`. Call `flush` before a checkpoint is saved. If the storage is out of
    reach in between, or at the end of a run that another error ends, that is a warning.

    Args:
      workdir: directory of the run.
      config: resolved configuration.
      start_step: step that the run resumes from. Later lines of an earlier process are removed
        from metrics.jsonl and hidden in TensorBoard.
      trackers: further receivers.
      active: False on every process but one: nothing is written.
      confirm: called before files are written; raises LockLostError if they are those of another
        run.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        config: Config,
        start_step: int = 0,
        trackers: Sequence[Tracker] = (),
        *,
        active: bool = True,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        workdir, self._summaries = epath.Path(workdir), config.tensorboard_summaries
        self._confirm = confirm
        self._flush_seconds = REMOTE_FLUSH_SECONDS if is_remote(workdir) else 0.0
        self._last_flush = time.monotonic()
        self._trackers: Sequence[Tracker] = ()
        self._buffered: list[TensorBoardTracker | MetricsFile] = []
        self._outputs: list[ProgressPrinter | MetricsFile | TensorBoardTracker] = []
        self._terminal: ProgressPrinter | None = None
        self._tensorboard: TensorBoardTracker | None = None
        if not active:
            return
        workdir.mkdir(parents=True, exist_ok=True)
        confirm()
        file = MetricsFile(metrics_path(workdir), truncate_metrics(workdir, start_step))
        self._terminal = ProgressPrinter(config.total_steps, sys.stderr)
        self._tensorboard = TensorBoardTracker(os.fspath(workdir / "tensorboard"), start_step)
        self._buffered = [self._tensorboard, file]
        self._outputs = [self._terminal, file, self._tensorboard]
        self._trackers = trackers

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        """Log the metrics of `split` ("train", "eval") after `step` updates.

        Args:
          step: number of updates.
          split: name of the split.
          metrics: Python or NumPy scalars, None for an unknown value.

        Raises:
          OSError: the disk is full; the file is named.
          LockLostError: the files are those of another run.
        """
        if not self._flush_seconds:  # a local file is written at once
            self._confirm()
        scalars = {name: to_scalar(value) for name, value in metrics.items()}
        for receiver in (*self._outputs, *self._trackers):
            receiver.log(step, split, scalars)
        if time.monotonic() - self._last_flush < self._flush_seconds:
            return
        try:
            self.flush()
        except LockLostError:
            raise
        except Exception as error:  # of any kind: TensorFlow's errors of a bucket are no OSErrors
            if not self._flush_seconds:
                raise
            self._last_flush = time.monotonic()
            _log.warning("metrics not written: %s. They stay in memory until the next try.", error)

    def write_runs(self, step: int, split: str, metrics: Mapping[str, Metrics]) -> None:
        """Log metrics by run; the name "" stands for all of them or for the only one."""
        for run, values in metrics.items():
            self.write(step, f"{run}/{split}" if run else split, values)

    def write_evaluations(
        self, step: int, evaluations: Mapping[str, Evaluation], params: Any
    ) -> None:
        """Log the scores of evaluations by run, and show in TensorBoard what `tensorboard` names.

        Args:
          step: number of updates.
          evaluations: evaluations by run, as for `write_runs`; none of them writes nothing.
          params: parameters that were evaluated.
        """
        self.write_runs(step, "eval", {name: e.scores for name, e in evaluations.items()})
        if not (evaluations and self._summaries):
            return
        examples = evaluations[""].examples if "examples" in self._summaries else ()
        # On all processes: the parameters are sharded.
        histograms = compute_histograms(params) if "parameters" in self._summaries else {}
        if self._tensorboard:
            self._tensorboard.write_summaries(step, examples, histograms)

    def print_metrics(self, step: int, split: str, metrics: Metrics) -> None:
        """Print metrics in the terminal only."""
        if self._terminal:
            self._terminal.log(step, split, metrics)

    def print_line(self, text: str) -> None:
        """Print a line of text above the progress line."""
        if self._terminal:
            self._terminal.print_line(text)

    def flush(self) -> None:
        """Return once everything written is in the files; raises as `write`."""
        self._confirm()
        for tracker in self._buffered:
            tracker.flush()
        self._last_flush = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        outcome: Outcome = "failed" if kind else "finished"
        if kind and issubclass(kind, StoppedError | LockLostError | KeyboardInterrupt):
            outcome = "killed"
        try:
            self._close()
        except Exception as error:
            if not kind:
                outcome = "killed" if isinstance(error, LockLostError) else "failed"
                raise
            # The error that ends the run decides its exit status.
            if not isinstance(error, LockLostError):
                _log.warning("the last metrics may be missing: %s.", error)
        finally:
            for tracker in self._trackers:
                tracker.close(outcome)

    def _close(self) -> None:
        """Close the files, and the terminal alone if they are those of another run."""
        if self._terminal:
            self._terminal.close()
        self._confirm()
        for tracker in self._buffered:
            tracker.close()


class StepLogger:
    """Logs train steps, one step late: the devices never wait for the host to read metrics.

    Args:
      writers: receivers of the metrics.
      meter: adds rates, such as sequences per second.
      read: from a step and its metric sums to metrics by run; waits for the step.
      config: resolved configuration.
      first_step: step that the process starts from.
    """

    def __init__(
        self,
        writers: MetricWriters,
        meter: ThroughputMeter,
        read: Callable[[int, Sums], dict[str, dict[str, float]]],
        config: Config,
        first_step: int,
    ) -> None:
        self._writers, self._meter, self._read = writers, meter, read
        self._log_every, self._first_step = int(config.log_every), first_step
        # A time budget needs a second reading of the clock for the duration of a step.
        early_steps = _EARLY_STEPS | ({2} if config.budget_seconds else set())
        self._early_steps = {step for step in early_steps if step < self._log_every}
        self._pending: tuple[int, Sums, bool] | None = None
        self._last_read = time.monotonic()

    def add(self, step: int, metric_sums: Sums, last: bool) -> None:
        """Note a dispatched step; keep its metric sums if they are to be logged or printed."""
        logged = last or step % self._log_every == 0
        # The clocks of several processes differ, and in a sweep reading the sums is a collective.
        silent = jax.process_count() == 1 and (
            time.monotonic() - self._last_read > _MAX_SILENCE_SECONDS
        )
        if logged or silent or step - self._first_step in self._early_steps:
            self._pending = (step, metric_sums, logged)

    def flush(self) -> tuple[int, dict[str, float]] | None:
        """Log or print the pending step; return it with its metrics, None without one."""
        if self._pending is None:
            return None
        step, metric_sums, logged = self._pending
        self._pending, self._last_read = None, time.monotonic()
        metrics = self._read(step, metric_sums)
        metrics[""] |= self._meter.read(step, metrics[""])
        if logged:
            self._writers.write_runs(step, "train", metrics)
        else:
            self._writers.print_metrics(step, "train", metrics[""])
        return step, metrics[""]
