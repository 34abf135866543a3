"""HTTP server: answers, errors, batches, compilation ahead and shutdown."""

import asyncio
import contextlib
import copy
import dataclasses
import functools
import http.client
import importlib.util
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LONG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Command
from test_interface import ARGUMENTS, write_model

import bertjax
from bertjax.cli import termination
from bertjax.inference.predictor import Predictor
from bertjax.serving import server as server_module
from bertjax.serving.page import render_page
from bertjax.serving.requests import Limits
from bertjax.serving.server import ModelServer, bind_socket
from data_pipelines.errors import InputError

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
}


class Served:
    """A served model, and the same one in Python."""

    def __init__(self, path: Any, listener: socket.socket, limits: Limits = LIMITS) -> None:
        self.model, self.predictor = bertjax.load(path), Predictor(path)
        self.port = listener.getsockname()[1]
        self.server = ModelServer(listener, self.predictor, limits)

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        return send(self.port, method, path, body)

    def predict(self, inputs: Any, **options: Any) -> Any:
        body = json.dumps({"inputs": inputs} | options).encode()
        status, content = self.send("POST", "/predict", body)
        assert status == 200, content
        return content["answers"]


def send(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Return the status and the content of a response."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as line:
        line.request(method, path, body)
        response = line.getresponse()
        text = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(text) if is_json else text


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Callable[[str], Served]]:
    """Return a function that starts the server of a method's model once."""
    root = tmp_path_factory.mktemp("served")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def serve(method: str) -> Served:
            listener = stack.enter_context(bind_socket("127.0.0.1", 0))
            started = Served(write_model(root / method, method), listener)
            stack.callback(started.server.close)
            return started

        yield serve


@pytest.fixture
def impatient(tmp_path) -> Iterator[Served]:
    """Server of a fill-mask model with a timeout of one second."""
    limits = dataclasses.replace(LIMITS, timeout_seconds=1.0)
    with bind_socket("127.0.0.1", 0) as listener:
        it = Served(write_model(tmp_path / "fill_mask", "fill_mask"), listener, limits)
        yield it
        it.server.close()


@pytest.fixture
def gated(served, monkeypatch) -> Iterator[tuple[list[int], threading.Event]]:
    """Number of inputs of each batch of the fill-mask model, and an event that it waits for."""
    predictor, sizes, gate = served("fill_mask").predictor, [], threading.Event()
    predict = predictor.predict

    def predict_at_gate(inputs: list, **options: Any) -> Any:
        sizes.append(len(inputs))
        assert gate.wait(LONG)
        return predict(inputs, **options)

    monkeypatch.setattr(predictor, "predict", predict_at_gate)
    yield sizes, gate
    gate.set()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


@pytest.mark.parametrize("method", METHODS)
def test_server_answers_like_the_python_interface(served, method: str) -> None:
    it, item = served(method), INPUTS[method]
    assert it.predict(item) == it.model.predict(item)
    assert it.predict([item, item]) == it.model.predict([item, item])
    assert it.predict(item, return_all_scores=True) == it.model.predict(
        item, return_all_scores=True
    )
    assert it.predict([]) == []


@pytest.mark.parametrize(
    ("method", "description"),
    [("fill_mask", "fills [MASK]s"), ("classify", "predicts the class of texts")],
)
def test_health_returns_status_and_description(served, method: str, description: str) -> None:
    status, content = served(method).send("GET", "/health")
    assert status == 200 and content["status"] == "ok" and content["description"] == description


