"""SIGINT and SIGTERM in commands."""

import contextlib
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
    config = f"{EXPERIMENTS}/pretraining.py:smoke"
    command = [sys.executable, "-m", "bertjax", "inspect", "--params", "--config", config]
    for seconds in (0.5, 1.0, 1.5):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=process_environment())
        time.sleep(seconds)
        process.send_signal(number)
        _, error = process.communicate()
        # Python may have ended before bertjax handles signals, or while it imports `site`.
        handled = process.returncode != -number and b"init_import_site" not in error
        assert not handled or process.returncode in (0, 75)
        assert b"Traceback" not in error or not handled


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
