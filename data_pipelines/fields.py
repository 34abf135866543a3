"""Declaration of configuration fields: default and description in one place."""

import dataclasses
from typing import Any

Field = dataclasses.Field[Any]


def field(default: Any, description: str) -> Any:
    """Return a field of a dataclass or of a task's `DATA_FIELDS`.

    Args:
      default: default value.
      description: description for the table of all fields.
    """
    return dataclasses.field(default=default, metadata={"description": description})
