"""Stop signals as an event that a loop looks at between its steps."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal acts as it does outside.

    Only Python's main thread can receive signals: elsewhere the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, _: Any) -> None:
        restore()
        stop.set()
        name = signal.Signals(number).name
        logging.getLogger("bertjax").info("%s: saving after this step, then stopping.", name)

    for number in _SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        restore()
