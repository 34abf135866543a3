"""Options of the server: limits, hosts, origins and names of models."""

import contextlib
import dataclasses
import http.client
import json
from collections.abc import Iterator

import pytest
from conftest import LONG
from served_models import LIMITS, send
from test_interface import write_model

from bertjax.serving.options import DEFAULT_MODEL, Access, Limits
from bertjax.serving.server import ModelServer, bind_socket
from data_pipelines.errors import InputError

SERVE = ("serve", "--checkpoint", "runs/smoke")
PAGE = "https://pages.example"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--max-inputs", "0"], "--max-inputs=0: not positive"),
        (["--max-body-bytes", "-1"], "--max-body-bytes=-1: not positive"),
        (["--timeout-seconds", "nan"], "--timeout-seconds=nan: not positive"),
        (["--timeout-seconds", "inf"], "--timeout-seconds=inf: not positive"),
        (["--max-queued-inputs", "8"], "--max-queued-inputs=8: a request of --max-inputs=32 never"),
        (["--allowed-host", "a:80"], "--allowed-host=a:80: no host name"),
        (["--allowed-host", "A.example"], "--allowed-host=A.example: no host name"),
        (["--allowed-origin", "a.example"], "--allowed-origin=a.example: no origin"),
        (["--allowed-origin", "*"], "--allowed-origin=*: no origin"),
        (["--allowed-origin", f"{PAGE}/"], f"--allowed-origin={PAGE}/: no origin"),
        (["--model", "runs/smoke"], "--model=runs/smoke: not NAME=DIR"),
        (["--model", "a/b=runs"], "--model=a/b=runs: not NAME=DIR"),
        (["--model", "a="], "--model=a=: not NAME=DIR"),
        (["--model", "default=runs"], "--model=default=runs: there is a model default already"),
        (["--model", "a=gone"], "runs/smoke"),
    ],
)
def test_serve_rejects_invalid_options(refused, arguments: list[str], error: str) -> None:
    assert refused(*SERVE, *arguments).startswith(error)


def test_serve_needs_a_model(refused, tmp_path) -> None:
    assert refused("serve").startswith("serve: no model. Give --checkpoint DIR or --model NAME=DIR")
    path = write_model(tmp_path / "model", "fill_mask")
    assert refused("serve", "--model", f"a={path}", "--model", "b=gone").startswith("gone: does no")


def test_limits_accept_a_queue_of_one_request() -> None:
    assert Limits(max_inputs=5, max_queued_inputs=5).max_queued_inputs == 5
    with pytest.raises(InputError):
        Limits(max_inputs=5, max_queued_inputs=4)


@pytest.fixture(scope="module")
def port(tmp_path_factory) -> Iterator[int]:
    """Port of a server, without a model, for a host and a page."""
    access = Access(["models.example"], [PAGE])
    path = tmp_path_factory.mktemp("models") / "missing"
    with bind_socket("127.0.0.1", 0) as listener:
        server = ModelServer(listener, {DEFAULT_MODEL: path}, LIMITS, access)
        yield listener.getsockname()[1]
        server.close()


def request(port: int, method: str, **headers: str) -> tuple[int, http.client.HTTPMessage]:
    """Return the status and the headers of a response to a request to predict."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as line:
        line.request(method, "/predict", json.dumps({"inputs": "a"}), names)
        response = line.getresponse()
        response.read()
        return response.status, response.headers


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("models.example", True),
        ("models.example:443", True),
        ("Models.Example", True),
        ("localhost", True),
        ("127.0.0.1:80", True),
        ("evil.models.example", False),
        ("models.example.evil", False),
        ("", False),
    ],
)
def test_allowed_hosts_are_those_of_the_option_and_of_the_machine(port, host, is_allowed) -> None:
    # An accepted request is rejected because the model is not loaded.
    assert request(port, "POST", Host=host)[0] == (503 if is_allowed else 403)


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [(PAGE, True), ("http://localhost", True), ("https://evil.example", False), ("null", False)],
)
def test_allowed_origins_are_those_of_the_option_and_the_own(port, origin, is_allowed) -> None:
    status, headers = request(port, "POST", Host="localhost", Origin=origin)
    assert status == (503 if is_allowed else 403)
    assert headers["Access-Control-Allow-Origin"] == (PAGE if origin == PAGE else None)


def test_browser_may_send_json_from_an_allowed_page_only(port) -> None:
    """A browser asks by OPTIONS before a page sends JSON to another origin."""
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "content-type,x-request-id",
    }
    status, headers = request(port, "OPTIONS", Host="localhost", Origin=PAGE, **asked)
    assert status == 200 and "POST" in headers["Access-Control-Allow-Methods"]
    assert "content-type" in headers["Access-Control-Allow-Headers"].lower()
    status, headers = request(port, "OPTIONS", Host="localhost", Origin="http://evil", **asked)
    assert status == 403 and "Access-Control-Allow-Origin" not in headers


def test_server_has_as_many_connections_as_its_limit(tmp_path) -> None:
    limits = dataclasses.replace(LIMITS, max_connections=1, timeout_seconds=12.5)
    with bind_socket("127.0.0.1", 0) as listener:
        server = ModelServer(listener, {DEFAULT_MODEL: tmp_path / "missing"}, limits)
        port = listener.getsockname()[1]
        assert server._server.config.timeout_keep_alive == 13
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
        for _ in range(2):
            line.request("GET", "/health")
            response = line.getresponse()
            assert response.status == 200 and response.read()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as second:
            second.request("GET", "/health")
            assert second.getresponse().status == 503
        line.close()
        server.close()


def test_server_answers_before_its_models_are_loaded(port) -> None:
    status, content = send(port, "GET", "/health")
    assert status == 200 and content["status"] == "ok" and "description" not in content
    assert send(port, "GET", "/ready") == (
        503, {"error": "loading default. Ask again later."}
    )  # fmt: skip
    assert send(port, "GET", "/")[0] == 503
    assert send(port, "GET", "/metrics")[0] == 200