def test_queued_requests_are_one_batch(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    texts = [f"{'ba ' * n}[MASK]" for n in range(1, 7)]
    with ThreadPoolExecutor(len(texts)) as clients:
        futures: list[Future] = [clients.submit(it.predict, texts[0])]
        wait_until(lambda: sizes == [1])
        futures += [clients.submit(it.predict, text) for text in texts[1:]]
        wait_until(lambda: len(it.server._batches._queue) == 5)
        gate.set()
        answers = [future.result() for future in futures]
    assert sizes == [1, 5]
    assert [answer["text"] for answer in answers] == texts
    single = [it.model.predict(text) for text in texts]
    assert [answer["sequence"] for answer in answers] == [answer["sequence"] for answer in single]


def test_invalid_request_of_a_batch_does_not_fail_the_others(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    bodies = [json.dumps({"inputs": text}).encode() for text in ("ba [MASK]", "ba", "[MASK] ki")]
    with ThreadPoolExecutor(4) as clients:
        first = clients.submit(it.predict, "[MASK]")
        wait_until(lambda: sizes == [1])
        futures = [clients.submit(it.send, "POST", "/predict", body) for body in bodies]
        wait_until(lambda: len(it.server._batches._queue) == 3)
        gate.set()
        assert first.result()
        assert sorted(future.result()[0] for future in futures) == [200, 200, 400]
        assert futures[1].result()[1]["error"].startswith("input 0: there is no [MASK]")


def test_full_queue_rejects_requests_and_loses_none(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    with ThreadPoolExecutor(LIMITS.max_queued_inputs + 1) as clients:
        futures = [clients.submit(it.predict, "[MASK]")]
        wait_until(lambda: sizes == [1])
        futures += [
            clients.submit(it.predict, "ba [MASK]") for _ in range(LIMITS.max_queued_inputs)
        ]
        wait_until(lambda: len(it.server._batches._queue) == LIMITS.max_queued_inputs)
        status, content = it.send("POST", "/predict", b'{"inputs": "[MASK]"}')
        assert status == 503 and content["error"].startswith("12 inputs are queued already")
        gate.set()
        assert all(future.result()["masks"] for future in futures)
    assert max(sizes) == LIMITS.max_inputs


@pytest.mark.parametrize("method", METHODS)
def test_requests_compile_nothing(served, method: str, compilations) -> None:
    it, draw = served(method), random.Random(method)
    del compilations[:]

    def text() -> str:
        return " ".join(draw.choices(["ba", "do", "ki", "."], k=draw.randrange(1, 24)))

    for count in (1, 2, 3, 5, 8):
        inputs: list[Any] = []
        for _ in range(count):
            inputs.append(
                f"{text()} [MASK]" if method in ("fill_mask", "tag", "classify") else None
            )
            if method == "answer":
                inputs[-1] = {"question": "ba", "context": text()}
            if method == "choose":
                inputs[-1] = {"context": text(), "choices": [text(), text()]}
        assert len(it.predict(inputs)) == count
    assert not compilations


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "localhost:80", "Origin": "http://localhost:80"}, 200),
        ({"Host": "localhost:80", "Origin": "http://localhost:81"}, 403),
    ],
)
def test_requests_of_pages_of_other_servers_are_rejected(
    served, headers: dict, status: int
) -> None:
    """A browser sends requests of any page, also to a name that resolves to this machine."""
    it, body = served("fill_mask"), json.dumps({"inputs": "[MASK]"})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", it.port, timeout=60)) as line:
        line.request("POST", "/predict", body, headers)
        assert line.getresponse().status == status


REQUEST = {"inputs": "ba [MASK]"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the request is no JSON"),
        (b"{", 400, "the request is no JSON"),
        (b"[" * 3000, 400, "the request is no JSON (it is nested too deeply"),
        (b'"\xff"', 400, "the request is not UTF-8"),
        (b"[1]", 400, 'the request has no "inputs"'),
        (b'{"texts": []}', 400, 'the request has no "inputs"'),
        (b'{"inputs": "[MASK]", "al": 1}', 400, "the request has an unknown key 'al'"),
        (b'{"inputs": "[MASK]", "return_all_scores": 1}', 400, "return_all_scores=1: no boolean"),
        (b'{"inputs": 1}', 400, "inputs=1: give a text"),
        (b'{"inputs": [1]}', 400, "input 0: 1 is no input"),
        (b'{"inputs": {"text": "[MASK]"}}', 400, "input 0: the input is an object"),
        (b'{"inputs": ["[MASK]", "ba"]}', 400, "input 1: there is no [MASK]"),
        (json.dumps({"inputs": ["[MASK]"] * 9}).encode(), 400, "the request has 9 inputs and may"),
        (
            json.dumps({"inputs": "ba " * 201}).encode(),
            400,
            "input 0: it has 603 characters and may",
        ),
        (
            json.dumps({"inputs": "[MASK]" * 99}).encode(),
            400,
            "input 0: the text has 101 tokens and",
        ),
        (json.dumps({"inputs": "ba " * 1400}).encode(), 413, "the request has more than 4,000 b"),
    ],
)
def test_invalid_request_is_rejected_in_one_line(served, body, status, message) -> None:
    it = served("fill_mask")
    found_status, content = it.send("POST", "/predict", body)
    assert (found_status, content["error"][: len(message)]) == (status, message)
    assert content["error"].endswith(".") and "\n" not in content["error"]
    assert it.predict(REQUEST["inputs"])  # other requests do not notice


def test_unknown_routes_are_rejected_with_the_known_ones(served) -> None:
    for method, path, status in (("GET", "/x", 404), ("GET", "/predict", 405), ("PUT", "/", 405)):
        found_status, content = served("fill_mask").send(method, path)
        assert found_status == status and content["error"].endswith("GET /health or POST /predict.")


def texts(max_size: int = 40) -> st.SearchStrategy[str]:
    return st.text(st.characters(), max_size=max_size)  # with unpaired surrogates


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(texts(8), values, max_size=3),
    max_leaves=6,
)
KEYS = ["text", "text_pair", "words", "question", "context", "choices", "id", "sent1", "ending0"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(inputs=JSON_VALUES | st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=4))
def test_any_json_is_answered_or_rejected(served, method: str, inputs: Any) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    status, content = served(method).send("POST", "/predict", body)
    assert status in (200, 400, 413), (inputs, content)


def send_bytes(port: int, sent: bytes) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as line:
        line.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                received += part
        return received


