"""Work in several processes: its results in order, and nobody left when it is stopped."""

import functools
import multiprocessing
import operator
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from data_pipelines.parallel import ordered_map

FIRST = functools.partial(operator.itemgetter, 0)  # makes the function that is to be mapped


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    items = ((number, None) for number in range(50))
    assert list(ordered_map(FIRST, items, workers)) == list(range(50))


def test_a_stop_while_the_first_worker_is_started_leaves_none(monkeypatch) -> None:
    def interrupted(pool: ProcessPoolExecutor) -> None:
        time.sleep(0.5)  # the worker is there, and what would end it is not
        raise KeyboardInterrupt

    monkeypatch.setattr(ProcessPoolExecutor, "_start_executor_manager_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(ordered_map(FIRST, [(1,), (2,)], 2))
    for worker in multiprocessing.active_children():
        worker.join(5)
        assert not worker.is_alive()
