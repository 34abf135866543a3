"""Several models in one server, and new versions of them under load."""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from conftest import LONG
from etils import epath
from processes import Command
from prometheus_client.parser import text_string_to_metric_families
from served_models import LIMITS, exchange, send, wait_until
from test_interface import write_model
from test_serve import be_patient, start_server
from test_termination import handles
from tf1_files import write_checkpoint

import bertjax
from bertjax.errors import CommandError
from bertjax.formats import huggingface
from bertjax.serving import models as models_module
from bertjax.serving.models import ServedModel
from bertjax.serving.options import DEFAULT_MODEL
from bertjax.serving.server import ModelServer, bind_socket

NUM_CLIENTS = 32
TEXTS = [f"{'ba do ki '[: 3 * n]}lu" for n in range(1, 4)] * 2 + ["ki", "do do"]


def write_versions(root: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write two classifiers that disagree about every text."""
    first = write_model(root / "first", "classify")
    model = huggingface.read(first)  # type: ignore[arg-type]
    model.params["sequence_classification"]["bias"][:] += [1.0, -1.0, 3.0]
    labels = tuple(f"new {label}" for label in model.labels)
    second = root / "second"
    second.mkdir()
    huggingface.write(dataclasses.replace(model, labels=labels), second)  # type: ignore[arg-type]
    return first, second


def switch(link: pathlib.Path, target: pathlib.Path) -> None:
    """Let a link name another directory, atomically."""
    draft = link.with_suffix(".new")
    draft.symlink_to(target)
    draft.replace(link)


@contextlib.contextmanager
def serving(**models: pathlib.Path) -> Iterator[tuple[ModelServer, int]]:
    """Yield a server of the models, and its port."""
    with bind_socket("127.0.0.1", 0) as listener:
        server = ModelServer(listener, models, dataclasses.replace(LIMITS, max_queued_inputs=64))
        try:
            server.load()
            yield server, listener.getsockname()[1]
        finally:
            server.close()


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    return write_versions(tmp_path_factory.mktemp("versions"))


def version_of(server: ModelServer, name: str = DEFAULT_MODEL) -> str:
    version = server.models[name].version
    assert version
    return version.name


def reloads(port: int) -> dict[str, float]:
    """Return the number of reloads by outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(send(port, "GET", "/metrics")[1])
        for sample in family.samples
        if sample.name == "bertjax_model_reloads_total"
    }


@pytest.mark.slow
def test_each_model_answers_under_its_name(versions) -> None:
    body = json.dumps({"inputs": "ba do"}).encode()
    expected = [bertjax.load(path).predict("ba do") for path in versions]
    with serving(default=versions[0], other=versions[1]) as (_, port):
        found = {
            path: exchange(port, "POST", path, body)
            for path in ("/predict", "/models/default/predict", "/models/other/predict")
        }
        answers = [content["answers"] for _, content, _ in found.values()]
        assert answers == [expected[0], expected[0], expected[1]]
        names = [headers["X-Model-Version"] for _, _, headers in found.values()]
        assert names[0] == names[1] and names[0][:6] == "first-" and names[2][:7] == "second-"
        described = send(port, "GET", "/health")[1]
        assert described["models"].keys() == {"default", "other"}
        assert described["version"] == names[0]
        assert described["models"]["other"]["version"] == names[2]
        for path in ("/", "/models/default/", "/models/other/"):
            assert send(port, "GET", path)[0] == 200
        status, content = send(port, "POST", "/models/third/predict", body)
        assert status == 404
        assert content["error"] == "there is no model 'third'. Use one of default, other."


@pytest.mark.seconds
def test_server_of_named_models_has_no_default(versions, tmp_path) -> None:
    link = tmp_path / "current"
    link.symlink_to(versions[0])
    with serving(moods=link) as (_, port):
        body = json.dumps({"inputs": "ba do"}).encode()
        status, _, headers = exchange(port, "POST", "/models/moods/predict", body)
        assert status == 200 and headers["X-Model-Version"].startswith("first-")
        status, content = send(port, "POST", "/predict", body)
        assert (status, content["error"]) == (404, "there is no model 'default'. Use one of moods.")
        assert "model" not in send(port, "GET", "/health")[1]


