"""Clusters of processes: arguments, initialization, child processes and stop signals."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from bertjax.cli import termination
from bertjax.errors import RunError
from bertjax.mesh import distributed, signals
from bertjax.mesh.distributed import Cluster, find_cluster


def test_run_child_does_not_wait_for_others_after_a_failure(monkeypatch, capfd) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    def fail() -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(os, "_exit", end)
    for run, status in [(lambda: 2, 2), (fail, 1)]:
        with pytest.raises(SystemExit) as ended:
            distributed.run_child(run)
        assert ended.value.code == status
    assert "KeyError: 'a defect'" in capfd.readouterr().err
    for status in (0, 75):  # all processes end together with these
        assert distributed.run_child(lambda status=status: status) == status


def test_initialize_distributed_allows_a_single_tpu_process(monkeypatch) -> None:
    def find_none(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", find_none)
    distributed.initialize_distributed(Cluster(allow_single_process=True), handles_preemption=True)
    with pytest.raises(RunError, match="did not join"):
        distributed.initialize_distributed(Cluster(), handles_preemption=True)


def test_find_cluster_returns_none_for_a_single_process(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(distributed, "on_tpu", lambda: False)
    assert find_cluster(None, None, None) is None


def test_find_cluster_uses_all_gpus_of_a_slurm_node(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x4)")
    assert find_cluster(None, None, None) == Cluster(local_device_ids=tuple(range(8)))
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8(x4)")
    assert find_cluster(None, None, None) == Cluster()


def test_find_cluster_takes_arguments() -> None:
    assert find_cluster("first:1234", 4, 3) == Cluster("first:1234", 4, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("first:1234", 4, None), "one is missing. Give all three"),
        ((None, 4, 0), "one is missing. Give all three"),
        (("first:1234", 4, 4), "--process-id=4: is not one of --num-processes=4"),
        (("first:1234", 4, -1), "--process-id=-1: is not one"),
        (("first", 4, 0), "has no port"),
    ],
)
def test_find_cluster_rejects_incomplete_arguments(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_cluster(*arguments)


@pytest.fixture
def run_in_child(monkeypatch):
    """`distributed.run_in_child` with a given program as the child."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    plain = subprocess.Popen

    def run_program(program: str) -> int:
        line = [sys.executable, "-c", program]
        monkeypatch.setattr(subprocess, "Popen", lambda _, **options: plain(line, **options))
        return distributed.run_in_child([])

    yield run_program
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        ("SIGABRT", 75, "Run the same command in all processes"),
        ("SIGKILL", 75, "ran out of memory"),
        ("SIGSEGV", 1, "a fault of the program or the machine"),
    ],
)
def test_run_in_child_reports_the_signal_that_ended_the_child(
    run_in_child, capfd, name: str, status: int, sentence: str
) -> None:
    assert run_in_child(f"import os, signal; os.kill(os.getpid(), signal.{name})") == status
    stderr = capfd.readouterr().err
    assert f"ended by {name}" in stderr and sentence in stderr


def test_run_in_child_gives_the_child_time_to_save(run_in_child, monkeypatch, tmp_path) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(termination, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(termination, "exit_stopped", lambda: ended.append(True))
    ready = tmp_path / "ready"

    def stop() -> None:
        while not ready.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    (thread := threading.Thread(target=stop)).start()
    program = f"""if True:
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), exit(75)))
        pathlib.Path({str(ready)!r}).touch()
        time.sleep(600)
    """
    with termination.handle_signals():
        assert run_in_child(program) == 75
    thread.join()
    assert not ended


def test_stop_signals_polls_with_increasing_numbers(monkeypatch) -> None:
    """A signal before the first poll, or between sweeps' runs, stops at the next poll."""
    polled: list[int] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(signals, "_sync_points", itertools.count(1))
    monkeypatch.setattr(
        signals.multihost_utils,
        "reached_preemption_sync_point",
        lambda n: polled.append(n) or n > 3,
    )
    for steps in ([28, 29], [1, 2]):
        with signals.stop_signals() as stop:
            stops = [stop(step) for step in steps]
    assert polled == [1, 2, 3, 4] and stops == [False, True]


def test_second_interrupt_kills_the_child(run_in_child, tmp_path) -> None:
    ready, ended = tmp_path / "ready", threading.Event()

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.05)
        while not ended.wait(0.5):  # two that come at once are one
            os.kill(os.getpid(), signal.SIGINT)

    (thread := threading.Thread(target=interrupt)).start()
    program = "import signal, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    status = run_in_child(program + f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)")
    ended.set()
    thread.join()
    assert status == 75
