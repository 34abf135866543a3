"""JSON parsing that tolerates byte-order marks and rejects deep nesting."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, without the byte-order mark it may begin with.

    Raises:
      json.JSONDecodeError: it is not JSON, or nested more deeply than Python can parse.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None