def test_unfinished_request_times_out(impatient) -> None:
    it = impatient
    half = send_bytes(
        it.port, b'POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"inp'
    )
    assert half.startswith(b"HTTP/1.1 408") and b"did not arrive within 1 s" in half
    assert send_bytes(it.port, b"POST /predict HTTP/1.1\r\nHo") == b""
    assert send_bytes(it.port, b"") == b""
    assert send_bytes(it.port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert it.predict(REQUEST["inputs"])


def test_connection_is_aborted_when_the_client_stops_reading() -> None:
    kind = server_module._idle_timeout_protocol(1.0)
    it, waited, aborted = kind.__new__(kind), [], []
    left = iter([100, 60, 60])
    it.cycle, it._wait = None, lambda: waited.append(True)
    it.transport = SimpleNamespace(
        get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
    )
    for _ in range(3):
        it._close_if_idle()
    assert len(waited) == 2 and len(aborted) == 1


def test_cancelled_answer_of_a_stopping_server_is_a_503(served) -> None:
    cancelled: Future = Future()
    cancelled.cancel()
    batches = SimpleNamespace(submit=lambda request: cancelled)
    app = server_module.make_app(served("fill_mask").predictor, batches, LIMITS)
    body = json.dumps(REQUEST).encode()
    messages: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "server": ("127.0.0.1", 80)}
    asyncio.run(app(scope, receive, send))
    assert messages[0]["status"] == 503
    assert json.loads(messages[1]["body"])["error"].startswith("the server is shutting down")


@pytest.mark.parametrize("method", METHODS)
def test_page_has_the_form_fields_and_loads_nothing(served, method: str) -> None:
    status, page = served(method).send("GET", "/")
    names = [*INPUTS[method]] if isinstance(INPUTS[method], dict) else [""]
    assert status == 200 and re.findall(r'<textarea name="(.*?)"', page) == names
    assert served(method).predictor.pipeline.description in page
    assert not re.search(r"https?://|src=|href=|@import|innerHTML", page)


@pytest.mark.parametrize("method", METHODS)
def test_response_has_the_blocks_that_display_an_answer(served, method: str) -> None:
    it, item = served(method), INPUTS[method]
    request = {"inputs": item, "return_all_scores": True, "display": True}
    status, content = it.send("POST", "/predict", json.dumps(request).encode())
    assert status == 200 and content["answers"] == it.predict(item, return_all_scores=True)
    assert content["display"] and {block["type"] for block in content["display"]} <= {
        "text",
        "bars",
    }


@pytest.mark.slow
def test_page_escapes_names_of_the_model(served, tmp_path) -> None:
    predictor = served("classify").predictor
    pipeline = copy.copy(predictor.pipeline)
    pipeline.objective, pipeline.description = copy.copy(pipeline.objective), "labels <u>"
    config = predictor.config
    pipeline.objective.config = dataclasses.replace(
        config, data=config.data | {"text": "<b>", "text_pair": '"><script>'}
    )
    renamed: Any = SimpleNamespace(path=tmp_path / "<i>", pipeline=pipeline)
    page = render_page(renamed)
    assert page.count("<script>") == 1 and not re.search("<[biu]>", page)


def test_bind_socket_rejects_an_address_in_use_or_unknown() -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"--host=127.0.0.1 --port={port}: Address already"),
            bind_socket("127.0.0.1", port),
        ):
            pass
    with (
        pytest.raises(InputError, match=r"--host=no\.such: no address"),
        bind_socket("no.such", 0),
    ):
        pass


def test_serve_names_an_invalid_port_or_a_missing_library(refused, monkeypatch) -> None:
    command = ["serve", "--checkpoint", "runs/smoke"]
    assert refused(*command, "--port", "70000").startswith("--port=70000: not a port")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(*command).startswith(
        "starlette: not installed. Run pip install 'bertjax[serve]'"
    )


def be_patient() -> None:
    """Let a server finish accepted requests, however slow the machine is."""
    server_module._SHUTDOWN_SECONDS, termination._GRACE_SECONDS = LONG, LONG


@pytest.mark.slow
def test_stopped_server_answers_accepted_requests(tmp_path) -> None:
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    model = write_model(tmp_path / "model", "fill_mask")
    server = Command("serve", "--checkpoint", model, "--port", port, begin=be_patient)

    def is_ready() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return send(port, "GET", "/health")[0] == 200
        assert server.poll() is None, server.communicate()
        return False

    wait_until(is_ready)
    body = json.dumps({"inputs": ["ba [MASK]"] * 32}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as line:
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        line.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode() + body[:-1])
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 100")  # the server reads the body
        server.terminate()
        time.sleep(0.3)
        line.sendall(body[-1:])
        received = b""
        while part := line.recv(1 << 16):
            received += part
    assert received.startswith(b"HTTP/1.1 200") and received.count(b'"sequence"') == 32
    output, errors = server.communicate()
    assert server.poll() == 75 and "stopped: run the same command again" in errors
    assert output.startswith(f"http://127.0.0.1:{port}/ ")
    with pytest.raises(ConnectionRefusedError):
        send(port, "GET", "/health")
