"""Metrics for others than our own files: Weights & Biases, or a function of the user's.

What is told is asked for by name when the first line is there, on the host that writes, so that
nothing is opened for a run that is refused.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from etils import epath

from bertjax.runs.metrics import Tell
from bertjax.training.config import Config
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

WANDB = "wandb"
Make = Callable[[Config, str], Tell]


def teller(name: str, config: Config, workdir: epath.PathLike) -> Tell:
    """What gives each line of metrics, a dictionary, to `name`.

    Args:
      name: "wandb", or MODULE:FUNCTION, which is called with the configuration and the workdir, and
        gives what is called with each line.
    Raises:
      InputError: there is no such module or function.
    """
    make = _open_wandb if name == WANDB else _find(name)
    if name == WANDB:
        _import(WANDB, "pip install 'bertjax[wandb]' brings it")
    made: list[Tell] = []

    def tell(line: dict[str, Any]) -> None:
        if not made:
            made.append(make(config, os.fspath(workdir)))
        made[0](line)

    return tell


def _find(name: str) -> Make:
    module, _, function = name.partition(":")
    if not (module and function):
        raise InputError(f"--tell={name} must be {WANDB}, or MODULE:FUNCTION of your own.")
    sys.path.insert(0, os.getcwd())  # where a user's own file is
    made: Make | None = getattr(_import(module, "name one that Python finds"), function, None)
    if made is None:
        raise InputError(f"--tell={name}: the module {module} has no {function}.")
    return made


def _import(module: str, cure: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InputError(f"there is no module {module} here: {cure}.") from None


def _open_wandb(config: Config, workdir: str) -> Tell:
    """A run of the workdir's name, which one that goes on goes on with."""
    wandb = _import(WANDB, "")
    place = workdir if is_remote(workdir) else os.path.abspath(workdir)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "bertjax"),
        name=epath.Path(workdir).name,
        id=hashlib.blake2b(place.encode(), digest_size=8).hexdigest(),
        resume="allow",
        config=config.to_dict(),
    )

    def tell(line: dict[str, Any]) -> None:
        split = line["split"]
        values = {f"{split}/{k}": v for k, v in line.items() if k not in ("step", "split")}
        run.log({name: value for name, value in values.items() if value is not None}, line["step"])

    return tell
