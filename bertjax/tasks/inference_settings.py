"""Settings of a run in its exports, which a model is opened with; see `Task.INFERENCE_FIELDS`."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats.inference_settings import FIX, KEY, InferenceSettings
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.task import Task
from data_pipelines.errors import InputError
from data_pipelines.log import warn_once

_CALIBRATION = "calibration."
_SECTIONS = ("decoding", "extraction")  # of which fields with other values than defaults are stored
_MIN_TEXT_LENGTH = 3  # [CLS], a token, [SEP]
_MAX_SHOWN = 300  # characters of an error with a value of the file
_MAX_NAMES = 5  # unknown fields that a warning names


def class_path(task: type[Task]) -> str:
    """Return MODULE:CLASS of the module that defines a task."""
    return f"{task.__module__}:{task.__qualname__}"


def is_trained_for(model: NumpyModel, name: str, task: type[Task]) -> bool:
    """Return whether the settings of a model are those of a task.

    Args:
      model: the model.
      name: name of the task in a configuration; a class may be imported under several names.
      task: its class.
    """
    return model.inference is not None and model.inference.task in (name, class_path(task))


def make_settings(
    task: type[Task], config: Config, calibration: Mapping[str, float]
) -> InferenceSettings | None:
    """Return the settings of a run for its exports; None if there are none.

    Args:
      task: class of the task.
      config: configuration of the run.
      calibration: calibration of the checkpoint.

    Raises:
      InputError: a field of a user's task is neither a number nor a text.
    """
    values: Any = config.to_dict()
    fields = {
        name: functools.reduce(operator.getitem, name.split("."), values)
        for name in task.INFERENCE_FIELDS
    }
    fields |= {f"{_CALIBRATION}{name}": value for name, value in calibration.items()}
    for section in _SECTIONS:
        for item in dataclasses.fields(getattr(config, section)):
            if (value := values[section][item.name]) != item.default:
                fields[f"{section}.{item.name}"] = value
    fields = {name: value for name, value in fields.items() if value is not None}  # the defaults
    for name, value in fields.items():
        if not isinstance(value, bool | int | float | str):
            raise InputError(f"{name}={value!r}: not a number or a text, as exports store it.")
    name = class_path(task) if ":" in config.task else config.task
    return InferenceSettings(name, fields) if fields else None


def apply_settings(config: Config, task: type[Task], model: NumpyModel) -> Config:
    """Return the configuration of a model with the settings that its directory has for this task.

    Lengths and strides of another `model_max_length` are not applied: whoever edits it changes the
    length of texts.

    Args:
      config: configuration that fits the model.
      task: its task.
      model: the model.

    Raises:
      InputError: a value has the wrong type, is out of range or contradicts another one.
    """
    settings = model.inference
    if settings is None:
        return config
    if not is_trained_for(model, config.task, task):
        message = (
            f"{settings.location}: of task={settings.task[:_MAX_SHOWN]!r}, and not read with task="
            f"{config.task}. If you trust the code of that task, add --task."
        )
        warn_once((settings.location, config.task), message)
        return config
    fields, fix = _known_fields(settings, task, config), FIX
    try:
        result = _override(config, fields)
        length, limit = task.max_text_length(result), model.max_text_length
        is_edited = model.max_seq_length is not None and length != limit
        if is_edited:
            warn_once(
                (settings.location, "max_seq_length"),
                f"{settings.location}: texts of {length} tokens, but tokenizer_config.json has "
                f"model_max_length={limit}, which is used. Lengths and strides of {KEY} are not "
                f"read. Delete it, or set model_max_length={length}.",
            )
            derived = {f"data.{n}" for n in (task.config_for_model(model) or {}).get("data", {})}
            derived |= {"max_seq_length"}
            fix = f"Correct model_max_length, or delete {KEY}."
            result = _override(config, {n: fields[n] for n in fields.keys() - derived})
        task.objective_class(result).check_lengths()
        if length < _MIN_TEXT_LENGTH and not is_edited:
            raise InputError(f"max_seq_length={length}: no space for text. Raise it.")
    except InputError as error:
        text = str(error)
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
        raise InputError(f"{settings.location}: {shown} {fix}") from None
    return result


def _known_fields(settings: InferenceSettings, task: type[Task], config: Config) -> dict[str, Any]:
    """Return the fields of the configuration in settings; warn of those that no export has."""
    options = {f"{s}.{x.name}" for s in _SECTIONS for x in dataclasses.fields(getattr(config, s))}
    known = options | {*task.INFERENCE_FIELDS}
    calibration = {f"{_CALIBRATION}{name}" for name in task.calibration}
    if unknown := sorted(settings.fields.keys() - known - calibration):
        names = ", ".join(unknown[:_MAX_NAMES]) + ", ..." * (len(unknown) > _MAX_NAMES)
        message = f"{settings.location}: unknown fields, which are not read: {names}."
        warn_once((settings.location, names), message)
    return {name: value for name, value in settings.fields.items() if name in known}


def find_calibration(config: Config, task: type[Task], model: NumpyModel) -> dict[str, float]:
    """Return the calibration that the directory of a model has for this task; empty without one."""
    settings = model.inference
    if settings is None or not is_trained_for(model, config.task, task):
        return {}
    names = {name: f"{_CALIBRATION}{name}" for name in task.calibration}
    fields = settings.fields
    return {name: float(fields[key]) for name, key in names.items() if key in fields}


def _override(config: Config, fields: Mapping[str, Any]) -> Config:
    texts = {name: repr(value) for name, value in fields.items()}  # a bare text may be a literal
    return load_config(config.to_dict(), texts, {config.task: config.data})
