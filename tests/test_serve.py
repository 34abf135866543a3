"""`bertjax serve`: what it answers and refuses, what it computes at once, and how it ends."""

import asyncio
import contextlib
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
from test_interface import ASKED, write_model

import bertjax
from bertjax.cli import termination
from bertjax.inference.predictor import Predictor
from bertjax.serving import server as server_module
from bertjax.serving.page import render_page
from bertjax.serving.requests import Limits
from bertjax.serving.server import Server, bind_socket
from data_pipelines.errors import InputError

LIMITS = Limits(bytes=4000, inputs=8, characters=600, waiting=12, seconds=60.0)
METHODS = [
    "fill_mask",
    *(pytest.param(m, marks=pytest.mark.slow) for m in ASKED if m != "fill_mask"),
]
INPUTS: dict[str, Any] = {method: asked[0] for method, asked in ASKED.items()} | {
    "answer": dict(zip(("question", "context"), ASKED["answer"], strict=True)),
    "choose": dict(zip(("context", "choices"), ASKED["choose"], strict=True)),
}


class Served:
    """A model behind a port of this machine, and the same one asked from Python."""

    def __init__(self, path: Any, listener: socket.socket, limits: Limits = LIMITS) -> None:
        self.model, self.opened = bertjax.load(path), Predictor(path)
        self.port = listener.getsockname()[1]
        self.server = Server(listener, self.opened, limits)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        return ask(self.port, method, path, body)

    def predict(self, inputs: Any, **options: Any) -> Any:
        body = json.dumps({"inputs": inputs} | options).encode()
        status, said = self.ask("POST", "/predict", body)
        assert status == 200, said
        return said["answers"]


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """The status of a response, and what it says."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as line:
        line.request(method, path, body)
        response = line.getresponse()
        said = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(said) if is_json else said


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Callable[[str], Served]]:
    """Gives the server for the model of a method, which is there once."""
    root = tmp_path_factory.mktemp("served")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def serve(method: str) -> Served:
            listener = stack.enter_context(bind_socket("127.0.0.1", 0))
            found = Served(write_model(root / method, method), listener)
            stack.callback(found.server.close)
            return found

        yield serve


@pytest.fixture
def hasty(tmp_path) -> Iterator[Served]:
    """A server of a filling model that waits a second for a request."""
    limits = dataclasses.replace(LIMITS, seconds=1.0)
    with bind_socket("127.0.0.1", 0) as listener:
        it = Served(write_model(tmp_path / "fill_mask", "fill_mask"), listener, limits)
        yield it
        it.server.close()


@pytest.fixture
def held(served, monkeypatch) -> Iterator[tuple[list[int], threading.Event]]:
    """How many inputs each batch of the filling model has had since the test began; it computes
    none before the event.
    """
    opened, sizes, go = served("fill_mask").opened, [], threading.Event()
    answers = opened.answers

    def answer(inputs: list, **options: Any) -> Any:
        sizes.append(len(inputs))
        assert go.wait(LONG)
        return answers(inputs, **options)

    monkeypatch.setattr(opened, "answers", answer)
    yield sizes, go
    go.set()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_is_that_of_the_model_in_python(served, method: str) -> None:
    it, one = served(method), INPUTS[method]
    assert it.predict(one) == it.model.predict(one)
    assert it.predict([one, one]) == it.model.predict([one, one])
    assert it.predict(one, return_all_scores=True) == it.model.predict(one, return_all_scores=True)
    assert it.predict([]) == []


@pytest.mark.parametrize(
    ("method", "description"),
    [("fill_mask", "fills [MASK]s"), ("classify", "tells the class of texts")],
)
def test_it_says_that_it_is_well_and_what_it_does(served, method: str, description: str) -> None:
    status, said = served(method).ask("GET", "/health")
    assert status == 200 and said["status"] == "ok" and said["description"] == description


def test_requests_that_wait_together_are_one_batch(served, held) -> None:
    it, (sizes, go) = served("fill_mask"), held
    texts = [f"{'ba ' * n}[MASK]" for n in range(1, 7)]
    with ThreadPoolExecutor(len(texts)) as clients:
        found: list[Future] = [clients.submit(it.predict, texts[0])]
        until(lambda: sizes == [1])
        found += [clients.submit(it.predict, text) for text in texts[1:]]
        until(lambda: len(it.server._batches._queue) == 5)
        go.set()
        answers = [each.result() for each in found]
    assert sizes == [1, 5]
    assert [each["text"] for each in answers] == texts
    alone = [it.model.predict(text) for text in texts]
    assert [each["filled"] for each in answers] == [each["filled"] for each in alone]


def test_a_request_that_cannot_be_answered_takes_no_other_with_it(served, held) -> None:
    it, (sizes, go) = served("fill_mask"), held
    bodies = [json.dumps({"inputs": text}).encode() for text in ("ba [MASK]", "ba", "[MASK] ki")]
    with ThreadPoolExecutor(4) as clients:
        first = clients.submit(it.predict, "[MASK]")
        until(lambda: sizes == [1])
        found = [clients.submit(it.ask, "POST", "/predict", body) for body in bodies]
        until(lambda: len(it.server._batches._queue) == 3)
        go.set()
        assert first.result()
        assert sorted(each.result()[0] for each in found) == [200, 200, 400]
        assert found[1].result()[1]["error"].startswith("input 0 has no [MASK]")


def test_more_than_may_wait_are_told_to_come_again_and_none_is_lost(served, held) -> None:
    it, (sizes, go) = served("fill_mask"), held
    with ThreadPoolExecutor(LIMITS.waiting + 1) as clients:
        found = [clients.submit(it.predict, "[MASK]")]
        until(lambda: sizes == [1])
        found += [clients.submit(it.predict, "ba [MASK]") for _ in range(LIMITS.waiting)]
        until(lambda: len(it.server._batches._queue) == LIMITS.waiting)
        status, said = it.ask("POST", "/predict", b'{"inputs": "[MASK]"}')
        assert status == 503 and said["error"].startswith("12 inputs wait already")
        go.set()
        assert all(each.result()["masks"] for each in found)
    assert max(sizes) == LIMITS.inputs


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_compiled_for_a_request(served, method: str, compilations) -> None:
    it, draw = served(method), random.Random(method)
    del compilations[:]

    def text() -> str:
        return " ".join(draw.choices(["ba", "do", "ki", "."], k=draw.randrange(1, 24)))

    for count in (1, 2, 3, 5, 8):
        asked: list[Any] = []
        for _ in range(count):
            asked.append(f"{text()} [MASK]" if method in ("fill_mask", "tag", "classify") else None)
            if method == "answer":
                asked[-1] = {"question": "ba", "context": text()}
            if method == "choose":
                asked[-1] = {"context": text(), "choices": [text(), text()]}
        assert len(it.predict(asked)) == count
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
def test_pages_of_other_servers_are_not_answered(served, headers: dict, status: int) -> None:
    """A browser sends what any page asks, also by a name that was made to point here."""
    it, body = served("fill_mask"), json.dumps({"inputs": "[MASK]"})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", it.port, timeout=60)) as line:
        line.request("POST", "/predict", body, headers)
        assert line.getresponse().status == status


FORM = {"inputs": "ba [MASK]"}


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        (b"", 400, "the request is no JSON"),
        (b"{", 400, "the request is no JSON"),
        (b"[" * 3000, 400, "the request is no JSON (it is nested too deeply"),
        (b'"\xff"', 400, "the request is not UTF-8"),
        (b"[1]", 400, "the request is no object with inputs"),
        (b'{"texts": []}', 400, "the request is no object with inputs"),
        (b'{"inputs": "[MASK]", "al": 1}', 400, "the request has 'al', which is not known"),
        (b'{"inputs": "[MASK]", "everything": 1}', 400, '"everything" is 1'),
        (b'{"inputs": 1}', 400, '"inputs" is 1'),
        (b'{"inputs": [1]}', 400, "input 0 is 1: give a text"),
        (b'{"inputs": {"text": "[MASK]"}}', 400, "input 0 is no text"),
        (b'{"inputs": ["[MASK]", "ba"]}', 400, "input 1 has no [MASK]"),
        (json.dumps({"inputs": ["[MASK]"] * 9}).encode(), 400, "the request has 9 inputs and may"),
        (json.dumps({"inputs": "ba " * 201}).encode(), 400, "input 0 has 603 characters and may"),
        (json.dumps({"inputs": "[MASK]" * 99}).encode(), 400, "input 0 has 101 pieces and"),
        (json.dumps({"inputs": "ba " * 1400}).encode(), 413, "the request has more than 4,000 b"),
    ],
)
def test_what_is_no_request_is_refused_in_a_sentence(served, body, status, complaint) -> None:
    it = served("fill_mask")
    found, said = it.ask("POST", "/predict", body)
    assert (found, said["error"][: len(complaint)]) == (status, complaint)
    assert said["error"].endswith(".") and "\n" not in said["error"]
    assert it.predict(FORM["inputs"])  # nobody else notices


def test_other_paths_and_methods_are_refused_with_those_there_are(served) -> None:
    for method, path, status in (("GET", "/x", 404), ("GET", "/predict", 405), ("PUT", "/", 405)):
        found, said = served("fill_mask").ask(method, path)
        assert found == status and said["error"].endswith("POST /predict: ask one of these.")


def texts(most: int = 40) -> st.SearchStrategy[str]:
    return st.text(st.characters(), max_size=most)  # halves of surrogate pairs too


THINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(texts(8), each, max_size=3),
    max_leaves=6,
)
KEYS = ["text", "text_pair", "words", "question", "context", "choices", "id", "sent1", "ending0"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(inputs=THINGS | st.dictionaries(st.sampled_from(KEYS), THINGS, max_size=4))
def test_whatever_is_asked_is_answered_or_refused(served, method: str, inputs: Any) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    status, said = served(method).ask("POST", "/predict", body)
    assert status in (200, 400, 413), (inputs, said)


def raw(port: int, sent: bytes) -> bytes:
    """What comes back for what was sent, until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as line:
        line.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                found += part
        return found


