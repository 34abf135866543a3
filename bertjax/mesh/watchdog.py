"""Watchdog of a command: ends a process that hangs, and shows where it does.

A collective waits for ever if one process does not take part. The whole run is then idle until
somebody looks; with the watchdog it is restarted.
"""

import faulthandler
import os
import sys
import threading
import time
from typing import NoReturn, Self

from bertjax.errors import EXIT_RESTART

_POLL_SECONDS = 1.0
# Without one process JAX aborts the others: wait until their watchdogs have printed too.
_GRACE_SECONDS = 10.0
_progress = 0


def note_progress() -> None:
    """Note that a step, an eval batch, a save or a compilation has finished."""
    global _progress
    _progress += 1


class Watchdog:
    """A context manager that ends the process when no progress is noted for a time.

    All threads' stacks are printed, and the exit status is `EXIT_RESTART`. Each process has its
    own. The time in which a process is stopped or its machine sleeps does not count.

    Args:
      minutes: the time; 0 for no watchdog.
    """

    def __init__(self, minutes: float) -> None:
        self._seconds = 60 * minutes
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._seconds:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        seen, idle_seconds = _progress, 0.0
        while not self._ended.wait(_POLL_SECONDS):
            # A clock would count the time of a stopped process.
            idle_seconds = idle_seconds + _POLL_SECONDS if _progress == seen else 0.0
            seen = _progress
            if idle_seconds >= self._seconds:
                self._end()

    def _end(self) -> NoReturn:
        print(
            f"bertjax: no step, evaluation or save has finished for {self._seconds / 60:g} minutes "
            "(watchdog_minutes). The threads of this process:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=2, all_threads=True)
        time.sleep(_GRACE_SECONDS)
        print(
            "bertjax: ended by the watchdog: run the same command in all processes to resume.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_RESTART)
