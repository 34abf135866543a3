"""HTTP server: answers, the page, any JSON, compilation ahead and shutdown."""

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import json
import pathlib
import random
import re
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LONG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Command
from served_models import INPUTS, METHODS, send, wait_until
from test_interface import write_model

from bertjax.cli import termination
from bertjax.serving import server as server_module
from bertjax.serving.page import render_page
from bertjax.serving.server import bind_socket
from data_pipelines.errors import InputError


@pytest.mark.seconds
@pytest.mark.parametrize("method", METHODS)
def test_server_answers_like_the_python_interface(served, method: str) -> None:
    it, item = served(method), INPUTS[method]
    assert it.predict(item) == it.model.predict(item)
    assert it.predict([item, item]) == it.model.predict([item, item])
    assert it.predict(item, return_all_scores=True) == it.model.predict(
        item, return_all_scores=True
    )
    assert it.predict([]) == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("method", "description"),
    [("fill_mask", "fills [MASK]s"), ("classify", "predicts the class of texts")],
)
def test_health_returns_status_and_description(served, method: str, description: str) -> None:
    status, content = served(method).send("GET", "/health")
    assert status == 200 and content["status"] == "ok" and content["description"] == description


@pytest.mark.seconds
@pytest.mark.parametrize("method", METHODS)
def test_requests_compile_nothing(served, method: str, compilations) -> None:
    it, draw = served(method), random.Random(method)
    del compilations[:]

    def text() -> str:
        return " ".join(draw.choices(["ba", "do", "ki", "."], k=draw.randrange(1, 24)))

    for count in (1, 2, 3, 5, 8):
        inputs: list[Any] = []
        for _ in range(count):
            inputs.append(f"{text()} [MASK]")
            if method == "answer":
                inputs[-1] = {"question": "ba", "context": text()}
            if method == "choose":
                inputs[-1] = {"context": text(), "choices": [text(), text()]}
        assert len(it.predict(inputs)) == count
    assert not compilations


def texts(max_size: int = 40) -> st.SearchStrategy[str]:
    return st.text(st.characters(), max_size=max_size)  # with unpaired surrogates


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(texts(8), values, max_size=3),
    max_leaves=6,
)
KEYS = ["text", "text_pair", "words", "question", "context", "choices", "id", "sent1", "ending0"]
KEYS += ["num_answers", "do_sample", "seed"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(inputs=JSON_VALUES | st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=4))
def test_any_json_is_answered_or_rejected(served, method: str, inputs: Any) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    status, content = served(method).send("POST", "/predict", body)
    assert status in (200, 400, 413), (inputs, content)


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
    kinds = {block["type"] for block in content["display"]}
    assert kinds and kinds <= {"text", "bars"}


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
    with pytest.raises(InputError, match=r"--host=no\.such: no address"), bind_socket("no.such", 0):
        pass


def test_bind_socket_names_the_protocol() -> None:
    """asyncio sets TCP_NODELAY only then; without it answers take 40 ms longer."""
    with bind_socket("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_serve_names_an_invalid_port_or_a_missing_library(refused, monkeypatch) -> None:
    command = ["serve", "--checkpoint", "runs/smoke"]
    assert refused(*command, "--port", "70000").startswith("--port=70000: not a port")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(*command).startswith(
        "serve: needs starlette, which is not installed. Run pip install 'bertjax[serve]'"
    )


def be_patient() -> None:
    """Let a server finish accepted requests, however slow the machine is."""
    server_module._SHUTDOWN_SECONDS, termination._GRACE_SECONDS = LONG, LONG


def start_server(
    path: pathlib.Path, begin: Callable[[], None] | None = None
) -> tuple[Command, int]:
    """Start `bertjax serve` of a small model; return the process and its port."""
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    model = write_model(path, "fill_mask")
    server = Command("serve", "--checkpoint", model, "--port", port, begin=begin)

    def is_ready() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return send(port, "GET", "/ready")[0] == 200
        assert server.poll() is None, server.communicate()
        return False

    wait_until(is_ready)
    return server, port


def post(line: socket.socket, body: bytes, length: int | None = None) -> None:
    """Send a request to predict, with as many bytes of its body as are given."""
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}"
    line.sendall(f"{head}\r\n\r\n".encode() + body)


@pytest.mark.slow
def test_stopped_server_waits_for_slow_clients_no_longer_than_it_says(tmp_path) -> None:
    server, port = start_server(tmp_path / "model")
    large = json.dumps({"inputs": ["[MASK] " * 28] * 32, "return_all_scores": True}).encode()
    small = json.dumps({"inputs": "ba [MASK]"}).encode()
    connect = functools.partial(socket.create_connection, ("127.0.0.1", port), timeout=LONG)
    with connect() as sender, connect() as half, socket.socket() as reader, connect() as other:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the server has to wait
        reader.connect(("127.0.0.1", port))
        post(reader, large)
        assert reader.recv(12) == b"HTTP/1.1 200"  # the answer is on its way, and stays there
        post(sender, b"{", length=1000)
        half.sendall(b"POST /pre")
        post(other, small)
        answer = b""
        while b'"sequence"' not in answer:  # slow clients delay no others
            answer += other.recv(1 << 16)
        begin = time.monotonic()
        server.terminate()
        while server.poll() is None:
            with contextlib.suppress(OSError):
                sender.sendall(b" ")
            assert time.monotonic() < begin + 3 * termination._GRACE_SECONDS
            time.sleep(0.1)
    assert answer.startswith(b"HTTP/1.1 200")
    assert server.poll() == 75
    assert "stopped: run the same command again" in server.communicate()[1]


@pytest.mark.slow
def test_stopped_server_answers_accepted_requests(tmp_path) -> None:
    server, port = start_server(tmp_path / "model", be_patient)
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
