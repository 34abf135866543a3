"""Programs of a model: one for each shape, whatever the threads that call it."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertjax.model.decoder.options import Decoding, DecodingOptions
from bertjax.training.prediction import batch_runner
from bertjax.training.prediction.batch_runner import BatchRunner

NUM_THREADS = 8


def counting_runner(seconds: float) -> tuple[BatchRunner, list[Any]]:
    """Return a runner whose compilation takes some time, and the shapes that it compiles."""
    compiled: list[Any] = []

    def compile_step(shapes: dict[str, Any], *_: Any) -> object:
        time.sleep(seconds)
        compiled.append(shapes)
        return object()

    functions: Any = SimpleNamespace(
        compile_predict_step=compile_step, compile_generate_step=compile_step
    )
    return BatchRunner(functions), compiled


def batch_of(length: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.zeros((1, length), np.int32)}


def test_program_is_compiled_once_for_all_threads() -> None:
    runner, compiled = counting_runner(seconds=0.05)
    barrier = threading.Barrier(NUM_THREADS)

    def find(_: int) -> object:
        barrier.wait(60)
        return runner._program(batch_of(16), None)

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        programs = {*threads.map(find, range(NUM_THREADS))}
    assert len(programs) == len(compiled) == 1


def test_programs_of_generation_are_forgotten_by_one_thread_at_a_time(monkeypatch) -> None:
    runner, _ = counting_runner(seconds=0)
    monkeypatch.setattr(batch_runner, "_MAX_GENERATE_PROGRAMS", 4)
    decoding = Decoding(DecodingOptions(max_new_tokens=4), 8, 3, 0)

    def find(start: int) -> None:
        for number in range(start, start + 500):
            runner._program(batch_of(number % 16 + 1), decoding)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # seconds; threads are interrupted within a call
    try:
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(find, range(NUM_THREADS)))  # raises what a thread raised
    finally:
        sys.setswitchinterval(interval)
    assert len(runner._compiled) == 4