def test_who_does_not_end_a_request_is_not_waited_for(hasty) -> None:
    it = hasty
    half = raw(
        it.port, b'POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"inp'
    )
    assert half.startswith(b"HTTP/1.1 408") and b"did not come in whole within 1 s" in half
    assert raw(it.port, b"POST /predict HTTP/1.1\r\nHo") == b""
    assert raw(it.port, b"") == b""
    assert raw(it.port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert it.predict(FORM["inputs"])


def test_who_still_reads_an_answer_is_waited_for_and_who_has_stopped_is_not() -> None:
    kind = server_module._idle_timeout_protocol(1.0)
    it, waited, aborted = kind.__new__(kind), [], []
    left = iter([100, 60, 60])
    it.cycle, it._wait = None, lambda: waited.append(True)
    it.transport = SimpleNamespace(
        get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
    )
    for _ in range(3):
        it._end()
    assert len(waited) == 2 and len(aborted) == 1


def test_an_answer_that_an_ending_server_gives_up_is_a_503(served) -> None:
    given_up: Future = Future()
    given_up.cancel()
    batches = SimpleNamespace(ask=lambda asked: given_up)
    app = server_module.make_app(served("fill_mask").opened, batches, LIMITS)
    body = json.dumps(FORM).encode()
    said: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "server": ("127.0.0.1", 80)}
    asyncio.run(app(scope, receive, send))
    assert said[0]["status"] == 503
    assert json.loads(said[1]["body"])["error"].startswith("the server is ending")


