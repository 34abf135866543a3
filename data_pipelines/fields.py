"""How a field of a configuration is declared: its default and its meaning, in one place."""

import dataclasses
from typing import Any

Field = dataclasses.Field[Any]


def field(default: Any, description: str) -> Any:
    """A field for a dataclass, or for a task's `DATA_FIELDS`.

    Args:
      meaning: what a user reads of it, in the table of all fields.
    """
    return dataclasses.field(default=default, metadata={"description": description})
