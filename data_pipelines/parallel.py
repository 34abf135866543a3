"""Parallel maps over processes and over threads with results in order, and groups of items."""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

MAX_WORKERS = 1024  # processes or threads that a user may ask for

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Return the number of cores that this process may run on.

    A job of Slurm, `taskset` and a container's cpuset leave it a part of the machine's.
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def group_by_size(
    items: Iterable[Item], size: Callable[[Item], int], limit: int
) -> Iterator[list[Item]]:
    """Yield groups of consecutive items; a group ends once its total size reaches the limit."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


class _Outcome(NamedTuple):
    """The result of an item, or the error it raised."""

    result: Any = None
    error: Exception | None = None


def ordered_map(
    make_function: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    workers: int | None,
) -> Iterator[Result]:
    """Yield the results of a function of each item, in order.

    At most 2 items per worker are read ahead of the result that is yielded.

    A thread of this process serves each worker process through a pipe of its own, so a killed
    worker blocks no other. (The workers of `ProcessPoolExecutor` share one result pipe. If one is
    killed while it writes, the executor waits forever.)

    Args:
      make_function: called once in each process, returns the function; must be picklable.
      items: the items.
      workers: number of processes; 0 and 1 mean this process, None means `usable_cores`. With more
        than one, a script needs `if __name__ == "__main__"`, as processes are spawned.

    Raises:
      ChildProcessError: a process was killed, for example for lack of memory.
    """
    workers = usable_cores() if workers is None else workers
    if workers <= 1:
        yield from map(make_function(), items)
        return
    thread = threading.local()

    def start_worker() -> None:
        thread.worker = _Worker(make_function)

    def compute_in_worker(item: Item) -> _Outcome:
        return thread.worker(item)

    pool = ThreadPoolExecutor(workers, initializer=start_worker)
    try:
        pending: deque[Future[_Outcome]] = deque()
        for item in items:
            pending.append(pool.submit(compute_in_worker, item))
            if len(pending) > 2 * workers:
                yield _wait_for_result(pending.popleft())
        while pending:
            yield _wait_for_result(pending.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # workers end in the background


def thread_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield the results of a function of each item, in order, computed ahead in threads.

    At most 2 items per thread are read ahead of the result that is yielded. The threads end after
    their current item if the iterator is closed or deleted, or the function raises an exception.
    The exception is raised in place of the result.

    Args:
      function: called in `threads` threads at a time.
      items: the items, possibly without an end.
      threads: number of threads.
    """
    pool = ThreadPoolExecutor(threads, "thread_map")
    try:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """A worker process; calling it computes one item. It ends when this object is deleted."""

    def __init__(self, make_function: Callable[[], Callable]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = spawn.Pipe()
        self._process = spawn.Process(
            target=_worker_loop, args=(child_pipe, make_function), daemon=True
        )
        self._process.start()
        child_pipe.close()  # so that `recv` raises EOFError when the process ends

    def __call__(self, item: object) -> _Outcome:
        try:
            self._pipe.send(item)
            outcome: _Outcome = self._pipe.recv()
        except (EOFError, OSError):  # OSError: the process ended while it wrote
            self._process.join()
            status = self._process.exitcode
            error = ChildProcessError(
                f"A worker process ended with status {status}. Use fewer workers or more memory."
            )
            return _Outcome(error=error)
        return outcome


def _wait_for_result(future: Future[_Outcome]) -> Any:
    result, error = future.result()
    if error is not None:
        raise error
    return result


def _worker_loop(pipe: Connection, make_function: Callable[[], Callable]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    function: Callable | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent has ended or needs no more results
        while True:
            item = pipe.recv()
            try:
                function = function or make_function()
                outcome = _Outcome(function(item))
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                outcome = _Outcome(error=error)
            pipe.send(outcome)
