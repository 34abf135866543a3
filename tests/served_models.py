"""Servers of small models, and requests to them."""

import contextlib
import functools
import http.client
import json
import pathlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from conftest import LONG
from test_interface import ARGUMENTS, write_model

import bertjax
from bertjax.inference.predictor import Predictor
from bertjax.serving.batching import RequestBatcher
from bertjax.serving.options import DEFAULT_MODEL, Limits
from bertjax.serving.server import ModelServer, bind_socket

LIMITS = Limits(
    max_body_bytes=4000,
    max_inputs=8,
    max_characters=600,
    max_queued_inputs=12,
    timeout_seconds=60.0,
)
METHODS = [
    "fill_mask",
    *(pytest.param(m, marks=pytest.mark.slow) for m in ARGUMENTS if m != "fill_mask"),
]
INPUTS: dict[str, Any] = {method: arguments[0] for method, arguments in ARGUMENTS.items()} | {
    "answer": dict(zip(("question", "context"), ARGUMENTS["answer"], strict=True)),
    "choose": dict(zip(("context", "choices"), ARGUMENTS["choose"], strict=True)),
    "extract_answers": {
        "context": ARGUMENTS["extract_answers"][0], "num_answers": "2", "do_sample": "true",
        "seed": "3",
    },
}  # fmt: skip


class Served:
    """A served model, and the same one in Python."""

    def __init__(self, path: Any, listener: socket.socket, limits: Limits = LIMITS) -> None:
        self.model, self.port = bertjax.load(path), listener.getsockname()[1]
        self.server = ModelServer(listener, {DEFAULT_MODEL: path}, limits)
        try:
            self.server.load()
        except Exception:
            self.server.close()
            raise

    @property
    def predictor(self) -> Predictor:
        version = self.server.models[DEFAULT_MODEL].version
        assert version
        return version.predictor

    @property
    def batches(self) -> RequestBatcher:
        version = self.server.models[DEFAULT_MODEL].version
        assert version
        return version.batches

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        return send(self.port, method, path, body)

    def predict(self, inputs: Any, **options: Any) -> Any:
        body = json.dumps({"inputs": inputs} | options).encode()
        status, content = self.send("POST", "/predict", body)
        assert status == 200, content
        return content["answers"]


def send(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Return the status and the content of a response."""
    status, content, _ = exchange(port, method, path, body)
    return status, content


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    """Return the status, the content and the headers of a response."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as line:
        line.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
        response = line.getresponse()
        text = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(text) if is_json else text, response.headers


@contextlib.contextmanager
def serve_models(root: pathlib.Path) -> Iterator[Callable[[str], Served]]:
    """Yield a function that starts the server of a method's model once; close the servers."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def serve(method: str) -> Served:
            listener = stack.enter_context(bind_socket("127.0.0.1", 0))
            started = Served(write_model(root / method, method), listener)
            stack.callback(started.server.close)
            return started

        yield serve


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)
