"""Frozen dataclasses from nested mappings, checked field by field."""

import ast
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from data_pipelines.errors import InputError

Options = TypeVar("Options")

_GLOBAL = ", the sequences or examples on all devices"
# What users of `TrainingArguments` try, and no field resembles.
_TRAINER_ARGUMENTS = {
    "num_train_epochs": "steps, such as '3 epochs'",
    "max_steps": "steps",
    "warmup_steps": "optimizer.warmup",
    "warmup_ratio": "optimizer.warmup, such as '10%'",
    "lr_scheduler_type": "optimizer.schedule",
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "per_device_train_batch_size": f"batch_size{_GLOBAL}",
    "per_device_eval_batch_size": f"eval_batch_size{_GLOBAL}",
    "logging_steps": "log_every",
    "eval_steps": "eval_every",
    "save_steps": "checkpoint_every",
    "eval_strategy": "eval_every",
    "save_strategy": "checkpoint_every",
    "save_total_limit": "max_to_keep",
    "metric_for_best_model": "best_metric",
    "load_best_model_at_end": "best_metric",
    "label_smoothing_factor": "data.label_smoothing",
    **dict.fromkeys(("bf16", "fp16"), "model.dtype=bfloat16"),
    "output_dir": "--workdir",
    "model_name_or_path": "init",
}


def build_dataclass(
    cls: type, raw: Mapping[str, Any], prefix: str = "", suggestions: type | None = None
) -> Any:
    """Return an instance of a dataclass, nested dataclasses included.

    Args:
      cls: the dataclass.
      raw: field name -> value, or a mapping for a nested dataclass.
      prefix: prefix of the names in error messages.
      suggestions: the dataclass whose fields an error message suggests; `cls` by default.

    Raises:
      InputError: a field is unknown, or its value has another type.
    """
    suggestions = suggestions or cls
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in raw.items():
        if name not in hints:
            raise InputError(unknown_field_message(prefix + name, value, _all_fields(suggestions)))
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                first = dataclasses.fields(hint)[0].name
                raise InputError(
                    f"{prefix}{name}={value!r}: is not a section. Set fields such as "
                    f"{prefix}{name}.{first}."
                )
            values[name] = build_dataclass(
                typing.cast(type, hint), value, f"{prefix}{name}.", suggestions
            )
        else:
            values[name] = coerce(prefix + name, value, hint)
    try:
        return cls(**values)
    except InputError as error:  # classes that are no part of a configuration, too, name no section
        if str(error).startswith(prefix):
            raise
        raise InputError(f"{prefix}{error}") from None


def unknown_field_message(name: str, value: Any, known: Sequence[str]) -> str:
    """Return the error message for an unknown field, with the most similar known one."""
    if field := _TRAINER_ARGUMENTS.get(name):
        return f"{name}={value!r}: an argument of Trainer. Use {field}."
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"{name}={value!r}: there is no such field. Did you mean {nearest[0]}?"


class SpelledInt(int):
    """An integer whose text is another one than Python's, such as 2026_11_27.

    Attributes:
      text: the text, which is the value of a field of text.
    """

    text: str

    def __new__(cls, value: int, text: str) -> "SpelledInt":
        """Return the integer with its text."""
        result = super().__new__(cls, value)
        result.text = text
        return result

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        """Return the arguments of a copy."""
        return int(self), self.text


def coerce(name: str, value: Any, hint: Any) -> Any:
    """Return a value in the type of its field.

    An integer becomes a float or a text, an integral float an integer, and a tuple the text "0,2".

    Args:
      name: name of the field in error messages.
      value: its value.
      hint: a type, or a union of types.

    Raises:
      InputError: the value has another type.
    """
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, SpelledInt):
        value = value.text if allowed == (str,) else int(value)
    is_huge = isinstance(value, int) and abs(value) >= 1 << 63
    if float in allowed and isinstance(value, int) and not isinstance(value, bool) and not is_huge:
        return float(value)
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    if allowed == (str,) and type(value) is int:  # such as the number of a column
        return str(value)
    if allowed == (str,) and type(value) is tuple:  # of text such as 0,2,4
        return ",".join(map(str, value))
    if is_huge:
        raise InputError(f"{name}={value}: is too large. Use less than 64 bits.")
    if not any(type(value) is kind for kind in allowed):  # bool does not count as int
        kinds = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        if {int, str} <= {*allowed} and isinstance(value, float) and 0 < value < 1:
            kinds = f"a whole number, or a share such as '{100 * value:g}%'"
        raise InputError(f"{name}={value!r}: is of type {type(value).__name__}. Use {kinds}.")
    return value


def _all_fields(cls: type, prefix: str = "") -> list[str]:
    names = []
    for name, hint in typing.get_type_hints(cls).items():
        names.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            names += _all_fields(typing.cast(type, hint), f"{prefix}{name}.")
    return names


def override_options(options: Options, values: Mapping[str, Any]) -> Options:
    """Return a dataclass of options in which the fields that occur in `values` are replaced.

    Args:
      options: the options.
      values: values by name, typed or as text; other names are ignored.

    Raises:
      InputError: a value has the wrong type, or is out of its range.
    """
    changes = {}
    for name, hint in typing.get_type_hints(type(options)).items():
        if name in values:
            value = values[name]
            if isinstance(value, str):
                value = parse_literal(value.strip())
            changes[name] = coerce(name, value, hint)
    return dataclasses.replace(options, **changes) if changes else options  # type: ignore[type-var]


def spelled(value: int, text: str) -> int:
    """Return an integer, with its text where that is not Python's."""
    return value if str(value) == text else SpelledInt(value, text)


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal, or the text if it is none.

    An integer is a `SpelledInt` where the text is not that of Python.
    """
    try:
        value = ast.literal_eval(text)
        return spelled(value, text) if type(value) is int else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
