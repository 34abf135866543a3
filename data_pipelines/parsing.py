"""JSON as users write it."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """What a JSON text says; a byte-order mark before it is passed over.

    Raises:
      json.JSONDecodeError: it is no JSON, or is nested deeper than Python reads.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None
