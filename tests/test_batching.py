"""Queues of requests: fairness between requests and between models, failures, and their end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LONG

from bertjax.serving.batching import ComputeThread, RequestBatcher
from bertjax.serving.options import Limits
from bertjax.serving.requests import PredictRequest
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError

LIMITS = Limits(max_inputs=4, max_characters=10, max_queued_inputs=100)


class Predictor:
    """Predictor that waits for `proceed` and records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.proceed = threading.Event()

    def predict(
        self, inputs: Sequence[PredictInput], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        self.batches.append([item.content for item in inputs])
        self.proceed.wait(30)
        for item in inputs:
            if item.content == "bad":
                raise InputError("bad")
            yield {"text": item.content}


def request(*texts: str) -> PredictRequest:
    inputs = [PredictInput(f"input {i}", text) for i, text in enumerate(texts)]
    return PredictRequest(inputs, False, False, False)


def texts_of(future: Any) -> list[str]:
    return [answer["text"] for answer in future.result(30)]


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.close()


def test_long_request_delays_others_by_one_part(thread) -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS, thread)
    long = ["x" * 9, "y" * 9, "z" * 9]
    slow = batcher.submit(request(*long))
    while not predictor.batches:
        time.sleep(0.01)
    fast = [batcher.submit(request("a")), batcher.submit(request("b", "c", "d"))]
    predictor.proceed.set()
    assert [texts_of(future) for future in fast] == [["a"], ["b", "c", "d"]]
    assert texts_of(slow) == long
    assert predictor.batches == [[long[0]], ["a", "b", "c", "d"], [long[1]], [long[2]]]


def test_failed_request_leaves_the_others(thread) -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS, thread)
    first = batcher.submit(request("a"))
    while not predictor.batches:
        time.sleep(0.01)
    bad, good = batcher.submit(request("bad")), batcher.submit(request("b"))
    predictor.proceed.set()
    assert texts_of(first) == ["a"] and texts_of(good) == ["b"]
    with pytest.raises(InputError, match="bad"):
        bad.result(30)


def test_cancelled_requests_are_not_computed_and_leave_the_queue(thread) -> None:
    predictor: Any = Predictor()
    it = RequestBatcher(predictor, LIMITS, thread)
    running = it.submit(request("x" * 9, "y" * 9))
    while not predictor.batches:
        time.sleep(0.01)
    gone, kept = it.submit(request("a", "b")), it.submit(request("c"))
    assert it.num_queued == 3
    assert running.cancel() and gone.cancel()
    assert it.num_queued == 1
    for _ in range(9):  # they are not kept either
        assert it.submit(request("a", "b")).cancel()
    assert len(it._queue) <= 3
    predictor.proceed.set()
    assert texts_of(kept) == ["c"]
    assert predictor.batches == [["x" * 9], ["c"]]
    last = it.submit(request("d"))
    last.cancel()
    it.drain(LONG)
    assert it.num_queued == 0


def test_drain_does_not_wait_for_a_slow_computation(thread) -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS, thread)
    batcher.submit(request("a"))
    start = time.monotonic()
    batcher.drain(timeout=0.1)
    assert time.monotonic() - start < 5
    predictor.proceed.set()


def request_of(count: int) -> PredictRequest:
    return request(*["text"] * count)


def batcher(
    thread: ComputeThread, predict: Callable[[list], list], max_inputs: int = 1
) -> RequestBatcher:
    predictor: Any = SimpleNamespace(predict=lambda inputs, return_all_scores: predict(inputs))
    return RequestBatcher(predictor, Limits(max_inputs=max_inputs), thread)


def test_models_take_turns(thread) -> None:
    """One request to a model waits for one batch of another model, not for its queue."""
    gate, order = threading.Event(), []

    def predict(name: str) -> Callable[[list], list]:
        def run(inputs: list) -> list:
            assert gate.wait(LONG)
            order.append(name)
            return [{}] * len(inputs)

        return run

    busy, idle = batcher(thread, predict("busy")), batcher(thread, predict("idle"))
    futures = [busy.submit(request_of(1)) for _ in range(5)]
    futures.append(idle.submit(request_of(1)))
    gate.set()
    assert [future.result(LONG) for future in futures] == [[{}]] * 6
    assert order.index("idle") == 1 and order.count("busy") == 5


def test_drain_returns_after_all_answers(thread) -> None:
    gate = threading.Event()

    def predict(inputs: list) -> list:
        assert gate.wait(LONG)
        return [{"number": item.location} for item in inputs]

    it = batcher(thread, predict, max_inputs=4)
    futures = [it.submit(request_of(3)) for _ in range(5)]
    it.drain(timeout=0.01)
    assert not any(future.done() for future in futures) and it.num_queued > 0
    gate.set()
    it.drain()
    assert all(len(future.result(0)) == 3 for future in futures) and it.num_queued == 0
    it.drain()  # an idle queue


def test_compute_thread_continues_after_a_failed_job(thread) -> None:
    def fail() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        thread.submit(fail).result(LONG)
    assert thread.submit(lambda: 3).result(LONG) == 3


def test_each_batch_is_observed(thread) -> None:
    sizes: list[int] = []
    predictor: Any = SimpleNamespace(predict=lambda inputs, return_all_scores: [{} for _ in inputs])
    it = RequestBatcher(predictor, Limits(max_inputs=4), thread, sizes.append)
    assert len(it.submit(request_of(4)).result(LONG)) == 4
    assert len(it.submit(request_of(2)).result(LONG)) == 2
    assert it.submit(request_of(0)).result(LONG) == []
    it.drain()
    assert sizes == [4, 2]  # an empty request computes nothing
