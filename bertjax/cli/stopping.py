"""SIGTERM and SIGINT to a command, whatever it is at; the train loop has its own way with them.

Either raises KeyboardInterrupt, so that workers are stopped and drafts are deleted. But libraries
do not stand one while they are imported, one that arrives in a callback of C is lost, and a
compiler looks at none for minutes: a command is ended at once in the first case, and otherwise
where it was told to stop and has not ended soon.
"""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator

from bertjax.errors import CHILD, RESTART

_SECONDS = 10.0  # to end by itself


@contextlib.contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Gives whether the command was told to stop."""
    stopped = threading.Event()

    def stop(number: int, frame: types.FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # another one would hang what is ending
        stopped.set()
        if _imports(frame):
            end_stopped()
        end = threading.Timer(_SECONDS, end_stopped)
        end.daemon = True
        end.start()
        raise KeyboardInterrupt

    # Of several hosts JAX heeds SIGTERM. A signal that is ignored, as by nohup, stays so.
    heeded = [signal.SIGINT] if CHILD in os.environ else [signal.SIGINT, signal.SIGTERM]
    usual = signal.SIG_DFL, signal.default_int_handler
    before = {each: signal.getsignal(each) for each in heeded if signal.getsignal(each) in usual}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    for each in before:
        signal.signal(each, stop)
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _imports(frame: types.FrameType | None) -> bool:
    """Whether what a signal came upon is an import."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def say_stopped() -> int:
    """Says that the command was stopped; its exit status."""
    print("bertjax: stopped: run the same command again.", file=sys.stderr, flush=True)
    return RESTART


def end_stopped() -> None:
    """Ends the process there and then."""
    os._exit(say_stopped())
