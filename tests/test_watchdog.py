"""The watchdog in processes that hang, progress, or are stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, threading, time
from bertjax.mesh import watchdog
watchdog._POLL_SECONDS, watchdog._GRACE_SECONDS = 0.05, 0.1

def hang():
    time.sleep(600)

threading.Thread(target=hang, daemon=True).start()
with watchdog.Watchdog(float(sys.argv[1]) / 60):
    print("started", flush=True)
    for _ in range(20):
        time.sleep(0.1)
        watchdog.note_progress()
    print("progressed", flush=True)
    time.sleep(float(sys.argv[2]))
time.sleep(1)
print("ended", flush=True)
"""


def start(*arguments: object) -> subprocess.Popen:
    line = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_watchdog_prints_all_threads_and_ends_a_hanging_process() -> None:
    process = start(0.5, 600)
    output, error = process.communicate(timeout=60)
    assert output == "started\nprogressed\n" and process.returncode == 75
    assert "no step, evaluation or save has finished for 0.00833333 minutes" in error
    assert "in hang" in error and error.count("hread 0x") == 3
    assert error.splitlines()[-1].startswith("bertjax: ended by the watchdog: run the same")


@pytest.mark.slow
def test_watchdog_leaves_a_process_that_ends_or_was_stopped() -> None:
    process = start(0.7, 0)
    assert process.stdout.readline() == "started\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGCONT)
    output, error = process.communicate(timeout=60)
    assert (output, error, process.returncode) == ("progressed\nended\n", "", 0)
    assert start(0, 1).communicate(timeout=60)[0].endswith("ended\n")
