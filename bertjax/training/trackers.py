"""Metrics for others than our own files: Weights & Biases, or a function of the user's.

What can be refused is refused before a run begins, on every host; what is told is opened with the
first line, on the host that writes.
"""

import importlib
import json
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any, cast

from etils import epath

from bertjax.config.config import Config
from bertjax.training.metric_writers import MetricsCallback
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

WANDB = "wandb"
WANDB_ID_FILE = "wandb.json"  # of a workdir: which run there is its own
TrackerFactory = Callable[[Config, str], MetricsCallback]


def make_tracker(name: str, config: Config, workdir: epath.PathLike) -> MetricsCallback:
    """What gives each line of metrics, a dictionary, to `name`.

    Args:
      name: "wandb", or MODULE:FUNCTION, which is called with the configuration and the workdir, and
        gives what is called with each line.
    Raises:
      InputError: there is no such module or function, or wandb has no key.
    """
    make = _wandb() if name == WANDB else _import_tracker(name)
    made: list[MetricsCallback] = []

    def tell(line: dict[str, Any]) -> None:
        if not made:
            made.append(make(config, os.fspath(workdir)))
        made[0](line)

    return tell


def _import_tracker(name: str) -> TrackerFactory:
    module, _, function = name.partition(":")
    if not (module and function) or module.startswith("."):
        raise InputError(f"--report-to={name} must be {WANDB}, or MODULE:FUNCTION of your own.")
    sys.path.insert(0, os.getcwd())  # where a user's own file is
    made = getattr(_import_module(module, "name one that Python finds"), function, None)
    if not callable(made):
        raise InputError(f"--report-to={name}: the module {module} has no function {function}.")
    return cast(TrackerFactory, made)


def _import_module(module: str, fix: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # of what it imports itself
        raise InputError(f"there is no module {module} here: {fix}.") from None


def _wandb() -> TrackerFactory:
    wandb = _import_module(WANDB, "pip install 'bertjax[wandb]' brings it")
    sends = os.environ.get("WANDB_MODE", "online") not in ("offline", "disabled")
    if sends and not wandb.login(prompt=False):
        raise InputError("wandb has no key here: run `wandb login`, or set WANDB_MODE=offline.")

    def open_run(config: Config, workdir: str) -> MetricsCallback:
        """A run of the workdir's name, which one that goes on goes on with."""
        record = epath.Path(workdir) / WANDB_ID_FILE
        if not record.exists():
            atomic_write_text(record, json.dumps({"id": secrets.token_hex(8)}))
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bertjax"),
            name=epath.Path(workdir).name,
            id=json.loads(record.read_text())["id"],
            resume="allow",
            config=config.to_dict(),
        )

        def tell(line: dict[str, Any]) -> None:
            split = line["split"]
            values = {f"{split}/{k}": v for k, v in line.items() if k not in ("step", "split")}
            known = {name: value for name, value in values.items() if value is not None}
            run.log(known, step=line["step"])

        return tell

    return open_run
