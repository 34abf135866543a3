"""Trackers: receivers of the metrics of a run, such as Weights & Biases or a user's function.

A tracker is validated on every process before the run starts. The process that writes metrics opens
it when the first metrics are logged.
"""

import importlib
import json
import os
import secrets
from collections.abc import Callable
from typing import Any, Protocol, cast

from etils import epath

from bertjax.config.config import Config
from bertjax.config.user_functions import import_function
from bertjax.training.metrics_file import Metrics
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

WANDB = "wandb"
WANDB_ID_FILE = "wandb.json"  # in a workdir: the id of its run at Weights & Biases

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
        self._wandb = _import_wandb()
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


def make_tracker(name: str, config: Config, workdir: epath.PathLike) -> Tracker:
    """Return the tracker of `--report-to`.

    Args:
      name: "wandb", or MODULE:FUNCTION. The function takes the configuration and the workdir, and
        returns a function that takes each line of metrics.jsonl as a dictionary.
      config: configuration of the run.
      workdir: directory of the run.

    Raises:
      InputError: the module or function does not exist, or wandb has no API key.
    """
    if name == WANDB:
        return WandbTracker(config, epath.Path(workdir))
    if ":" not in name:
        raise InputError(f"--report-to={name}: unknown tracker. Use {WANDB} or MODULE:FUNCTION.")
    factory: Callable[[Config, str], MetricsCallback] = import_function("--report-to", name)
    return CallbackTracker(lambda: factory(config, os.fspath(workdir)))


def _import_wandb() -> Any:
    try:
        return importlib.import_module(WANDB)
    except ModuleNotFoundError as error:
        if error.name != WANDB:
            raise  # missing import inside the module
        raise InputError(
            f"--report-to={WANDB}: there is no module {WANDB}. Run `pip install 'bertjax[wandb]'`."
        ) from None
