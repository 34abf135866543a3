"""Work in several processes: its results in order, and nobody left when it is stopped."""

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
from data_pipelines.parallel import ordered_map

FIRST = functools.partial(operator.itemgetter, 0)  # makes the function that is to be mapped


def no_process_is_left() -> bool:
    for _ in range(6000):
        if not multiprocessing.active_children():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    items = ((number, None) for number in range(50))
    assert list(ordered_map(FIRST, items, workers)) == list(range(50))
    assert no_process_is_left()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_goes_wrong_in_a_worker_is_raised_here(workers: int) -> None:
    with pytest.raises(IndexError):
        list(ordered_map(FIRST, [(1,), ()], workers))


def failing() -> Callable:
    raise ValueError("no function can be made")


@pytest.mark.parametrize("workers", [1, 2])
def test_so_is_what_goes_wrong_before_its_first_item(workers: int) -> None:
    with pytest.raises(ValueError, match="no function"):
        list(ordered_map(failing, [1], workers))


def test_a_stop_leaves_no_worker() -> None:
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


def test_a_worker_that_is_killed_is_missed() -> None:
    with pytest.raises(ChildProcessError, match="status -9: have fewer"):
        list(ordered_map(dying, [signal.SIGKILL] * 5, 2))
    assert no_process_is_left()


def test_a_worker_whose_item_ends_in_its_midst_ends_in_silence(monkeypatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    os.write(ours.fileno(), struct.pack("!i", 100) + b"a part")  # as where the parent is killed
    ours.close()
    parallel._worker_loop(theirs, FIRST)
