"""What a request may be, and what it asks."""

import asyncio
import dataclasses
import json
from typing import Any, NamedTuple

from starlette.requests import Request

from bertjax.inference.predictor import make_inputs
from bertjax.tasks.task import Input
from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json

_REQUEST_FORMAT = (
    '{"inputs": ...}, a text or an object or a list of them, with "everything": true for more'
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is refused, so that no request takes what others need.

    Attributes:
      bytes: of a request's body.
      inputs: of a request, and of those that are answered in one batch.
      characters: of an input.
      waiting: inputs that wait, of all requests, while others are answered.
      seconds: until a request has come in whole, and an idle connection is closed.
      connections: at once.
    """

    bytes: int = 1 << 20
    inputs: int = 32
    characters: int = 20_000
    waiting: int = 256
    seconds: float = 10.0
    max_connections: int = 1024


class RequestRejected(Exception):
    """A request that is not answered, for a reason that the message gives in one sentence.

    Attributes:
      status: of HTTP.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class PredictRequest(NamedTuple):
    """What a request asks: one input `alone`, or a list; and whether for `return_all_scores`."""

    inputs: list[Input]
    alone: bool
    return_all_scores: bool


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request.

    Raises:
      Refusal: it is too large or too slow.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.bytes:
                    raise RequestRejected(
                        413,
                        f"the request has more than {limits.bytes:,} bytes: send fewer inputs, or "
                        "shorter ones.",
                    )
    except TimeoutError:
        raise RequestRejected(
            408, f"the request did not come in whole within {limits.seconds:g} s: send it again."
        ) from None
    return bytes(body)


def parse_request(body: bytes, limits: Limits) -> PredictRequest:
    """What the body of a request asks.

    Raises:
      InputError: it is not of the form, or asks too much.
    """
    try:
        said = parse_json(body.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"the request is not UTF-8 ({error.reason}): send {_REQUEST_FORMAT}."
        ) from None
    except ValueError as error:
        raise InputError(f"the request is no JSON ({error}): send {_REQUEST_FORMAT}.") from None
    if not isinstance(said, dict) or "inputs" not in said:
        raise InputError(f"the request is no object with inputs: send {_REQUEST_FORMAT}.")
    for name in said.keys() - {"inputs", "everything"}:
        raise InputError(f"the request has {name!r}, which is not known: send {_REQUEST_FORMAT}.")
    return_all_scores = said.get("everything", False)
    if not isinstance(return_all_scores, bool):
        raise InputError(f'"everything" is {return_all_scores!r}: make it true or false.')
    if not isinstance(said["inputs"], str | dict | list):
        raise InputError(f'"inputs" is {said["inputs"]!r}: give a text, an object or a list.')
    inputs, alone = make_inputs(said["inputs"])
    if len(inputs) > limits.inputs:
        raise InputError(
            f"the request has {len(inputs)} inputs and may have {limits.inputs}: send several."
        )
    for location, each in inputs:
        if (count := _count_characters(location, each)) > limits.characters:
            raise InputError(
                f"{location} has {count:,} characters and may have {limits.characters:,}: shorten it."
            )
    return PredictRequest(inputs, alone, return_all_scores)


def _count_characters(location: str, said: Any) -> int:
    try:
        return len(said) if isinstance(said, str) else len(json.dumps(said, ensure_ascii=False))
    except RecursionError:
        raise InputError(
            f"{location} is nested too deeply: give texts and lists of them."
        ) from None
