"""JSON parsing that tolerates byte-order marks and rejects deep nesting."""

import json
from typing import Any

from data_pipelines.errors import InputError


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, without the byte-order mark it may begin with.

    Raises:
      json.JSONDecodeError: it is not JSON, or nested more deeply than Python can parse.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None


def parse_object(location: str, line: str) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises:
      InputError: the line, at `location`, is not a JSON object.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise InputError(f"{location}: not JSON ({error}). Write one object per line.") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise InputError(f"{location}: {kind}, not a JSON object. Write one object per line.")
    return value
