"""SIGINT and SIGTERM in commands."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import LONG, process_environment
from toy_tasks import EXPERIMENTS

from bertjax.cli import termination


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_start_exits_with_restart(number) -> None:
    if number == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored here, as it is in the background of a script")
    config = f"{EXPERIMENTS}/pretraining.py:smoke"
    command = [sys.executable, "-m", "bertjax", "inspect", "--params", "--config", config]
    statuses = []
    for seconds in (0, 0.5, 1.0):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=process_environment())
        while not handles(process.pid, signal.SIGTERM):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(number)
        _, error = process.communicate()
        statuses.append(process.returncode)
        assert b"Traceback" not in error
    assert statuses[0] == 75 and {*statuses} <= {0, 75}  # it may have ended before


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of a signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.seconds
def test_signal_that_the_garbage_collector_swallows_is_raised_again() -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def wait() -> None:
        Interrupted()  # deleted here: the exception of its signal is lost
        threading.Event().wait(termination._GRACE_SECONDS / 2)

    hook = sys.unraisablehook
    with termination.handle_signals() as stopped:
        with pytest.raises(KeyboardInterrupt):
            wait()
        signal.raise_signal(signal.SIGTERM)  # a second one disturbs no orderly end
        assert stopped.is_set()
    assert sys.unraisablehook is hook


def test_signal_ends_an_unresponsive_command(monkeypatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(termination, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(termination, "exit_stopped", ended.set)
    with termination.handle_signals() as stopped:
        with contextlib.suppress(KeyboardInterrupt):  # as a C callback loses it
            signal.raise_signal(signal.SIGTERM)
        assert stopped.is_set() and ended.wait(LONG)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_signal_ends_a_command_inside_c_code() -> None:
    program = (
        "import hashlib, sys; from bertjax.cli import termination\n"
        "termination._GRACE_SECONDS = 0.1\n"
        "with termination.handle_signals():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"  # minutes in C
        "    except KeyboardInterrupt:\n"  # the signal came before the call
        "        sys.exit(termination.report_stopped())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.terminate()
    _, error = process.communicate(timeout=LONG)
    assert process.returncode == 75 and b"run the same command again" in error


@pytest.mark.seconds
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_after_a_command_keeps_its_status(number) -> None:
    program = f"""if True:
        import atexit, os, sys
        from bertjax.cli.main import main
        atexit.register(lambda: os.kill(os.getpid(), {int(number)}))
        sys.argv = ["bertjax", "config"]
        sys.exit(main())
    """
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=process_environment()
    )
    assert process.returncode == 0 and process.stdout