@pytest.mark.slow
def test_reload_keeps_a_model_that_is_unchanged_or_whose_new_version_fails(
    versions, tmp_path, monkeypatch, caplog
) -> None:
    link = tmp_path / "link"
    link.symlink_to(versions[0])
    with serving(default=link) as (server, port):
        before = server.models[DEFAULT_MODEL].version
        server.request_reload()
        wait_until(lambda: reloads(port) == {"unchanged": 1})
        switch(link, tmp_path / "gone")
        server.request_reload()
        wait_until(lambda: reloads(port) == {"unchanged": 1, "failed": 1})
        assert "reload of default failed" in caplog.text and "does not exist" in caplog.text
        switch(link, versions[1])

        def fail(predictor: Any) -> None:
            raise CommandError("numbers are not finite")

        monkeypatch.setattr(models_module, "predict_sample", fail)
        server.request_reload()
        wait_until(lambda: reloads(port) == {"unchanged": 1, "failed": 2})
        assert server.models[DEFAULT_MODEL].version is before
        assert send(port, "GET", "/ready")[0] == 200
        held = sum(array.nbytes for array in jax.live_arrays())
        for failed in (3, 4):  # no parameters of versions that failed are kept
            server.request_reload()
            wait_until(lambda: reloads(port) == {"unchanged": 1, "failed": failed})  # noqa: B023
        assert sum(array.nbytes for array in jax.live_arrays()) <= held


def matches(answer: Any, right: dict[str, Any]) -> bool:
    """Return whether an answer is right up to rounding, which depends on the batch."""
    labels_match = answer is not None and answer["label"] == right["label"]
    return labels_match and abs(answer["score"] - right["score"]) < 1e-4


@pytest.mark.slow
def test_reload_frees_the_old_version(versions, tmp_path) -> None:
    link = tmp_path / "link"
    link.symlink_to(versions[0])
    with serving(default=link) as (server, port):
        body = json.dumps({"inputs": "ba do"}).encode()
        assert send(port, "POST", "/predict", body)[0] == 200
        version = server.models[DEFAULT_MODEL].version
        assert version
        old = [weakref.ref(leaf) for leaf in jax.tree.leaves(version.predictor._run.args)]
        del version
        switch(link, versions[1])
        server.request_reload()
        wait_until(lambda: reloads(port) == {"replaced": 1})
        assert len(old) > 10 and not any(array() is not None for array in old)
        assert send(port, "POST", "/predict", body)[0] == 200


@pytest.mark.slow
def test_reload_under_load_loses_no_request_and_marks_each_answer(versions, tmp_path) -> None:
    link = tmp_path / "link"
    link.symlink_to(versions[0])
    expected = {}  # by version
    statuses: Counter[int] = Counter()
    seen: Counter[str] = Counter()
    wrong: list[Any] = []
    sent, lock, stop = 0, threading.Lock(), threading.Event()

    def send_requests(client: int) -> int:
        """Send requests over one connection until the end, and return their number."""
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
        count = 0
        while not stop.is_set():
            text = TEXTS[(client + count) % len(TEXTS)]
            line.request("POST", "/predict", json.dumps({"inputs": text}))
            response = line.getresponse()
            content, version = json.loads(response.read()), response.headers["X-Model-Version"]
            count += 1
            with lock:
                statuses[response.status] += 1
                seen[version] += 1
                if not matches(content.get("answers"), expected[version][text]):
                    wrong.append((version, content))
        line.close()
        return count

    def wait_for_answers(name: str) -> None:
        """Return after the version has answered each client twice."""
        wait_until(lambda: version_of(server) == name)
        answered = seen[name]
        wait_until(lambda: seen[name] > answered + 2 * NUM_CLIENTS)

    with serving(default=link) as (server, port):
        for path in versions:  # the versions' names, known before they are served
            name = models_module.find_version(models_module.open_model(path))
            model = bertjax.load(path)
            expected[name] = {text: model.predict(text) for text in TEXTS}
        first, second = expected
        assert version_of(server) == first
        for text in TEXTS:
            assert abs(expected[first][text]["score"] - expected[second][text]["score"]) > 1e-3
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            futures = [clients.submit(send_requests, client) for client in range(NUM_CLIENTS)]
            try:
                for path, name in ((1, second), (0, first), (1, second)):
                    switch(link, versions[path])
                    server.request_reload()
                    wait_for_answers(name)
            finally:
                stop.set()
            sent = sum(future.result() for future in futures)
        wait_until(lambda: reloads(port) == {"replaced": 3})
    assert not wrong, wrong[:3]
    assert statuses == {200: sent} and sum(seen.values()) == sent
    assert seen.keys() == {first, second}


