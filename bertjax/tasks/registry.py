"""Registry of tasks by name. A new task is one new file or folder, and one line in `TASKS`.

A task outside this package needs no line. A configuration names it as `MODULE:CLASS`, such as
`task="my_package.sentiment:SentimentTask"`.
"""

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.steps.objective import Objective
from bertjax.tasks.pipeline import Pipeline
from bertjax.tasks.task import Task
from data_pipelines.errors import InputError

TASKS = {  # task name -> MODULE:CLASS
    "pretraining": "bertjax.tasks.pretraining:PretrainingTask",
    "question_answering": "bertjax.tasks.question_answering.task:QuestionAnsweringTask",
    "sequence_classification": (
        "bertjax.tasks.sequence_classification.task:SequenceClassificationTask"
    ),
    "multiple_choice": "bertjax.tasks.multiple_choice:MultipleChoiceTask",
    "token_classification": "bertjax.tasks.token_classification.task:TokenClassificationTask",
}


def find_task(name: str) -> type[Task]:
    """Return the class of a task.

    Raises:
      InputError: there is no task of this name.
    """
    module_name, _, class_name = TASKS.get(name, name).partition(":")
    task: Any = None
    if module_name and class_name:
        try:
            task = getattr(importlib.import_module(module_name), class_name, None)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the task's module exists; a module that it imports is missing
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(
            f"task={name!r}: unknown task. Use {', '.join(sorted(TASKS))}, or MODULE:CLASS with a "
            "subclass of bertjax.tasks.task.Task and its module on PYTHONPATH."
        )
    return task


def register_heads(checkpoint: epath.Path | None = None) -> None:
    """Import the tasks whose heads a model may have, since a task's module registers its heads.

    Args:
      checkpoint: a checkpoint of bertjax, whose task is imported; None for a published model, which
        may have the heads of any task in `TASKS`.
    """
    names = [*TASKS]
    if checkpoint is not None:
        names = [json.loads((checkpoint / "config.json").read_text())["task"]]
    for name in names:
        with contextlib.suppress(InputError):  # without its task a checkpoint is still an encoder
            find_task(name)


def make_objective(config: Config, batch_size_multiple: int = 1) -> Objective:
    """Return the objective of a configuration; see `Objective` for the arguments."""
    return find_task(config.task).objective_class(config, batch_size_multiple)


def pipeline_classes() -> Iterator[type[Pipeline[Any]]]:
    """Yield the pipelines of all registered tasks."""
    for name in TASKS:
        yield from find_task(name).pipeline_classes


def infer_config(model: NumpyModel) -> Config:
    """Return a configuration for a model that was not trained by bertjax, chosen by its heads.

    Raises:
      InputError: no task has a model with these heads.
    """
    for name in TASKS:
        task = find_task(name)
        fields = task.config_for_model(model)
        if fields is not None:
            data = {**data_fields()[name], **fields.get("data", {})}
            return Config(name, model=model.config, **{**fields, "data": data})
    raise InputError(
        f"model with {', '.join(model.params)}: no task has these heads. Convert it to hf."
    )


def data_fields() -> Mapping[str, Mapping[str, Any]]:
    """Return task name -> defaults of its `data` fields; a lookup imports the task's module."""
    return _DataFields()


class _DataFields(Mapping[str, Mapping[str, Any]]):
    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return {name: field.default for name, field in find_task(name).DATA_FIELDS.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)
