"""ShouldStop signals as a question that a loop asks between its steps."""

import contextlib
import itertools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

ShouldStop = Callable[[int], bool]
# JAX has all stop at the number after the highest that one of them asked of, which is 0 where none
# did: a step at which a run goes on is never that one, and the count of all questions is.
_sync_points = itertools.count(1)


@contextlib.contextmanager
def stop_signals() -> Iterator[ShouldStop]:
    """A function from the step just done to whether SIGTERM or SIGINT asks to stop after it.

    It must be called once a step. With several processes a signal to any of them makes it true
    after the same step on all. Only Python's main thread can receive signals: elsewhere it is
    never true of a single process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False
    elif jax.process_count() > 1:
        # JAX has taken SIGTERM for itself when it joined the processes.
        with _handling([signal.SIGINT], lambda _: signal.raise_signal(signal.SIGTERM)):
            yield lambda step: multihost_utils.reached_preemption_sync_point(next(_sync_points))
    else:
        stop = threading.Event()

        def request(number: int) -> None:
            stop.set()
            name = signal.Signals(number).name
            logging.getLogger("bertjax").info("%s: saving after this step, then stopping.", name)

        with _handling([signal.SIGTERM, signal.SIGINT], request):
            yield lambda step: stop.is_set()


@contextlib.contextmanager
def _handling(numbers: list[signal.Signals], handle: Callable[[int], None]) -> Iterator[None]:
    """Handles the first of these signals, of which nobody else is told; a second one acts as it
    does outside.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    told = signal.set_wakeup_fd(-1)

    def restore() -> None:
        signal.set_wakeup_fd(told)
        for number, handler in before.items():
            signal.signal(number, handler)

    def first(number: int, _: Any) -> None:
        restore()
        handle(number)

    for number in numbers:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
