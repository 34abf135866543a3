"""Responses in JSON."""

import json
from typing import Any

from starlette.responses import Response


def json_response(content: Any, status: int = 200, **headers: str) -> Response:
    """Return a value as a response.

    Raises:
      ValueError: a number is not finite.
    """
    # ASCII, because UTF-8 cannot encode unpaired surrogates.
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def error_response(status: int, message: str, **headers: str) -> Response:
    """Return the response of a rejected request."""
    if status == 503:
        headers["Retry-After"] = "1"
    if status in (408, 413):  # the remaining body is not read
        headers["Connection"] = "close"
    return json_response({"error": message}, status, **headers)
