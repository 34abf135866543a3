"""Trackers: receivers of the metrics of a run, such as Weights & Biases or a user's function.

A tracker is validated on every process before the run starts. The process that writes metrics opens
it when the first metrics are logged.
"""

import importlib
import json
import logging
import os
import queue
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

from etils import epath

from bertjax.config.config import Config
from bertjax.config.user_functions import import_function
from bertjax.errors import EXIT_RESTART
from bertjax.training.metrics_file import Metrics
from bertjax.workdir.workdir import flatten_config
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

WANDB, MLFLOW = "wandb", "mlflow"
WANDB_ID_FILE = "wandb.json"  # in a workdir: the id of its run at Weights & Biases
MLFLOW_ID_FILE = "mlflow.json"  # in a workdir: the id of its run at MLflow
_MLFLOW_BATCH = 100  # parameters that MLflow takes at once
_MAX_QUEUED = 1000  # lines of metrics that wait for a slow tracker
_WARNING_INTERVAL = 100  # lost lines
_CLOSE_SECONDS = 30.0  # until the queue of a run that has ended is given up
_EXIT_CODES = {"finished": 0, "failed": 1, "killed": EXIT_RESTART}
_log = logging.getLogger("bertjax")

Outcome = Literal["finished", "failed", "killed"]  # a killed run may be resumed
MetricsCallback = Callable[[dict[str, Any]], object]  # takes a line as `read_metrics` returns it


class Tracker(Protocol):
    """Receiver of the metrics of a run."""

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""

    def close(self, outcome: Outcome) -> None:
        """Record how the run ended; nothing is logged afterwards."""


class BackgroundTracker:
    """Passes metrics to a tracker in a thread: a run neither waits for it nor fails with it.

    Lines of metrics are lost if the tracker raises an error, or is so slow that the queue is full.
    The first one and every hundredth one are warnings, and so is their number at the end.

    Args:
      name: name of the tracker, for warnings.
      tracker: it is opened, called and closed in the thread.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._queue: queue.Queue[tuple[int, str, Metrics] | Outcome] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._num_logged = self._num_sent = self._num_failed = self._num_dropped = 0

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates, soon."""
        if not self._num_logged:
            self._thread.start()
        self._num_logged += 1
        try:
            self._queue.put_nowait((step, split, metrics))
        except queue.Full:
            self._num_dropped += 1
            self._warn_of_loss(self._num_dropped, step, f"{_MAX_QUEUED:,} lines are waiting")

    def close(self, outcome: Outcome) -> None:
        """Finish once everything was logged, or after a time; warn of what was lost."""
        if not self._num_logged:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        try:
            self._queue.put(outcome, timeout=_CLOSE_SECONDS)
        except queue.Full:
            pass
        else:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive():
            _log.warning("%s: does not answer; given up after %g s.", self._name, _CLOSE_SECONDS)
        if lost := self._num_logged - self._num_sent:
            _log.warning(
                "%s: lost %s of %s lines of metrics; metrics.jsonl has them all.",
                self._name,
                f"{lost:,}",
                f"{self._num_logged:,}",
            )

    def _run(self) -> None:
        while isinstance(item := self._queue.get(), tuple):
            try:
                self._tracker.log(*item)
                self._num_sent += 1
            except Exception as error:  # of any kind: the code is not ours
                self._num_failed += 1
                self._warn_of_loss(self._num_failed, item[0], _describe(error))
        try:
            self._tracker.close(item)
        except Exception as error:
            _log.warning("%s: the run could not be finished (%s).", self._name, _describe(error))

    def _warn_of_loss(self, count: int, step: int, reason: str) -> None:
        if count % _WARNING_INTERVAL == 1:
            _log.warning(
                "%s: the metrics of step %s were lost, the run continues (%s).",
                self._name,
                f"{step:,}",
                reason,
            )


class CallbackTracker:
    """Passes each line of metrics.jsonl to a function.

    A resumed run repeats the lines after its checkpoint, which the function may have taken before.

    Args:
      open_callback: takes no argument and returns the function; called at the first `log`.
    """

    def __init__(self, open_callback: Callable[[], MetricsCallback]) -> None:
        self._open_callback, self._callback = open_callback, cast(MetricsCallback | None, None)

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""
        if self._callback is None:
            self._callback = self._open_callback()
        self._callback({"step": int(step), "split": split, **metrics})

    def close(self, outcome: Outcome) -> None:
        """Do nothing: a function needs no end."""
        pass


