"""Commands in processes of their own, without seconds of imports each.

The processes are forked from a server that has only imported the modules of commands. Environment,
streams, signals and exit are like those of a process that a shell starts.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
from conftest import LONG, process_environment

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tensorflow",
        "bertjax.cli.main",
        "bertjax.training.trainer",
        "bertjax.tasks.question_answering.task",
    ]
)


class Command:
    """Process of `bertjax ARGUMENTS`, with the part of `subprocess.Popen` that tests use.

    Args:
      arguments: arguments of the command.
      begin: called in the process before the command.
      environment: additional environment variables.
    """

    def __init__(
        self, *arguments: object, begin: Callable[[], None] | None = None, **environment: str
    ) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        output = Connection(os.dup(self._output.fileno()), readable=False)
        reader, writer = CONTEXT.Pipe(duplex=False)
        self.stderr = os.fdopen(os.dup(reader.fileno()), errors="replace")
        argv = [str(argument) for argument in arguments]
        self._process = CONTEXT.Process(
            target=_run, args=(argv, process_environment() | environment, begin, output, writer)
        )
        self._process.start()
        for end in (reader, writer, output):
            end.close()
        self.pid, self.kill = self._process.pid, self._process.kill
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float = LONG) -> tuple[str, str]:
        """Return standard output and the unread rest of standard error."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        error = self.stderr.read()
        self.wait()
        timer.cancel()
        self._output.seek(0)
        return self._output.read(), error

    def wait_for_text(self, text: str) -> None:
        """Return once this process has printed a line with a text to standard error."""
        if not any(text in line for line in self.stderr):
            pytest.fail(f"the command ended without {text!r}")

    def wait_for_step(self, step: int) -> None:
        """Return once this process has logged a step; earlier runs of the workdir do not count."""
        for line in self.stderr:
            logged = re.match(r"step ([\d,]+)/", line)
            if logged and int(logged[1].replace(",", "")) >= step:
                return
        pytest.fail(f"the run ended before step {step}")


def run(
    *arguments: object, begin: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `bertjax ARGUMENTS` to its end."""
    command = Command(*arguments, begin=begin, **environment)
    output, error = command.communicate()
    return subprocess.CompletedProcess(arguments, command.poll(), output, error)


def hold(step: int, until: str = "") -> None:
    """Stop a run before step `step` until the file `until` exists; for ever by default.

    The test finds the run in progress however long it takes to act on it.
    """
    from bertjax.training.throughput import Profiler

    original = Profiler.before

    def before(self: Profiler, done: int, state: object) -> None:
        while done >= step and not (until and os.path.exists(until)):
            time.sleep(0.05)
        original(self, done, state)

    Profiler.before = before  # type: ignore[method-assign]


_faults = contextlib.ExitStack()  # open until the process ends


def fail_at(fault: str) -> None:
    """Inject a fault into a run; see `bertjax.faults`."""
    from bertjax.faults import inject_fault

    _faults.enter_context(inject_fault(fault))


@atexit.register
def _kill() -> None:
    """End the processes of failed tests: multiprocessing would wait for them."""
    for process in multiprocessing.active_children():
        process.kill()


def _run(
    arguments: list[str],
    environment: dict[str, str],
    begin: Callable[[], None] | None,
    output: Connection,
    error: Connection,
) -> None:
    for stream, end in ((1, output), (2, error)):
        os.dup2(end.fileno(), stream)
        end.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bertjax", *arguments]
    from bertjax.cli.main import main

    if begin:
        begin()
    logging.root.handlers.clear()  # set by imports
    try:
        sys.exit(main(arguments))
    finally:  # as at the end of Python, which multiprocessing skips
        threading._shutdown()
        atexit._run_exitfuncs()
