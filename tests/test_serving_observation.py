"""Request ids, metrics of Prometheus and log lines of the server."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_models import Served, exchange

from bertjax.serving.metrics import ServerMetrics
from bertjax.serving.observation import RequestObserver

BODY = json.dumps({"inputs": ["ba [MASK]", "[MASK] do"]}).encode()


def endpoint() -> None:
    """Stand for the handler of a route."""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer with status 200, as the predictions of a model."""
    record = scope["state"]["record"]
    scope["endpoint"] = endpoint
    record.model, record.version, record.num_inputs, record.num_truncated = "moods", "7-ab", 3, 1
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def fail(scope: Any, receive: Any, send: Any) -> None:
    raise KeyError("a fault")


def observe(
    app: Any, metrics: ServerMetrics, method: str = "POST", path: str = "/predict", id_: str = ""
) -> dict[str, str]:
    """Return the headers of the response of an observed application."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"x-request-id", id_.encode())] if id_ else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    scope["client"] = ("10.0.0.1", 5)
    observer = RequestObserver(app, {endpoint: "/predict"}, metrics, logs_requests=True)
    asyncio.run(observer(scope, None, send))  # type: ignore[arg-type]
    return {name.decode(): value.decode() for name, value in messages[0]["headers"]}


def scrape(it: Served) -> dict[tuple[str, frozenset], float]:
    """Return the samples of `GET /metrics` by name and labels."""
    status, text, headers = exchange(it.port, "GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset]:
    return f"bertjax_{name}", frozenset(labels.items())


@pytest.mark.seconds
def test_metrics_count_requests_batches_and_queue(served) -> None:
    it = served("fill_mask")
    before = scrape(it)
    for body, path in ((BODY, "/predict"), (b"{", "/predict"), (BODY, "/models/default/predict")):
        it.send("POST", path, body)
    for method, path in (("GET", "/wp-login"), ("GET", "/wp-admin"), ("BREW", "/"), ("PUT", "/")):
        it.send(method, path)
    after = scrape(it)

    def growth(name: str, **labels: str) -> float:
        return after[key(name, **labels)] - before.get(key(name, **labels), 0)

    predictions = {"route": "/predict", "model": "default"}
    posted = predictions | {"method": "POST"}
    assert growth("http_requests_total", **posted, status="200") == 2
    assert growth("http_requests_total", **posted, status="400") == 1
    assert growth("http_request_duration_seconds_count", **predictions) == 3
    assert 0 < growth("http_request_duration_seconds_sum", **predictions) < 600
    other = {"route": "other", "model": "", "method": "GET", "status": "404"}
    assert growth("http_requests_total", **other) == 2
    refused = {"route": "/", "model": "", "method": "other", "status": "405"}
    assert growth("http_requests_total", **refused) == 2
    assert growth("batch_inputs_count", model="default") == 2
    assert growth("batch_inputs_sum", model="default") == 4
    assert growth("batch_inputs_bucket", model="default", le="1.0") == 0
    assert growth("batch_inputs_bucket", model="default", le="2.0") == 2
    assert after[key("queued_inputs", model="default")] == 0
    version = it.send("GET", "/health")[1]["version"]
    labels = {"model": "default", "version": version, "path": str(it.predictor.path)}
    assert after[key("model_info", **labels)] == 1
    assert ("process_resident_memory_bytes", frozenset()) in after


@pytest.mark.seconds
@pytest.mark.parametrize("path", ["/predict", "/health", "/", "/nowhere", "/models/none/predict"])
def test_valid_request_id_is_returned(served, path: str) -> None:
    it = served("fill_mask")
    for method in ("GET", "POST"):
        for headers in ({}, {"Origin": "http://evil.example"}):
            _, _, found = exchange(it.port, method, path, BODY, X_Request_ID="a-1/b:2", **headers)
            assert found["X-Request-ID"] == "a-1/b:2"


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "é", 'a"b', "a;b"])
def test_invalid_request_id_is_replaced(sent: str) -> None:
    metrics = ServerMetrics()
    found = {observe(answer, metrics, id_=sent)["x-request-id"] for _ in range(3)}
    assert len(found) == 3 and all(len(id_) == 32 and id_.isalnum() for id_ in found)


def test_answer_names_the_version_of_the_model(served) -> None:
    it = served("fill_mask")
    version = it.send("GET", "/health")[1]["version"]
    name, _, digest = version.rpartition("-")
    assert name == "fill_mask" and len(digest) == 12 and int(digest, 16) >= 0
    for path in ("/predict", "/models/default/predict"):
        assert exchange(it.port, "POST", path, BODY)[2]["X-Model-Version"] == version
    for method, path in (("GET", "/health"), ("POST", "/nowhere")):
        assert "X-Model-Version" not in exchange(it.port, method, path)[2]


def log_lines(caplog: pytest.LogCaptureFixture) -> list[Mapping[str, Any]]:
    return [json.loads(r.message) for r in caplog.records if r.name == "bertjax.requests"]


def test_log_has_one_line_in_json_for_each_request(caplog) -> None:
    caplog.set_level(logging.INFO, "bertjax.requests")
    metrics = ServerMetrics()
    path = '/predict\n{"status": 1}'
    observe(answer, metrics, path=path, id_="abc")
    with pytest.raises(KeyError):
        observe(fail, metrics)
    first, second = log_lines(caplog)
    assert "\n" not in caplog.records[0].message
    assert 0 <= first.pop("seconds") < 60 and first.pop("time").endswith("+00:00")  # type: ignore[attr-defined]
    assert first == {
        "request_id": "abc", "client": "10.0.0.1", "method": "POST", "path": path, "status": 200,
        "model": "moods", "version": "7-ab", "inputs": 3, "truncated": 1,
    }  # fmt: skip
    assert second["status"] == 500 and second["model"] == ""
    (truncated,) = (
        sample.value
        for family in metrics.truncated_inputs.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    )
    assert truncated == 1


def test_requests_are_logged_by_option_only(served, caplog) -> None:
    caplog.set_level(logging.INFO, "bertjax.requests")
    served("fill_mask").predict("[MASK]")
    assert not log_lines(caplog)
