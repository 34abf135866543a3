"""Queue of requests: fairness between long and short requests, failures, and its end."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bertjax.serving.batching import RequestBatcher
from bertjax.serving.requests import Limits, PredictRequest
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


def test_long_request_delays_others_by_one_part() -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS)
    long = ["x" * 9, "y" * 9, "z" * 9]
    slow = batcher.submit(request(*long))
    while not predictor.batches:
        time.sleep(0.01)
    fast = [batcher.submit(request("a")), batcher.submit(request("b", "c", "d"))]
    predictor.proceed.set()
    assert [texts_of(future) for future in fast] == [["a"], ["b", "c", "d"]]
    assert texts_of(slow) == long
    assert predictor.batches == [[long[0]], ["a", "b", "c", "d"], [long[1]], [long[2]]]
    batcher.close()


def test_failed_request_leaves_the_others() -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS)
    first = batcher.submit(request("a"))
    while not predictor.batches:
        time.sleep(0.01)
    bad, good = batcher.submit(request("bad")), batcher.submit(request("b"))
    predictor.proceed.set()
    assert texts_of(first) == ["a"] and texts_of(good) == ["b"]
    with pytest.raises(InputError, match="bad"):
        bad.result(30)
    batcher.close()


def test_close_does_not_wait_for_a_slow_computation() -> None:
    predictor: Any = Predictor()
    batcher = RequestBatcher(predictor, LIMITS)
    batcher.submit(request("a"))
    start = time.monotonic()
    batcher.close(timeout=0.1)
    assert time.monotonic() - start < 5
    predictor.proceed.set()
