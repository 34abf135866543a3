"""Frozen dataclasses of a configuration from nested mappings, checked field by field."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError


def build_dataclass(
    cls: type, raw: Mapping[str, Any], prefix: str = "", suggestions: type | None = None
) -> Any:
    """An instance of the dataclass from a mapping, nested dataclasses included.

    Args:
      prefix: of the names of its fields, for messages.
      known: the dataclass whose fields a misspelt one is compared with; `cls` by default.
    Raises:
      InputError: a field is not known, or its value has another type.
    """
    suggestions = suggestions or cls
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in raw.items():
        if name not in hints:
            raise InputError(unknown_field_message(prefix + name, _all_fields(suggestions)))
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise InputError(f"{prefix}{name}={value!r} must be a section with fields.")
            values[name] = build_dataclass(
                typing.cast(type, hint), value, f"{prefix}{name}.", suggestions
            )
        else:
            values[name] = coerce(prefix + name, value, hint)
    return cls(**values)


def unknown_field_message(name: str, suggestions: Sequence[str]) -> str:
    """A sentence that names the nearest of the known fields."""
    nearest = difflib.get_close_matches(name, suggestions, n=1, cutoff=0.0)
    return f"{name} is no field of the configuration: did you mean {nearest[0]}?"


def _all_fields(cls: type, prefix: str = "") -> list[str]:
    names = []
    for name, hint in typing.get_type_hints(cls).items():
        names.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            names += _all_fields(typing.cast(type, hint), f"{prefix}{name}.")
    return names


def coerce(name: str, value: Any, hint: Any) -> Any:
    """The value as the type that the field has; integers serve where floats are wanted.

    Raises:
      InputError: it is of another type.
    """
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = any(type(value) is kind for kind in allowed)  # bool is no int here
    if not fits:
        kinds = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        raise InputError(f"{name}={value!r} is a {type(value).__name__}: it must be {kinds}.")
    return value
