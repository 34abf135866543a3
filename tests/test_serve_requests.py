"""Requests to the HTTP server: batches, limits, timeouts and errors."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LONG
from served_models import LIMITS, Served, exchange, wait_until
from test_interface import write_model

from bertjax.errors import CommandError
from bertjax.serving.app import make_app
from bertjax.serving.connections import idle_timeout_protocol
from bertjax.serving.metrics import ServerMetrics
from bertjax.serving.options import DEFAULT_MODEL, Access
from bertjax.serving.server import bind_socket


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


@pytest.mark.seconds
def test_queued_requests_are_one_batch(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    texts = [f"{'ba ' * n}[MASK]" for n in range(1, 7)]
    with ThreadPoolExecutor(len(texts)) as clients:
        futures: list[Future] = [clients.submit(it.predict, texts[0])]
        wait_until(lambda: sizes == [1])
        futures += [clients.submit(it.predict, text) for text in texts[1:]]
        wait_until(lambda: len(it.batches._queue) == 5)
        gate.set()
        answers = [future.result() for future in futures]
    assert sizes == [1, 5]
    assert [answer["text"] for answer in answers] == texts
    single = [it.model.predict(text) for text in texts]
    assert [answer["sequence"] for answer in answers] == [answer["sequence"] for answer in single]


@pytest.mark.seconds
def test_invalid_request_of_a_batch_does_not_fail_the_others(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    bodies = [json.dumps({"inputs": text}).encode() for text in ("ba [MASK]", "ba", "[MASK] ki")]
    with ThreadPoolExecutor(4) as clients:
        first = clients.submit(it.predict, "[MASK]")
        wait_until(lambda: sizes == [1])
        futures = [clients.submit(it.send, "POST", "/predict", body) for body in bodies]
        wait_until(lambda: len(it.batches._queue) == 3)
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
        wait_until(lambda: len(it.batches._queue) == LIMITS.max_queued_inputs)
        status, content = it.send("POST", "/predict", b'{"inputs": "[MASK]"}')
        assert status == 503 and content["error"].startswith("12 inputs are queued already")
        gate.set()
        assert all(future.result()["masks"] for future in futures)
    assert max(sizes) == LIMITS.max_inputs


def test_request_of_a_closed_connection_leaves_the_queue(served, gated) -> None:
    it, (sizes, gate) = served("fill_mask"), gated
    body = json.dumps({"inputs": "ba [MASK]"})
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(it.predict, "[MASK]")
        wait_until(lambda: sizes == [1])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", it.port)) as line:
            line.request("POST", "/predict", body)
            wait_until(lambda: it.batches.num_queued == 1)
        wait_until(lambda: it.batches.num_queued == 0)
        gate.set()
        assert first.result()
    it.batches.drain(LONG)
    assert sizes == [1]


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
    for path in ("/", "/health"):
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", it.port, timeout=60)
        ) as line:
            line.request("GET", path, headers=headers)
            assert line.getresponse().status == status


REQUEST = {"inputs": "ba [MASK]"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the request is no JSON"),
        (b"{", 400, "the request is no JSON"),
        (b"[" * 3000, 400, "the request is no JSON"),  # Python 3.11 parses 1,000 levels, 3.13 more
        (b'"\xff"', 400, "the request is not UTF-8"),
        (b"[1]", 400, 'the request has no "inputs"'),
        (b'{"texts": []}', 400, 'the request has no "inputs"'),
        (b'{"inputs": "[MASK]", "al": 1}', 400, "the request has an unknown key 'al'"),
        (b'{"inputs": "[MASK]", "return_all_scores": 1}', 400, "return_all_scores=1: no boolean"),
        (b'{"inputs": 1}', 400, "inputs=1: give a text"),
        (b'{"inputs": [1]}', 400, "input 0: 1 is no input"),
        (b'{"inputs": {"source": "[MASK]"}}', 400, "input 0: no text. Give a text, or an"),
        (
            b'{"inputs": {"text": "[MASK]", "top_k": 9}}',
            400,
            "input 0: the model does not read the key 'top_k'",
        ),
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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CommandError("numbers are not finite. Check."), "numbers are not finite. Check."),
        (KeyError("a fault"), "the model failed at this request. See the server's log."),
    ],
)
def test_failure_of_the_model_is_a_500(served, monkeypatch, caplog, error, message) -> None:
    it = served("fill_mask")

    def fail(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(it.predictor, "predict", fail)
    body = json.dumps(REQUEST).encode()
    status, content, headers = exchange(it.port, "POST", "/predict", body, X_Request_ID="id-7")
    assert (status, content) == (500, {"error": message}) and headers["X-Model-Version"]
    has_traceback = "request id-7 failed" in caplog.text
    assert has_traceback == isinstance(error, KeyError)


def test_unknown_routes_and_methods_are_rejected_with_the_known_ones(served) -> None:
    for method, path, status, allowed in (
        ("GET", "/x", 404, set()),
        ("GET", "/predict", 405, {"POST"}),
        ("PUT", "/", 405, {"GET", "HEAD"}),
    ):
        found_status, content, headers = exchange(served("fill_mask").port, method, path)
        assert found_status == status and content["error"].endswith("GET /metrics or GET /health.")
        assert {*filter(None, headers.get("Allow", "").split(", "))} == allowed


def send_bytes(port: int, sent: bytes) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as line:
        line.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                received += part
        return received


@pytest.mark.seconds
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
    kind = idle_timeout_protocol(1.0)
    it, waited, aborted = kind.__new__(kind), [], []
    left = iter([100, 60, 60])
    it.cycle, it._wait = None, lambda: waited.append(True)
    it.transport = SimpleNamespace(
        get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
    )
    for _ in range(3):
        it._close_if_idle()
    assert len(waited) == 2 and len(aborted) == 1


def test_cancelled_answer_of_a_stopping_server_is_a_503() -> None:
    cancelled: Future = Future()
    cancelled.cancel()
    version = SimpleNamespace(name="1-a")
    model: Any = SimpleNamespace(submit=lambda *_: (version, cancelled), version=version)
    status, content = ask(model, "POST", "/predict", is_closing=True)
    assert status == 503 and content["error"].startswith("the server is shutting down")


def test_request_of_a_client_that_disconnects_is_cancelled() -> None:
    waiting: Future = Future()
    version = SimpleNamespace(name="1-a")
    model: Any = SimpleNamespace(submit=lambda *_: (version, waiting), version=version)
    status, _ = ask(model, "POST", "/predict", is_closing=False, disconnects=True)
    assert status == 499 and waiting.cancelled()


@pytest.mark.parametrize(
    ("is_loaded", "is_closing", "status", "message"),
    [
        (True, False, 200, "ready"),
        (False, False, 503, "loading default"),
        (True, True, 503, "the server is shutting down"),
    ],
)
def test_server_is_ready_between_load_and_shutdown(is_loaded, is_closing, status, message) -> None:
    model: Any = SimpleNamespace(version=object() if is_loaded else None)
    found_status, content = ask(model, "GET", "/ready", is_closing)
    assert found_status == status
    assert next(iter(content.values())).startswith(message)


def ask(
    model: Any, method: str, path: str, is_closing: bool, disconnects: bool = False
) -> tuple[int, Any]:
    """Return the status and the content of an application's response, without a server."""
    closing = threading.Event()
    if is_closing:
        closing.set()
    app = make_app({DEFAULT_MODEL: model}, LIMITS, Access(), ServerMetrics(), closing)
    body = json.dumps(REQUEST).encode()
    messages: list[Any] = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict:
        if not received and not disconnects:
            await asyncio.Event().wait()  # the client waits for its answer
        return received.pop() if received else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "server": ("127.0.0.1", 80)}
    asyncio.run(app(scope, receive, send))
    return messages[0]["status"], json.loads(messages[1]["body"] or "null")
