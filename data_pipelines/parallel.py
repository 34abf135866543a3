"""A function of many items in processes of their own, its results in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], workers: int | None
) -> Iterator[Result]:
    """The function that `make` gives, of every item, in order; few items are in flight at a time.

    Args:
      make: called once in each process; can be pickled.
      workers: processes; 0 and 1 mean this process alone, None one for each core. With more than
        one, a script needs the usual `if __name__ == "__main__"`.
    """
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers <= 1:
        yield from map(make(), items)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, _start, (make,))
    try:
        pending: deque[Future] = deque()
        for item in items:
            pending.append(pool.submit(_call, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            worker.kill()  # nobody would end one that was just being started, and exit waits for it
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # they end while the caller goes on


_function: Callable[[Any], Any]


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _function
    _function = make()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers, and they would wait for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def _call(item: Any) -> Any:
    return _function(item)
