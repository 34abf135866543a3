"""The child process in which a process that joins others does its work.

JAX's runtime aborts a process, without running Python's handlers, when another process is lost. A
process that joins others therefore runs in a child, whose parent reports the loss in one sentence.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence

from bertjax.errors import EXIT_RESTART

CHILD_ENV = "BERTJAX_CHILD"  # set in the child to the id of its parent
HEARTBEAT_SECONDS = 60  # a process that is silent for longer is lost
# Seconds that a process waits for the others at its end, by what ended it:
_WORK_SECONDS = 3600.0  # process 0 may still write; a process that hangs has a watchdog
_FAILURE_SECONDS = 20.0  # for others to fail, too; those that wait for this process never do
_LOSS_SECONDS = HEARTBEAT_SECONDS + 30.0  # for JAX to notice a lost process
_ABORT_SECONDS = 10.0  # for JAX to abort this process after that
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
    interrupts = iter([signal.SIGTERM])
    children: list[subprocess.Popen[bytes]] = []
    pending: list[int] = []
    forwarded: list[int] = []

    def forward(number: int, frame: types.FrameType | None) -> None:
        if number == signal.SIGINT:
            number = next(interrupts, signal.SIGKILL)
        forwarded.append(number)
        if children:
            children[0].send_signal(number)
        else:
            pending.append(number)

    # First, so that no signal is lost. Another handler that learns of the signal would end this
    # process before the child has saved.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    child = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *argv],
        env=os.environ | {CHILD_ENV: str(os.getpid())},
        start_new_session=True,  # or a terminal would interrupt it a second time
    )
    children.append(child)
    for number in pending:
        child.send_signal(number)
    status = child.wait()
    if status >= 0:
        return status
    if forwarded and -status in forwarded:
        print("bertjax: stopped: run the same command again in all processes.", file=sys.stderr)
        return EXIT_RESTART
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

    At exit JAX would wait for the other processes, which may wait for this one inside a step. An
    error of its runtime may follow the loss of another process. If it does, JAX aborts this one.
    """
    may_be_loss = False
    try:
        status = run()
    except Exception as error:
        traceback.print_exc()
        jax = sys.modules.get("jax")  # not imported yet by a command that fails at once
        may_be_loss = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
        status = 1
    failed = status not in (0, EXIT_RESTART)
    if _leave_others(failed, may_be_loss) or failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _leave_others(failed: bool, may_be_loss: bool) -> bool:
    """Disconnect from the other processes once all have ended; return whether there are others.

    JAX's service runs in process 0. It aborts a process that has ended without it, or is connected
    when it ends, though the work of that process is done. So all stay until the last has ended.
    """
    distributed = sys.modules.get("jax._src.distributed")  # the barrier has no public name
    state = getattr(distributed, "global_state", None)
    if state is None or state.client is None or state.num_processes == 1:
        return False
    seconds = _FAILURE_SECONDS if failed else _WORK_SECONDS
    seconds = _LOSS_SECONDS if may_be_loss else seconds
    # The first process that arrives sets the time limit of a barrier.
    barrier = "bertjax/lost" if may_be_loss else "bertjax/failed" if failed else "bertjax/done"
    try:
        state.client.wait_at_barrier(barrier, int(1000 * seconds))
        state.shutdown()
    except Exception:  # a process is lost, and its parent reports it, or does not fail
        time.sleep(_ABORT_SECONDS if may_be_loss else 0)
    return True


def die_with_parent() -> None:
    """End this child as soon as its parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[CHILD_ENV]):  # the parent has died already
        os.kill(os.getpid(), signal.SIGKILL)
