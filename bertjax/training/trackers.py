"""Trackers: receivers of the metrics of a run, such as Weights & Biases or a user's function.

A tracker is validated on every process before the run starts. The process that writes metrics opens
it when the first metrics are logged.
"""

import importlib
import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from etils import epath

from bertjax.config.config import Config
from bertjax.config.user_functions import import_function
from bertjax.training.metrics_file import Metrics
from bertjax.workdir.workdir import flatten_config
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

WANDB, MLFLOW = "wandb", "mlflow"
WANDB_ID_FILE = "wandb.json"  # in a workdir: the id of its run at Weights & Biases
MLFLOW_ID_FILE = "mlflow.json"  # in a workdir: the id of its run at MLflow
_MLFLOW_BATCH = 100  # parameters that MLflow takes at once

MetricsCallback = Callable[[dict[str, Any]], object]  # takes a line as `read_metrics` returns it


class Tracker(Protocol):
    """Receiver of the metrics of a run."""

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""

    def close(self) -> None:
        """Finish; nothing is logged afterwards."""


class CallbackTracker:
    """Passes each line of metrics.jsonl to a function.

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

    def close(self) -> None:
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

    def close(self) -> None:
        """Finish the run at Weights & Biases."""
        if self._run is not None:
            self._run.finish()

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

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""
        if not self._run_id:
            self._client = self._mlflow.MlflowClient()
            self._run_id = self._open()
        now, entity = int(time.time() * 1000), self._mlflow.entities.Metric
        known = [
            entity(f"{split}/{name}", float(value), now, step)
            for name, value in metrics.items()
            if value is not None
        ]
        self._client.log_batch(self._run_id, metrics=known)

    def close(self) -> None:
        """Finish the run at MLflow."""
        if self._run_id:
            self._client.set_terminated(self._run_id)

    def _open(self) -> str:
        record, client = self._workdir / MLFLOW_ID_FILE, self._client
        if record.exists():
            content = read_json_object(record, {"id": str}, "Use another --workdir.")
            client.update_run(content["id"], "RUNNING")
            return str(content["id"])
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bertjax")
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        run_id: str = client.create_run(number, run_name=self._workdir.name).info.run_id
        params = [
            self._mlflow.entities.Param(field, str(value))
            for field, value in flatten_config(self._config).items()
        ]
        for first in range(0, len(params), _MLFLOW_BATCH):
            client.log_batch(run_id, params=params[first : first + _MLFLOW_BATCH])
        atomic_write_text(record, json.dumps({"id": run_id}))
        return run_id


def make_tracker(name: str, config: Config, workdir: epath.PathLike) -> Tracker:
    """Return the tracker of `--report-to`.

    Args:
      name: "wandb", "mlflow", or MODULE:FUNCTION. The function takes the configuration and the
        workdir, and returns a function that takes each line of metrics.jsonl as a dictionary.
      config: configuration of the run.
      workdir: directory of the run.

    Raises:
      InputError: the module or function does not exist, or wandb has no API key.
    """
    if name == WANDB:
        return WandbTracker(config, epath.Path(workdir))
    if name == MLFLOW:
        return MlflowTracker(config, epath.Path(workdir))
    if ":" not in name:
        raise InputError(
            f"--report-to={name}: unknown tracker. Use {WANDB}, {MLFLOW} or MODULE:FUNCTION."
        )
    factory: Callable[[Config, str], MetricsCallback] = import_function("--report-to", name)
    return CallbackTracker(lambda: factory(config, os.fspath(workdir)))


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # missing import inside the module
        raise InputError(
            f"--report-to={name}: there is no module {name}. Run `pip install 'bertjax[{name}]'`."
        ) from None
