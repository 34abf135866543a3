"""Registry of tasks by name. A new task is one new file or folder, and one line in `TASKS`.

A task outside this package needs no line. A configuration names it as `MODULE:CLASS`, such as
`task="my_package.sentiment:SentimentTask"`. Its module is imported only where a user names it: in a
configuration or by `--task`. The name in a checkpoint alone runs no code.
"""

import contextlib
import dataclasses
import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from etils import epath

from bertjax.config.config import Config
from bertjax.config.loading import read_config_dict
from bertjax.config.user_functions import add_current_directory
from bertjax.formats.tensors import NumpyModel
from bertjax.model.heads import HEADS
from bertjax.steps.objective import Objective
from bertjax.tasks.inference_settings import (
    apply_settings,
    class_path,
    find_calibration,
    is_trained_for,
    make_settings,
)
from bertjax.tasks.pipeline import Pipeline
from bertjax.tasks.task import Task
from data_pipelines.errors import InputError

TASKS = {  # task name -> MODULE:CLASS; of a published model the first that `config_for_model` fits
    "embeddings": "bertjax.tasks.embeddings.task:EmbeddingsTask",
    "pretraining": "bertjax.tasks.pretraining:PretrainingTask",
    "question_answering": "bertjax.tasks.question_answering.task:QuestionAnsweringTask",
    "answer_extraction": "bertjax.tasks.answer_extraction.task:AnswerExtractionTask",
    "sequence_classification": (
        "bertjax.tasks.sequence_classification.task:SequenceClassificationTask"
    ),
    "generation": "bertjax.tasks.generation.task:GenerationTask",
    "multiple_choice": "bertjax.tasks.multiple_choice:MultipleChoiceTask",
    "token_classification": "bertjax.tasks.token_classification.task:TokenClassificationTask",
}


def import_task(name: str) -> type[Task]:
    """Import the module of a task that the user names, and return its class.

    Raises:
      InputError: there is no task of this name.
    """
    module_name, _, class_name = TASKS.get(name, name).partition(":")
    add_current_directory()
    if all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the task's module exists; a module that it imports is missing
            raise _unknown_task(name) from None
    return find_task(name)


def find_task(name: str) -> type[Task]:
    """Return the class of a registered task, or of one whose module is imported already.

    Raises:
      InputError: there is no task of this name, or its module is not imported: whoever wrote a
        checkpoint must not choose the code that runs.
    """
    if name in TASKS:
        module_name, _, class_name = TASKS[name].partition(":")
        task = getattr(importlib.import_module(module_name), class_name)
    else:
        module_name, colon, class_name = name.partition(":")
        module = sys.modules.get(module_name)
        if module is None and colon:
            raise InputError(
                f"task={name!r}: not imported, because a file names it. If you trust the code, add "
                f"--task {name}, or import {module_name} in Python."
            )
        task = vars(module).get(class_name) if module else None
    is_task = isinstance(task, type) and issubclass(task, Task) and hasattr(task, "DATA_FIELDS")
    if not is_task:
        raise _unknown_task(name)
    return task


def task_argument(name: str) -> str:
    """Return " --task NAME" for a task that commands must import; "" for a built-in one."""
    return "" if name in TASKS else f" --task {shlex.quote(name)}"


def _unknown_task(name: str) -> InputError:
    return InputError(
        f"task={name!r}: unknown task. Use {', '.join(sorted(TASKS))}, or MODULE:CLASS with a "
        "subclass of bertjax.tasks.task.Task and its module in this directory or on PYTHONPATH."
    )


def register_heads(checkpoint: epath.Path | None = None) -> None:
    """Import the registered tasks whose heads a model may have, which their modules register.

    Args:
      checkpoint: a checkpoint of bertjax, whose task is imported; None for a published model, which
        may have the heads of any task in `TASKS`.
    """
    names = [*TASKS]
    if checkpoint is not None:
        names = [read_config_dict(checkpoint / "config.json").get("task") or Config.task]
    for name in names:
        with contextlib.suppress(InputError):  # without its task a checkpoint is still an encoder
            find_task(name)


def make_objective(config: Config, batch_size_multiple: int = 1) -> Objective:
    """Return the objective of a configuration; see `Objective` for the arguments."""
    return find_task(config.task).objective_class(config, batch_size_multiple)


