"""Child processes: their exit status, signals, and failures that end them at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from bertjax.cli import termination
from bertjax.mesh import child_process


def test_run_as_child_does_not_wait_for_others_after_a_failure(monkeypatch, capfd) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    def fail() -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(os, "_exit", end)
    for run, status in [(lambda: 2, 2), (fail, 1)]:
        with pytest.raises(SystemExit) as ended:
            child_process.run_as_child(run)
        assert ended.value.code == status
    assert "KeyError: 'a defect'" in capfd.readouterr().err
    for status in (0, 75):  # all processes end together with these
        assert child_process.run_as_child(lambda status=status: status) == status


@pytest.fixture
def supervise_program(monkeypatch):
    """`child_process.supervise_child` with a given program as the child."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    plain = subprocess.Popen

    def run_program(program: str, before: Callable[[], None] = lambda: None) -> int:
        def start(_: Sequence[str], **options: object) -> subprocess.Popen:
            before()
            return plain([sys.executable, "-c", program], **options)

        monkeypatch.setattr(subprocess, "Popen", start)
        return child_process.supervise_child([])

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
def test_supervise_child_reports_the_signal_that_ended_the_child(
    supervise_program, capfd, name: str, status: int, sentence: str
) -> None:
    assert supervise_program(f"import os, signal; os.kill(os.getpid(), signal.{name})") == status
    stderr = capfd.readouterr().err
    assert f"ended by {name}" in stderr and sentence in stderr


@pytest.mark.seconds
def test_supervise_child_gives_the_child_time_to_save(
    supervise_program, monkeypatch, tmp_path
) -> None:
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
        assert supervise_program(program) == 75
    thread.join()
    assert not ended


@pytest.mark.seconds
def test_supervise_child_forwards_a_signal_that_came_first(supervise_program, capfd) -> None:
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert supervise_program("import time; time.sleep(600)", before=stop) == 75
    assert (
        capfd.readouterr().err == "bertjax: stopped: run the same command again in all processes.\n"
    )


@pytest.mark.seconds
def test_supervise_child_kills_the_child_at_a_second_interrupt(supervise_program, tmp_path) -> None:
    ready, ended = tmp_path / "ready", threading.Event()

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.05)
        while not ended.wait(0.5):  # two that come at once are one
            os.kill(os.getpid(), signal.SIGINT)

    (thread := threading.Thread(target=interrupt)).start()
    program = "import signal, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    status = supervise_program(program + f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)")
    ended.set()
    thread.join()
    assert status == 75
