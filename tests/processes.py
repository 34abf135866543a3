"""The command line in processes of its own that are spared what they import, seconds each.

They are forked from a server that has imported what commands import and has done nothing else. The
environment, the streams, signals and the end are as for a process that a shell starts.
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
    """`bertjax ARGUMENTS`, with as much of `subprocess.Popen` as is used.

    Args:
      begin: called in the process before the command.
    """

    def __init__(
        self, *arguments: object, begin: Callable[[], None] | None = None, **environment: str
    ) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        output = Connection(os.dup(self._output.fileno()), readable=False)
        reader, writer = CONTEXT.Pipe(duplex=False)
        self.stderr = os.fdopen(os.dup(reader.fileno()), errors="replace")
        given = [str(argument) for argument in arguments]
        self._process = CONTEXT.Process(
            target=_run, args=(given, process_environment() | environment, begin, output, writer)
        )
        self._process.start()
        for end in (reader, writer, output):
            end.close()
        self.pid, self.kill = self._process.pid, self._process.kill
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float = LONG) -> tuple[str, str]:
        """Standard output, and as much of standard error as nobody has read."""
        late = threading.Timer(timeout, self.kill)
        late.start()
        said = self.stderr.read()
        self.wait()
        late.cancel()
        self._output.seek(0)
        return self._output.read(), said

    def wait_for_step(self, step: int) -> None:
        """Returns once this very process has logged a step; one before it is not believed."""
        for line in self.stderr:
            logged = re.match(r"step ([\d,]+)/", line)
            if logged and int(logged[1].replace(",", "")) >= step:
                return
        pytest.fail(f"the run ended before step {step}")


def run(
    *arguments: object, begin: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `bertjax ARGUMENTS` gave."""
    command = Command(*arguments, begin=begin, **environment)
    said = command.communicate()
    return subprocess.CompletedProcess(arguments, command.poll(), *said)


def hold(step: int, until: str = "") -> None:
    """Begins a run that does no more than `step` steps before there is a file `until`.

    So what is to happen to a run in its midst finds it there, however late it comes.
    """
    from bertjax.training.throughput import Profiler

    plain = Profiler.before

    def before(self: Profiler, done: int, state: object) -> None:
        while done >= step and not (until and os.path.exists(until)):
            time.sleep(0.05)
        plain(self, done, state)

    Profiler.before = before  # type: ignore[method-assign]


contexts = contextlib.ExitStack()  # until the process ends


def fail_at(fault: str) -> None:
    """Begin a run in which a fault is injected; see `bertjax.faults`."""
    from bertjax.faults import inject_fault

    contexts.enter_context(inject_fault(fault))


@atexit.register
def _kill() -> None:
    """Ends what a test that failed has left, for which multiprocessing would wait."""
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
    logging.root.handlers.clear()  # of what was imported
    try:
        sys.exit(main(arguments))
    finally:  # as Python ends, and multiprocessing does not
        threading._shutdown()
        atexit._run_exitfuncs()
