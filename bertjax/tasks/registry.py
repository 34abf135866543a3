"""The tasks by name. A new task is one new file or folder, and one line here."""

import importlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from bertjax.tasks.contract import EVALUATION_FILE, Task
from bertjax.training.checkpoint import find_checkpoint
from bertjax.training.config import Config, parse_config, read_config
from bertjax.training.objective import Objective
from data_pipelines.errors import InputError

# task name -> module with `Objective` and `Task`, classes that follow the protocols, and
# `DATA_FIELDS`, the defaults of its `data` fields.
MODULES = {"pretrain": "bertjax.tasks.pretraining", "squad": "bertjax.tasks.reading.task"}


def find(name: str) -> type[Task]:
    """The class of a task in `MODULES`."""
    return importlib.import_module(MODULES[name]).Task


def objective(config: Config, multiple: int = 1) -> Objective:
    """The objective of the configuration's task; see `Objective`."""
    return importlib.import_module(MODULES[config.task]).Objective(config, multiple)


def data_fields() -> dict[str, dict[str, Any]]:
    """Task name -> its `data` fields with their defaults."""
    return {name: importlib.import_module(module).DATA_FIELDS for name, module in MODULES.items()}


def predict(checkpoint: epath.PathLike, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """An answer to each line of input, by the task that the checkpoint was trained for.

    Args:
      checkpoint: a checkpoint, or a workdir whose newest one is used.
    Raises:
      InputError: a line is not what the task takes; it is named by its number.
    """
    path = find_checkpoint(checkpoint)
    config = read_config(path / "config.json", data_fields())
    return find(config.task).predict(config, path, lines)


def report(name: str, directory: epath.Path) -> str:
    """The output of an evaluation as a page of HTML.

    Raises:
      InputError: its task has no such page, or the files are not what `bertjax evaluate` wrote.
    """
    path = directory / EVALUATION_FILE
    try:
        config = parse_config(json.loads(path.read_text())["config"], data_fields())
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not what an evaluation wrote ({error}): repeat it.") from error
    return find(config.task).report(name, config, directory)