@pytest.mark.parametrize("method", METHODS)
def test_page_has_the_form_fields_and_loads_nothing(served, method: str) -> None:
    status, page = served(method).ask("GET", "/")
    names = [*INPUTS[method]] if isinstance(INPUTS[method], dict) else [""]
    assert status == 200 and re.findall(r'<textarea name="(.*?)"', page) == names
    assert served(method).opened.description in page
    assert not re.search(r"https?://|src=|href=|@import|innerHTML", page)


@pytest.mark.slow
def test_page_escapes_names_of_the_model(served, tmp_path) -> None:
    config = served("classify").opened.config
    data = config.data | {"text": "<b>", "text_pair": '"><script>'}
    predictor = SimpleNamespace(
        path=tmp_path / "<i>",
        description="labels <u>",
        config=dataclasses.replace(config, data=data),
    )
    page = render_page(predictor)  # type: ignore[arg-type]
    assert page.count("<script>") == 1 and not re.search("<[biu]>", page)


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"--port {port} cannot be had \(Address already"),
            bind_socket("127.0.0.1", port),
        ):
            pass
    with (
        pytest.raises(InputError, match=r"--host no\.such is no address"),
        bind_socket("no.such", 0),
    ):
        pass


def test_a_port_or_a_library_that_is_not_there_is_named(refused, monkeypatch) -> None:
    command = ["serve", "--checkpoint", "runs/smoke"]
    assert refused(*command, "--port", "70000").startswith("--port 70000 is no port")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(*command) == "starlette is missing; pip install 'bertjax[serve]'."


def be_patient() -> None:
    """Makes a server wait for what it has accepted, however slow the machine is."""
    server_module._SHUTDOWN_SECONDS, termination._GRACE_SECONDS = LONG, LONG


@pytest.mark.slow
def test_stopped_it_answers_what_it_has_accepted(tmp_path) -> None:
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    model = write_model(tmp_path / "model", "fill_mask")
    server = Command("serve", "--checkpoint", model, "--port", port, begin=be_patient)

    def ready() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return ask(port, "GET", "/health")[0] == 200
        assert server.poll() is None, server.communicate()
        return False

    until(ready)
    body = json.dumps({"inputs": ["ba [MASK]"] * 32}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as line:
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        line.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode() + body[:-1])
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 100")  # it is being read
        server.terminate()
        time.sleep(0.3)
        line.sendall(body[-1:])
        found = b""
        while part := line.recv(1 << 16):
            found += part
    assert found.startswith(b"HTTP/1.1 200") and found.count(b'"filled"') == 32
    said, told = server.communicate()
    assert server.poll() == 75 and "stopped: run the same command again" in told
    assert said.startswith(f"http://127.0.0.1:{port}/ ")
    with pytest.raises(ConnectionRefusedError):
        ask(port, "GET", "/health")
