"""Parallel map: results in order, errors, and no process left behind."""

import functools
import multiprocessing
import operator
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from data_pipelines import parallel
from data_pipelines.parallel import group_by_size, ordered_map

FIRST = functools.partial(operator.itemgetter, 0)  # makes the function to map


def no_process_is_left() -> bool:
    for _ in range(6000):
        if not multiprocessing.active_children():
            return True
        time.sleep(0.1)
    return False


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


@pytest.mark.parametrize("workers", [1, 2])
def test_ordered_map_raises_errors_of_make_function(workers: int) -> None:
    with pytest.raises(ValueError, match="no function"):
        list(ordered_map(failing, [1], workers))


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


def test_group_by_size_ends_a_group_at_the_limit() -> None:
    assert list(group_by_size([3, 1, 4, 1, 5], lambda size: size, 4)) == [[3, 1], [4], [1, 5]]
    assert list(group_by_size([2, 1], lambda size: size, 4)) == [[2, 1]]
    assert list(group_by_size([], len, 4)) == []