def test_reload_that_is_requested_while_models_load_waits_for_them(tmp_path) -> None:
    calls: list[str] = []
    model: Any = SimpleNamespace(
        version=None,
        load=lambda: calls.append("load"),
        reload=lambda: calls.append("reload"),
        drain=lambda timeout: None,
    )
    with bind_socket("127.0.0.1", 0) as listener:
        server = ModelServer(listener, {DEFAULT_MODEL: tmp_path / "missing"})
        server.models[DEFAULT_MODEL] = model
        try:
            server.request_reload()
            time.sleep(0.1)  # a thread that waits for requests has the time to drop it
            assert not calls
            server.load()
            wait_until(lambda: calls == ["load", "reload"])
        finally:
            server.close()


def test_prefix_of_tf1_has_a_version(tmp_path) -> None:
    prefix = epath.Path(tmp_path) / "bert_model.ckpt"
    write_checkpoint(tmp_path / prefix.name, {"global_step": np.array(7)})
    (tmp_path / "bert_config.json").write_text("{}")
    model = SimpleNamespace(path=prefix, digest="a")
    before = models_module.find_version(model)
    assert before.startswith("bert_model.ckpt-")
    (tmp_path / "vocab.txt").write_text("[PAD]")
    with_vocabulary = models_module.find_version(model)
    assert with_vocabulary != before
    (tmp_path / "1_Pooling").mkdir()  # a module of sentence-transformers
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert models_module.find_version(model) != with_vocabulary


def test_version_that_is_replaced_gets_no_more_requests(versions, monkeypatch) -> None:
    """While a request is submitted nothing can swap the version."""
    submits, finish = threading.Event(), threading.Event()
    model = ServedModel.__new__(ServedModel)
    model._lock = threading.Lock()

    class Version:
        def __init__(self) -> None:
            self.batches = self

        def submit(self, *_: Any) -> str:
            submits.set()
            assert finish.wait(60)
            return "answers"

    model.version = Version()  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(model.submit, None, "")  # type: ignore[arg-type]
        assert submits.wait(60)
        swaps = model._lock.acquire(blocking=False)
        finish.set()
        assert not swaps and answer.result() == (model.version, "answers")


@pytest.mark.slow
def test_sighup_during_the_start_reloads_after_it(tmp_path) -> None:
    with bind_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    path = write_model(tmp_path / "model", "fill_mask")
    server = Command("serve", "--checkpoint", path, "--port", port)
    wait_until(lambda: handles(server.pid, signal.SIGHUP))
    os.kill(server.pid, signal.SIGHUP)

    def is_reloaded() -> bool:
        assert server.poll() is None, server.communicate()
        with contextlib.suppress(ConnectionRefusedError):
            return reloads(port) == {"unchanged": 1}
        return False

    wait_until(is_reloaded)
    server.terminate()
    server.communicate()


@pytest.mark.slow
def test_sighup_reloads_and_sigterm_ends(versions, tmp_path) -> None:
    server, port = start_server(tmp_path / "model", be_patient)
    before = send(port, "GET", "/health")[1]["version"]
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: reloads(port) == {"unchanged": 1})
    (tmp_path / "model" / "README.md").write_text("another version")
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: reloads(port) == {"unchanged": 1, "replaced": 1})
    after = send(port, "GET", "/health")[1]["version"]
    assert after != before
    server.terminate()
    _, errors = server.communicate()
    assert server.poll() == 75
    assert f"reload of default: replaced, version {after}." in errors
