"""Handling of SIGTERM and SIGINT in every command; the training loop has its own.

Either signal raises KeyboardInterrupt, so that workers are stopped and drafts are deleted. That
does not always work: libraries break if it arrives while they are imported, an exception in a
callback of the garbage collector or of C is lost, and a compiler checks no signals for minutes. So
a command exits at once during an import. An exception that Python reports as lost is raised again.
In any case a command exits `_GRACE_SECONDS` after the signal. A thread enforces this, because
Python's main thread handles signals only after it returns from C.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import NoReturn

from bertjax.errors import EXIT_RESTART
from bertjax.mesh.child_process import is_child

_GRACE_SECONDS = 10.0  # for an orderly end
_RETRY_SECONDS = 0.05  # until a lost exception is raised again

# A forked process must not report its signals to the parent's thread.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


@contextlib.contextmanager
def handle_signals() -> Iterator[threading.Event]:
    """Handle signals; yields an event that is set once one has arrived."""
    stopped, ended, raises = threading.Event(), threading.Event(), threading.Event()
    raises.set()
    report_lost = sys.unraisablehook

    def stop(number: int, frame: types.FrameType | None) -> None:
        if not raises.is_set():  # a second one would hang the orderly end
            return
        raises.clear()
        stopped.set()
        if _is_importing(frame):
            exit_stopped()
        raise KeyboardInterrupt

    def raise_again(lost: "sys.UnraisableHookArgs") -> None:
        if not (stopped.is_set() and issubclass(lost.exc_type, KeyboardInterrupt)):
            return report_lost(lost)
        raises.set()
        # Raised here it would be lost again.
        threading.Timer(_RETRY_SECONDS, _thread.interrupt_main, [next(iter(before))]).start()

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] in before and not ended.wait(_GRACE_SECONDS):
                exit_stopped()
        os.close(reader)

    # JAX handles SIGTERM in multi-process runs. An ignored signal, as under nohup, stays ignored.
    handled = [signal.SIGINT] if is_child() else [signal.SIGINT, signal.SIGTERM]
    default = signal.SIG_DFL, signal.default_int_handler
    before = {
        number: signal.getsignal(number)
        for number in handled
        if signal.getsignal(number) in default
    }
    if threading.current_thread() is not threading.main_thread():
        before = {}
    if not before:
        yield stopped
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=watch, daemon=True).start()
    for number in before:
        signal.signal(number, stop)
    previous = signal.set_wakeup_fd(writer)
    sys.unraisablehook = raise_again
    try:
        yield stopped
    finally:
        ended.set()
        sys.unraisablehook = report_lost
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(writer)


def _is_importing(frame: types.FrameType | None) -> bool:
    """Return whether a signal interrupted an import."""
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def report_stopped() -> int:
    """Print that the command was stopped and return its exit status."""
    print("bertjax: stopped: run the same command again.", file=sys.stderr, flush=True)
    return EXIT_RESTART


def keep_status(status: int) -> None:
    """End the process at once, with the status of its command, at a signal after its end.

    Python's own end takes up to a second. The default handlers would report a command as killed
    whose result is complete. In a child JAX handles the signals.
    """
    for number in () if is_child() else (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda *_: _exit(status))


def exit_stopped() -> NoReturn:
    """End the process at once.

    Threads of compilers and data pipelines do not survive an orderly end of the interpreter.
    """
    _exit(report_stopped())


def _exit(status: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)
