"""Commands that experiments run, and arguments that they share."""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import LONG

from experiments.ablations.commands import check_seeds, local_path, run_process, write_shared

ROOT = pathlib.Path(__file__).parents[1]


def test_local_path_returns_the_path() -> None:
    assert local_path("runs/one") == pathlib.Path("runs/one")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gs://bucket/runs", "gs://bucket/runs: not local. Name one that is mounted here"),
        ("~/runs", f"~/runs: the shell has not expanded ~. Write {os.path.expanduser('~')}/runs"),
    ],
)
def test_local_path_rejects_what_would_become_a_directory_of_that_name(text, message) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(message)):
        local_path(text)


def test_experiments_take_paths_as_local_paths() -> None:
    files = (ROOT / "experiments").rglob("*.py")
    assert not [path for path in files if re.search(r"type=(pathlib\.)?Path\b", path.read_text())]


def test_check_seeds_asks_for_a_run() -> None:
    check_seeds(1)
    with pytest.raises(SystemExit, match="--seeds 0: no run"):
        check_seeds(0)


@pytest.mark.seconds
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_process_waits_for_a_training_that_saves(tmp_path, number) -> None:
    # A terminal sends SIGINT to the process as well, and SIGTERM is passed on.
    saves = f"""if True:
        import pathlib, signal, time
        directory = pathlib.Path({str(tmp_path)!r})
        def stop(number, frame):
            time.sleep(1)
            directory.joinpath("saved").touch()
            raise SystemExit(75)
        signal.signal({int(number)}, stop)
        directory.joinpath("ready").touch()
        time.sleep(600)
    """
    program = f"import sys; from experiments.ablations.commands import run_process; \
        sys.exit(run_process([sys.executable, '-c', {saves!r}]))"
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        end = time.monotonic() + LONG
        while not (tmp_path / "ready").exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(LONG) == 75
    assert (tmp_path / "saved").exists()


@pytest.mark.seconds
def test_run_process_reports_a_stop_that_came_after_the_work(monkeypatch) -> None:
    ignores = f"import os, signal; signal.signal({int(signal.SIGTERM)}, signal.SIG_IGN); "
    program = ignores + "os.kill(os.getppid(), signal.SIGTERM)"
    assert run_process([sys.executable, "-c", program]) == 75


def test_several_processes_write_one_record(tmp_path) -> None:
    with ThreadPoolExecutor(8) as processes:
        list(processes.map(lambda i: write_shared(tmp_path / "record", str(i)), range(200)))
    assert [path.name for path in tmp_path.iterdir()] == ["record"]
