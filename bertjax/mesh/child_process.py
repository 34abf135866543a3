"""The child process in which a process that joins others does its work.

JAX's runtime aborts a process, without running Python's handlers, when another process is lost. A
process that joins others therefore runs in a child, whose parent reports the loss in one sentence.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from bertjax.errors import EXIT_RESTART

CHILD_ENV = "BERTJAX_CHILD"  # set in the child to the id of its parent
_ENDED = "bertjax/ended"  # with the index of a process: its key in JAX's key-value store
_EXIT_TIMEOUT_SECONDS = 300.0  # for others to end their work, as in JAX
_FAILURE_SECONDS = 10.0  # for others to fail, too; those that wait for this process never do
_EXIT_SECONDS = 1.0  # for others to end after it
# Signals after the loss of another process, without free memory, and when the machine goes.
_EXTERNAL_SIGNALS = {signal.SIGABRT, signal.SIGKILL, signal.SIGTERM}


def is_child() -> bool:
    """Return whether this process is the child that `supervise_child` started."""
    return CHILD_ENV in os.environ


def supervise_child(argv: Sequence[str]) -> int:
    """Run the command line in a child process and return its exit status.

    SIGTERM and SIGINT are forwarded as SIGTERM, a second SIGINT as SIGKILL. The child dies with
    this process. If a signal ends the child, a sentence is printed. The status is then
    `EXIT_RESTART` for the signals that follow the loss of another process, and 1 for a fault.

    Args:
      argv: arguments of `bertjax`.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *argv],
        env=os.environ | {CHILD_ENV: str(os.getpid())},
        start_new_session=True,  # or a terminal would interrupt it a second time
    )
    # Another handler that learns of the signal would end this process before the child has saved.
    signal.set_wakeup_fd(-1)
    interrupts = iter([signal.SIGTERM])
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: child.send_signal(next(interrupts, signal.SIGKILL)))
    status = child.wait()
    if status >= 0:
        return status
    ended = f"bertjax: the process was ended by {signal.Signals(-status).name}"
    if -status not in _EXTERNAL_SIGNALS:
        print(f"{ended}, a fault of the program or the machine.", file=sys.stderr)
        return 1
    print(
        f"{ended}: another process was lost (its error is above, here or in its log), or the "
        "machine ran out of memory. Run the same command in all processes to resume.",
        file=sys.stderr,
    )
    return EXIT_RESTART


def run_as_child(run: Callable[[], int]) -> int:
    """Return the exit status of `run` in a child; end the process if it failed, or joined others.

    At exit JAX waits for the other processes, which wait for this one inside a step, until it
    aborts. Only a failure that may be the loss of another process is left to JAX.
    """
    try:
        status = run()
    except Exception as error:
        jax = sys.modules.get("jax")  # not imported yet by a command that fails at once
        if jax and isinstance(error, jax.errors.JaxRuntimeError):
            raise
        traceback.print_exc()
        status = 1
    failed = status not in (0, EXIT_RESTART)
    if _wait_for_others(_FAILURE_SECONDS if failed else _EXIT_TIMEOUT_SECONDS) or failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _wait_for_others(seconds: float) -> bool:
    """Wait in process 0 until every process has ended its work; return whether there are others.

    JAX's service runs in process 0. A process that outlives it, such as one on a busy machine,
    aborts, though its work is done, or before it has said what failed. So process 0 ends last, and
    none waits at exit.
    """
    distributed = sys.modules.get("jax._src.distributed")  # the store has no public name
    state = getattr(distributed, "global_state", None)
    if state is None or state.client is None or state.num_processes == 1:
        return False
    with contextlib.suppress(Exception):  # a process is lost: its parent reports it
        if state.process_id:
            state.client.key_value_set(f"{_ENDED}/{state.process_id}", "")
            return True
        end = time.monotonic() + seconds
        for other in range(1, state.num_processes):
            milliseconds = int(1000 * max(end - time.monotonic(), 1.0))
            state.client.blocking_key_value_get(f"{_ENDED}/{other}", milliseconds)
        time.sleep(_EXIT_SECONDS)
    return True


def die_with_parent() -> None:
    """End this child as soon as its parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[CHILD_ENV]):  # the parent has died already
        os.kill(os.getpid(), signal.SIGKILL)
