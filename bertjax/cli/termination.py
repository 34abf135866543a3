"""SIGTERM and SIGINT to a command, whatever it is at; the train loop has its own way with them.

Either raises KeyboardInterrupt, so that workers are stopped and drafts are deleted. But libraries
do not stand one while they are imported, one that arrives in a callback of C is lost, and a
compiler looks at none for minutes: a command is ended at once in the first case, and otherwise
where it was told to stop and has not ended soon. A thread sees to that, since Python's main thread,
which alone may handle signals, does so only when it comes back from C.
"""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import NoReturn

from bertjax.errors import CHILD_ENV, EXIT_RESTART

_GRACE_SECONDS = 10.0  # to end by itself

# What a signal to a process that was forked tells is not for the one that it comes from.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


@contextlib.contextmanager
def handle_signals() -> Iterator[threading.Event]:
    """Gives whether the command was told to stop."""
    stopped, ended = threading.Event(), threading.Event()

    def stop(number: int, frame: types.FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # another one would hang what is ending
        stopped.set()
        if _is_importing(frame):
            exit_stopped()
        raise KeyboardInterrupt

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] in before and not ended.wait(_GRACE_SECONDS):
                exit_stopped()
        os.close(reader)

    # Of several hosts JAX heeds SIGTERM. A signal that is ignored, as by nohup, stays so.
    heeded = [signal.SIGINT] if CHILD_ENV in os.environ else [signal.SIGINT, signal.SIGTERM]
    usual = signal.SIG_DFL, signal.default_int_handler
    before = {each: signal.getsignal(each) for each in heeded if signal.getsignal(each) in usual}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    if not before:
        yield stopped
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=watch, daemon=True).start()
    for each in before:
        signal.signal(each, stop)
    told = signal.set_wakeup_fd(writer)
    try:
        yield stopped
    finally:
        ended.set()
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(told)
        os.close(writer)


def _is_importing(frame: types.FrameType | None) -> bool:
    """Whether what a signal came upon is an import."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def report_stopped() -> int:
    """Says that the command was stopped; its exit status."""
    print("bertjax: stopped: run the same command again.", file=sys.stderr, flush=True)
    return EXIT_RESTART


def exit_stopped() -> NoReturn:
    """Ends the process there and then: what compilers and data pipelines still do in threads of
    their own does not stand the end of Python.
    """
    status = report_stopped()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)