class WandbTracker:
    """Logs to a Weights & Biases run with the name of the workdir; a resumed run continues it."""

    def __init__(self, config: Config, workdir: epath.Path) -> None:
        self._wandb = _import_library(WANDB)
        self._config, self._workdir, self._run = config, workdir, cast(Any, None)
        offline = os.environ.get("WANDB_MODE", "online") in ("offline", "disabled")
        if not offline and not self._wandb.login(prompt=False):
            raise InputError(
                f"--report-to={WANDB}: no API key. Run `wandb login`, or set WANDB_MODE=offline."
            )

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""
        if self._run is None:
            self._run = self._open()
        known = {f"{split}/{name}": v for name, v in metrics.items() if v is not None}
        self._run.log(known, step=step)

    def close(self, outcome: Outcome) -> None:
        """Finish the run at Weights & Biases."""
        if self._run is not None:
            self._run.finish(exit_code=_EXIT_CODES[outcome])

    def _open(self) -> Any:
        record = self._workdir / WANDB_ID_FILE
        if not record.exists():
            atomic_write_text(record, json.dumps({"id": secrets.token_hex(8)}))
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bertjax"),
            name=self._workdir.name,
            id=read_json_object(record, {"id": str}, "Use another --workdir.")["id"],
            resume="allow",
            config=self._config.to_dict(),
        )


class MlflowTracker:
    """Logs to an MLflow run with the name of the workdir; a resumed run continues it.

    The environment variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME name the server and the
    experiment, "bertjax" by default.
    """

    def __init__(self, config: Config, workdir: epath.Path) -> None:
        self._mlflow = _import_library(MLFLOW)
        self._config, self._workdir = config, workdir
        self._client, self._run_id = cast(Any, None), ""
        self._names_before: set[str] = set()  # of metrics that an earlier process has logged
        self._last_steps: dict[str, int] = {}  # of each split, by an earlier process

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates, unless an earlier process has."""
        if not self._run_id:
            self._client = self._mlflow.MlflowClient()
            self._run_id = self._open()
        if split not in self._last_steps:
            self._last_steps[split] = self._find_last_step(split, metrics)
        if step <= self._last_steps[split]:
            return
        now, entity = int(time.time() * 1000), self._mlflow.entities.Metric
        known = [
            entity(f"{split}/{name}", float(value), now, step)
            for name, value in metrics.items()
            if value is not None
        ]
        self._client.log_batch(self._run_id, metrics=known)

    def close(self, outcome: Outcome) -> None:
        """Finish the run at MLflow, as FINISHED, FAILED or KILLED."""
        if self._run_id:
            self._client.set_terminated(self._run_id, outcome.upper())

    def _open(self) -> str:
        record, client = self._workdir / MLFLOW_ID_FILE, self._client
        if record.exists():
            content = read_json_object(record, {"id": str}, "Use another --workdir.")
            client.update_run(content["id"], "RUNNING")
            self._names_before = {*client.get_run(content["id"]).data.metrics}
            return str(content["id"])
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bertjax")
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        run_id: str = client.create_run(number, run_name=self._workdir.name).info.run_id
        # Before the parameters: if these are refused, the next line goes to the same run.
        atomic_write_text(record, json.dumps({"id": run_id}))
        params = [
            self._mlflow.entities.Param(field, str(value))
            for field, value in flatten_config(self._config).items()
        ]
        for first in range(0, len(params), _MLFLOW_BATCH):
            client.log_batch(run_id, params=params[first : first + _MLFLOW_BATCH])
        return run_id

    def _find_last_step(self, split: str, metrics: Metrics) -> int:
        """Return the last step of a split at MLflow, -1 without one, from one of its metrics.

        MLflow would keep both values of a step that a resumed run repeats.
        """
        names = (f"{split}/{name}" for name, value in metrics.items() if value is not None)
        name = next((name for name in names if name in self._names_before), None)
        if name is None:
            return -1
        history = self._client.get_metric_history(self._run_id, name)
        return max((entry.step for entry in history), default=-1)


def make_tracker(name: str, config: Config, workdir: epath.PathLike) -> BackgroundTracker:
    """Return the tracker of `--report-to`, which runs in a thread of its own.

    Args:
      name: "wandb", "mlflow", or MODULE:FUNCTION. The function takes the configuration and the
        workdir, and returns a function that takes each line of metrics.jsonl as a dictionary.
      config: configuration of the run.
      workdir: directory of the run.

    Raises:
      InputError: the module or function does not exist, or wandb has no API key.
    """
    if name == WANDB:
        return BackgroundTracker(f"--report-to={name}", WandbTracker(config, epath.Path(workdir)))
    if name == MLFLOW:
        return BackgroundTracker(f"--report-to={name}", MlflowTracker(config, epath.Path(workdir)))
    if ":" not in name:
        raise InputError(
            f"--report-to={name}: unknown tracker. Use {WANDB}, {MLFLOW} or MODULE:FUNCTION."
        )
    factory: Callable[[Config, str], MetricsCallback] = import_function("--report-to", name)
    tracker = CallbackTracker(lambda: factory(config, os.fspath(workdir)))
    return BackgroundTracker(f"--report-to={name}", tracker)


def _describe(error: Exception) -> str:
    """Return the first line of an error with its place in the code, which may be a user's."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = (str(error).strip().splitlines() or [""])[0]
    name = os.path.basename(frame.filename)
    return f"{type(error).__name__}: {message}, {name}:{frame.lineno}"


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # missing import inside the module
        raise InputError(
            f"--report-to={name}: there is no module {name}. Run `pip install 'bertjax[{name}]'`."
        ) from None
