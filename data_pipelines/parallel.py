"""A function of many items in processes of their own, its results in order."""

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
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
ResultOrError = tuple[Any, Exception | None]  # what came of an item, or what went wrong


def ordered_map(
    make_function: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    workers: int | None,
) -> Iterator[Result]:
    """The function that `make_function` gives, of every item, in order; few items are in flight at a time.

    Each process has a thread here and a pipe that no other one holds, so that whatever becomes of
    one, none waits for another. (In the standard library's pool of processes all answer by one
    pipe: of a worker that ends in the midst of an answer the rest is waited for without end.)

    Args:
      make: called once in each process; can be pickled.
      workers: processes; 0 and 1 mean this process alone, None one for each core. With more than
        one, a script needs the usual `if __name__ == "__main__"`.

    Raises:
      ChildProcessError: a process was killed, as those are for which memory does not suffice.
    """
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers <= 1:
        yield from map(make_function(), items)
        return
    own = threading.local()

    def start() -> None:
        own.worker = _Worker(make_function)

    def compute(item: Item) -> ResultOrError:
        return own.worker(item)

    pool = ThreadPoolExecutor(workers, initializer=start)
    try:
        pending: deque[Future[ResultOrError]] = deque()
        for item in items:
            pending.append(pool.submit(compute, item))
            if len(pending) > 2 * workers:
                yield _wait_for_result(pending.popleft())
        while pending:
            yield _wait_for_result(pending.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # they end while the caller goes on


class _Worker:
    """A process that computes one item at a time, and ends when nobody holds this any more."""

    def __init__(self, make_function: Callable[[], Callable]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_worker_loop, args=(theirs, make_function), daemon=True
        )
        self._process.start()
        theirs.close()  # or the end of the process would not be that of the pipe

    def __call__(self, item: object) -> ResultOrError:
        try:
            self._pipe.send(item)
            answer: ResultOrError = self._pipe.recv()
        except (EOFError, OSError):  # the second of an answer that ends in its midst
            self._process.join()
            status = self._process.exitcode
            return None, ChildProcessError(
                f"a worker process ended with status {status}: have fewer of them, or more memory."
            )
        return answer


def _wait_for_result(future: Future[ResultOrError]) -> Any:
    result, error = future.result()
    if error is not None:
        raise error  # here, since its traceback holds all that it passes through
    return result


def _worker_loop(pipe: Connection, make_function: Callable[[], Callable]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    function: Callable | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent has ended, or needs no more
        while True:
            item = pipe.recv()
            try:
                function = function or make_function()
                answer: ResultOrError = function(item), None
            except Exception as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                answer = None, error
            pipe.send(answer)
