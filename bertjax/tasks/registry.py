"""The tasks by name. A new task is one new file or folder, and one line here.

A task of one's own needs no line: its name in a configuration is that of its module, such as
`task="my_package.sentiment"`.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.steps.objective import Objective
from bertjax.tasks.task import Task
from data_pipelines.errors import InputError

# task name -> module with `Objective` and `Task`, which derive from those of
# `bertjax.steps.objective` and `bertjax.tasks.task`.
TASK_MODULES = {
    "pretraining": "bertjax.tasks.pretraining",
    "question_answering": "bertjax.tasks.question_answering.task",
    "sequence_classification": "bertjax.tasks.sequence_classification.task",
    "multiple_choice": "bertjax.tasks.multiple_choice",
    "token_classification": "bertjax.tasks.token_classification.task",
}


def find(name: str) -> type[Task]:
    """The class of a task.

    Raises:
      InputError: there is no such task.
    """
    task: type[Task] = _module(name).Task
    return task


def objective(config: Config, batch_size_multiple: int = 1) -> Objective:
    """The objective of the configuration's task; see `Objective`."""
    found: Objective = _module(config.task).Objective(config, batch_size_multiple)
    return found


def infer_config(model: NumpyModel) -> Config:
    """A configuration that could have made a model of another format.

    Raises:
      InputError: no task has such a head.
    """
    for name in TASK_MODULES:
        task = find(name)
        fields = task.config_for_model(model)
        if fields is not None:
            data = {**data_fields()[name], **fields.get("data", {})}
            return Config(name, model=model.config, **{**fields, "data": data})
    raise InputError(f"no task has a model of {', '.join(model.params)}: convert to hf.")


def data_fields() -> Mapping[str, Mapping[str, Any]]:
    """Task name -> its `data` fields with their defaults; a task is imported when asked for."""
    return _DataFields()


class _DataFields(Mapping[str, Mapping[str, Any]]):
    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return {name: field.default for name, field in find(name).DATA_FIELDS.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(TASK_MODULES)

    def __len__(self) -> int:
        return len(TASK_MODULES)


def _module(name: str) -> Any:
    path = TASK_MODULES.get(name, name)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        module = None
    if not hasattr(module, "Task"):
        raise InputError(
            f"task={name!r} is unknown: there are {', '.join(sorted(TASK_MODULES))}, and any module on "
            "PYTHONPATH that has a Task and an Objective."
        )
    return module