def count_labels(config: Config) -> Config:
    """Return the configuration with the numbers of labels of its data, where it gives none.

    Data are read only if heads of the task have labels, and the configuration names data.

    Raises:
      InputError: the data are invalid.
    """
    task, data = find_task(config.task), config.data
    has_labels = any(HEADS[name].has_label_names for name in task.objective_class.heads)
    if config.model.num_labels or not has_labels or not (data["dir"] or data.get("train_file")):
        return config
    return task(config).config


def make_train_objective(
    config: Config,
    objective: Objective,
    parts: Iterable[str] | None = None,
    load_teacher: Callable[[], Any] | None = None,
) -> Objective:
    """Return the objective of the train step; see `Task.make_train_objective`."""
    return find_task(config.task).make_train_objective(config, objective, parts, load_teacher)


def pipeline_classes() -> Iterator[type[Pipeline[Any]]]:
    """Yield the pipelines of all registered tasks and of those that a user has imported."""
    for name in _known_names():
        yield from find_task(name).pipeline_classes


def _known_names() -> list[str]:
    """Return the names of the registered tasks, and of those whose module a user has imported."""
    classes, imported = Task.__subclasses__(), list[str]()
    for task in classes:  # which grows
        classes += task.__subclasses__()
        name = class_path(task)
        is_task = hasattr(task, "DATA_FIELDS") and not inspect.isabstract(task)
        found = getattr(sys.modules.get(task.__module__), task.__qualname__, None)
        if is_task and found is task and name not in TASKS.values():
            imported.append(name)
    return [*TASKS, *dict.fromkeys(imported)]


def infer_config(model: NumpyModel, task_name: str | None = None) -> Config:
    """Return a configuration for a model in another format, chosen by its heads.

    It has the settings of the run that an export stores for the same task.

    Args:
      model: the model.
      task_name: task that it was trained for; None to choose among `TASKS` and tasks that a user
        has imported.

    Raises:
      InputError: no task has a model with these heads, or its settings are invalid.
    """
    config = _infer_config(model, _known_names() if task_name is None else [task_name])
    if config is None:
        raise InputError(
            f"model with {', '.join(model.params)}: no task has these heads. Add --task "
            "MODULE:CLASS of its task, or import its module."
        )
    return config


def _infer_config(model: NumpyModel, names: Iterable[str]) -> Config | None:
    """Return the configuration of the first task that has the heads of a model, or None.

    The task of its run comes first.
    """
    tasks = {name: find_task(name) for name in names}
    for name, task in sorted(tasks.items(), key=lambda item: not is_trained_for(model, *item)):
        fields = task.config_for_model(model)
        if fields is not None:
            data = {**data_fields()[name], **fields.get("data", {})}
            config = Config(name, model=model.config, **{**fields, "data": data})
            return apply_settings(config, task, model)
    return None


def infer_calibration(model: NumpyModel) -> dict[str, float]:
    """Return the calibration of a model in another format; empty without one.

    Raises:
      InputError: the settings of the model are invalid.
    """
    config = _infer_config(model, _known_names()) if model.inference else None
    return find_calibration(config, find_task(config.task), model) if config else {}


def with_applied_settings(model: NumpyModel) -> NumpyModel:
    """Return a model in another format with the text length and the settings that it is used with.

    Its files may lack the length, or have lengths that an edited `model_max_length` replaces.

    Raises:
      InputError: the settings of the model are invalid.
    """
    settings = model.inference
    config = _infer_config(model, _known_names()) if settings else None
    if config is None or settings is None:
        return model
    task = find_task(config.task)
    if not is_trained_for(model, config.task, task):
        return model
    applied = make_settings(task, config, find_calibration(config, task, model))
    fields = {**settings.fields, **(applied.fields if applied else {})}
    return dataclasses.replace(
        model,
        max_seq_length=task.max_text_length(config),
        inference=settings._replace(fields=fields),
    )


def data_fields(imports_task: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """Return task name -> defaults of its `data` fields; a lookup imports a registered task.

    Args:
      imports_task: also import the module of a task that is not registered, which a user names.
    """
    return _DataFields(import_task if imports_task else find_task)


class _DataFields(Mapping[str, Mapping[str, Any]]):
    def __init__(self, find: Callable[[str], type[Task]]) -> None:
        self._find = find

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return {name: field.default for name, field in self._find(name).DATA_FIELDS.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)
