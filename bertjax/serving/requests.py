"""Parsing of requests, within the limits."""

import asyncio
import json
from typing import Any, NamedTuple

from starlette.requests import Request

from bertjax.inference.predictor import make_inputs
from bertjax.serving.options import Limits
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json

_OPTIONS = ("return_all_scores", "display")  # booleans
_REQUEST_FORMAT = (
    '{"inputs": ...} with a text, an object or a list of them, and "return_all_scores": true for '
    "all scores"
)


class RequestRejectedError(Exception):
    """Request that is not answered; the message says why in one line.

    Attributes:
      status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PredictRequest(NamedTuple):
    """Parsed body of a request.

    Attributes:
      inputs: the inputs.
      is_single: whether the request has one input that is no list.
      return_all_scores: add all scores to the answers.
      display: add the blocks that show each answer on the web page.
    """

    inputs: list[PredictInput]
    is_single: bool
    return_all_scores: bool
    display: bool


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
      RequestRejectedError: the body is too large or too slow.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.max_body_bytes:
                    raise RequestRejectedError(
                        413,
                        f"the request has more than {limits.max_body_bytes:,} bytes. Send fewer or "
                        "shorter inputs.",
                    )
    except TimeoutError:
        raise RequestRejectedError(
            408, f"the request did not arrive within {limits.timeout_seconds:g} s. Send it again."
        ) from None
    return bytes(body)


def parse_request(body: bytes, limits: Limits) -> PredictRequest:
    """Return the parsed body of a request.

    Raises:
      InputError: the body is malformed or exceeds a limit.
    """
    try:
        content = parse_json(body.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"the request is not UTF-8 ({error.reason}). Send {_REQUEST_FORMAT}."
        ) from None
    except ValueError as error:
        raise InputError(f"the request is no JSON ({error}). Send {_REQUEST_FORMAT}.") from None
    if not isinstance(content, dict) or "inputs" not in content:
        raise InputError(f'the request has no "inputs". Send {_REQUEST_FORMAT}.')
    for name in content.keys() - {"inputs", *_OPTIONS}:
        raise InputError(f"the request has an unknown key {name!r}. Send {_REQUEST_FORMAT}.")
    options = {name: content.get(name, False) for name in _OPTIONS}
    for name, value in options.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r}: no boolean. Use true or false.")
    if not isinstance(content["inputs"], str | dict | list):
        raise InputError(f"inputs={content['inputs']!r}: give a text, an object or a list.")
    inputs, is_single = make_inputs(content["inputs"])
    if len(inputs) > limits.max_inputs:
        raise InputError(
            f"the request has {len(inputs)} inputs and may have {limits.max_inputs}. Send several "
            "requests."
        )
    for location, value in inputs:
        if (count := count_characters(location, value)) > limits.max_characters:
            raise InputError(
                f"{location}: it has {count:,} characters and may have {limits.max_characters:,}. "
                "Shorten it."
            )
    return PredictRequest(inputs, is_single, **options)


def count_characters(location: str, content: Any) -> int:
    """Return the characters of an input; raise InputError if it is nested too deeply."""
    if isinstance(content, str):
        return len(content)
    try:
        return len(json.dumps(content, ensure_ascii=False))
    except RecursionError:
        raise InputError(f"{location}: nested too deeply. Give texts and lists of them.") from None
