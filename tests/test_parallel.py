"""Parallel map: results in order, errors, and no process left behind."""

import functools
import itertools
import multiprocessing
import operator
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from data_pipelines import parallel
from data_pipelines.parallel import group_by_size, ordered_map, thread_map, usable_cores
from data_pipelines.pretraining.options import PretrainingOptions

FIRST = functools.partial(operator.itemgetter, 0)  # makes the function to map


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinities")
def test_cores_that_the_process_may_not_use_are_not_counted() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert (usable_cores(), PretrainingOptions(64, 8).threads) == (1, 1)
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cores() == len(before)


def no_process_is_left() -> bool:
    for _ in range(6000):
        if not multiprocessing.active_children():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.seconds
@pytest.mark.parametrize("workers", [1, 2])
def test_ordered_map_yields_results_in_order(workers: int) -> None:
    items = ((number, None) for number in range(50))
    assert list(ordered_map(FIRST, items, workers)) == list(range(50))
    assert no_process_is_left()


@pytest.mark.parametrize("workers", [1, 2])
def test_ordered_map_raises_errors_of_the_function(workers: int) -> None:
    with pytest.raises(IndexError):
        list(ordered_map(FIRST, [(1,), ()], workers))


def failing() -> Callable:
    raise ValueError("no function can be made")


@pytest.mark.seconds
@pytest.mark.parametrize("workers", [1, 2])
def test_ordered_map_raises_errors_of_make_function(workers: int) -> None:
    with pytest.raises(ValueError, match="no function"):
        list(ordered_map(failing, [1], workers))


@pytest.mark.seconds
def test_ordered_map_leaves_no_process_after_an_interrupt() -> None:
    def items() -> Iterator[tuple[int]]:
        yield from [(1,), (2,)]
        raise KeyboardInterrupt  # while the workers are started

    with pytest.raises(KeyboardInterrupt):
        list(ordered_map(FIRST, items(), 2))
    assert no_process_is_left()


def die(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


def dying() -> Callable[[int], int]:
    return die


@pytest.mark.seconds
def test_ordered_map_reports_a_killed_worker() -> None:
    with pytest.raises(ChildProcessError, match=r"status -9\. Use fewer"):
        list(ordered_map(dying, [signal.SIGKILL] * 5, 2))
    assert no_process_is_left()


def test_worker_ends_without_error_if_its_parent_is_killed(monkeypatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    parent_pipe, child_pipe = multiprocessing.Pipe()
    os.write(parent_pipe.fileno(), struct.pack("!i", 100) + b"a part")  # an incomplete item
    parent_pipe.close()
    parallel._worker_loop(child_pipe, FIRST)


def threads_end() -> bool:
    """Return whether the threads of every `thread_map` end within seconds."""
    for _ in range(1000):
        if not any(thread.name.startswith("thread_map") for thread in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("threads", [1, 3])
def test_thread_map_yields_results_in_order(threads: int) -> None:
    def square(number: int) -> int:
        time.sleep(0.002 * (number % 3))  # later items are finished first
        return number**2

    assert list(thread_map(square, range(20), threads)) == [n**2 for n in range(20)]
    assert threads_end()


def test_thread_map_reads_a_bounded_number_of_items_ahead() -> None:
    items = itertools.count()
    results = thread_map(lambda item: item, items, 2)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert next(items) == 10 + 2 * 2
    results.close()


def test_thread_map_raises_an_error_in_place_of_its_result() -> None:
    results = thread_map(lambda divisor: 6 // divisor, [3, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not list(results) and threads_end()


@pytest.mark.parametrize("end", ["close", "delete", "interrupt"])
def test_thread_map_ends_its_threads(end: str) -> None:
    called: list[int] = []

    def items() -> Iterator[int]:
        yield from range(8)
        raise KeyboardInterrupt

    results = thread_map(called.append, itertools.count() if end != "interrupt" else items(), 2)
    next(results)
    if end == "close":
        results.close()
    elif end == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            list(results)
    del results
    assert threads_end()
    assert len(called) <= 9  # items that were not begun are dropped


def test_group_by_size_ends_a_group_at_the_limit() -> None:
    assert list(group_by_size([3, 1, 4, 1, 5], lambda size: size, 4)) == [[3, 1], [4], [1, 5]]
    assert list(group_by_size([2, 1], lambda size: size, 4)) == [[2, 1]]
    assert list(group_by_size([], len, 4)) == []
