"""Stop signals, which a training loop polls between its steps."""

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
# After a signal JAX stops all processes at the poll after the highest number polled so far, 0 if
# there was none. The step of a resumed run may never equal that number; a count of polls does.
_sync_points = itertools.count(1)


@contextlib.contextmanager
def stop_signals() -> Iterator[ShouldStop]:
    """Yield a function that returns whether SIGTERM or SIGINT asks to stop after a step.

    Call the function exactly once a step. With several processes a signal to any of them makes it
    return True after the same step on all. Only Python's main thread receives signals: in another
    thread of a single process it always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False
    elif jax.process_count() > 1:
        # JAX handles SIGTERM since it joined the processes.
        with _handle_once([signal.SIGINT], lambda _: signal.raise_signal(signal.SIGTERM)):
            yield lambda step: multihost_utils.reached_preemption_sync_point(next(_sync_points))
    else:
        stop = threading.Event()

        def request(number: int) -> None:
            stop.set()
            name = signal.Signals(number).name
            logging.getLogger("bertjax").info("%s: saving after this step, then stopping.", name)

        with _handle_once([signal.SIGTERM, signal.SIGINT], request):
            yield lambda step: stop.is_set()


@contextlib.contextmanager
def _handle_once(numbers: list[signal.Signals], handle: Callable[[int], None]) -> Iterator[None]:
    """Handle the first of these signals; the handlers of outside get the second one.

    The wakeup file descriptor is disabled meanwhile, so no other handler notices the first.
    """
    handlers = {number: signal.getsignal(number) for number in numbers}
    wakeup_fd = signal.set_wakeup_fd(-1)

    def restore() -> None:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def handle_first(number: int, _: Any) -> None:
        restore()
        handle(number)

    for number in numbers:
        signal.signal(number, handle_first)
    try:
        yield
    finally:
        restore()
