"""Tests of the workdir lock: the second run is rejected, and a dead one blocks nobody."""

import concurrent.futures
import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bucket import Server
from conftest import LONG, process_environment
from etils import epath

from bertjax.errors import LockLostError
from bertjax.workdir import lock as module
from bertjax.workdir.lock import LOCK_FILE, WorkdirLock
from data_pipelines.errors import InputError

HOLD = """
import sys, time
from etils import epath
from bertjax.workdir.lock import WorkdirLock
with WorkdirLock(epath.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""

# In a bucket: rejected beside a holder, free after it, taken from a silent one elsewhere.
BUCKET = """
import json, sys, time
from etils import epath
from bertjax.workdir import lock
from bertjax.workdir.lock import LOCK_FILE, WorkdirLock
lock.HEARTBEAT_SECONDS, lock.LOCK_TIMEOUT_SECONDS = 0.1, 1.0
workdir = epath.Path("gs://bucket/run one")
with WorkdirLock(workdir) as held:
    text = (workdir / LOCK_FILE).read_text()
    try:
        WorkdirLock(workdir).__enter__()
    except ValueError as error:
        print(error)
    time.sleep(1)
    held.check()
with WorkdirLock(workdir):
    print("free")
(workdir / LOCK_FILE).write_text(json.dumps(json.loads(text) | {"machine": "another"}))
with WorkdirLock(workdir):
    print("taken")
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> epath.Path:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(module, "HANDOVER_SECONDS", 0.5)
    return epath.Path(tmp_path) / "run"


def move_elsewhere(workdir: epath.Path) -> bytes:
    """Make the lock that of a process on another machine."""
    text = json.loads((workdir / LOCK_FILE).read_text()) | {"machine": "another", "host": "far"}
    (workdir / LOCK_FILE).write_text(json.dumps(text))
    return (workdir / LOCK_FILE).read_bytes()


def test_lock_rejects_a_second_holder_and_the_first_keeps_it(workdir) -> None:
    with WorkdirLock(workdir) as first:
        with pytest.raises(InputError, match=r"run: in use by process \d+ on .*--workdir"):
            WorkdirLock(workdir).__enter__()
        time.sleep(0.2)
        first.check()


@pytest.mark.parametrize("failing", ["_read", "_write"])
def test_lock_names_why_a_workdir_is_not_writable(workdir, monkeypatch, failing) -> None:
    def fail(*_: object) -> None:
        raise ValueError("PERMISSION_DENIED: lock.json: no\nmore of it")

    monkeypatch.setattr(module, failing, fail)
    with pytest.raises(InputError, match=r"run: not writable \(PERMISSION_DENIED: .*: no\)"):
        WorkdirLock(workdir).__enter__()


def test_lock_leaves_nothing_behind(workdir, monkeypatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 600)  # no heartbeat is being written
    with WorkdirLock(workdir / "nested"):
        assert [path.name for path in (workdir / "nested").iterdir()] == [LOCK_FILE]
    assert not workdir.exists()
    workdir.mkdir()
    with WorkdirLock(workdir):
        pass
    assert not list(workdir.iterdir())


@pytest.mark.seconds
def test_two_processes_take_a_stale_lock_one_after_the_other(workdir, monkeypatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 600)
    workdir.mkdir()
    (workdir / LOCK_FILE).write_text('{"host": "far", "pid": 1}')
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        first = executor.submit(WorkdirLock(workdir).__enter__)
        end = time.monotonic() + LONG
        while not (workdir / f"{LOCK_FILE}.start").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(InputError, match=r"run: another run has just started there"):
            WorkdirLock(workdir).__enter__()
        (workdir / LOCK_FILE).unlink()  # else the first one waits
        first.result().__exit__(None, None, None)


@pytest.mark.seconds
def test_lock_of_a_killed_process_of_this_machine_is_stale_at_once(workdir, monkeypatch) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workdir)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"in use by process {process.pid} on"):
        WorkdirLock(workdir).__enter__()
    process.kill()
    process.wait()
    assert (workdir / LOCK_FILE).exists()
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 1e9)  # it is not waited for
    with WorkdirLock(workdir) as lock:
        lock.check()


@pytest.mark.seconds
def test_lock_of_a_silent_holder_elsewhere_is_replaced_after_the_timeout(workdir) -> None:
    workdir.mkdir()
    with WorkdirLock(workdir):
        left = (workdir / LOCK_FILE).read_bytes()
    (workdir / LOCK_FILE).write_bytes(left)
    move_elsewhere(workdir)
    start = time.monotonic()
    with WorkdirLock(workdir) as lock:
        assert time.monotonic() - start >= 1
        lock.check()


@pytest.mark.seconds
def test_lock_file_that_a_killed_process_did_not_finish_is_stale_after_the_timeout(workdir) -> None:
    workdir.mkdir()
    (workdir / LOCK_FILE).write_text('{"ho')
    start = time.monotonic()
    with WorkdirLock(workdir) as lock:
        assert time.monotonic() - start >= 1
        lock.check()


@pytest.mark.seconds
def test_lock_with_heartbeats_from_elsewhere_is_left_alone(workdir, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_machine_id", lambda: "another")
        monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 600)  # though a heartbeat may be late
        first = WorkdirLock(workdir).__enter__()
    with pytest.raises(InputError, match="in use by process"):
        WorkdirLock(workdir).__enter__()
    first.check()
    first.__exit__(None, None, None)


@pytest.mark.seconds
def test_lock_of_a_preempted_run_elsewhere_is_taken_once_it_has_saved(workdir, monkeypatch) -> None:
    monkeypatch.setattr(module, "HANDOVER_SECONDS", 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_machine_id", lambda: "another")
        first = WorkdirLock(workdir).__enter__()
    timer = threading.Timer(0.5, first.__exit__, (None, None, None))
    timer.start()
    with WorkdirLock(workdir) as second:
        assert first._released.is_set()
        timer.join()
        assert not first._lost.is_set()
        second.check()


def test_holder_that_was_replaced_raises_and_takes_nothing_back(workdir) -> None:
    with WorkdirLock(workdir) as first:
        other = move_elsewhere(workdir)
        while not first._lost.wait(0.2):  # a heartbeat may have been in progress
            other = move_elsewhere(workdir)
        with pytest.raises(LockLostError, match="taken by another run"):
            first.check()
    assert (workdir / LOCK_FILE).read_bytes() == other


@pytest.fixture
def silent(workdir, monkeypatch) -> Iterator[WorkdirLock]:
    """A held lock without heartbeats, as of a process that is frozen."""
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 600)
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 600)
    with WorkdirLock(workdir) as lock:
        yield lock


@pytest.mark.parametrize("clock", ["monotonic", "time"])
def test_confirm_reads_the_lock_after_a_pause_by_either_clock(
    workdir, silent, monkeypatch, clock: str
) -> None:
    move_elsewhere(workdir)
    silent.confirm()  # the last heartbeat is recent, so no other run can have taken it
    now = getattr(time, clock)
    monkeypatch.setattr(time, clock, lambda: now() + 301)
    with pytest.raises(LockLostError, match="taken by another run"):
        silent.confirm()
    monkeypatch.undo()
    with pytest.raises(LockLostError):
        silent.check()


def test_confirm_of_a_lock_that_is_still_held_returns(silent, monkeypatch) -> None:
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 301)
    silent.confirm()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_read", lambda path: pytest.fail("the lock was seen just now"))
        silent.confirm()


def test_confirm_raises_the_error_of_its_storage(workdir, silent, monkeypatch) -> None:
    """A lock that cannot be read is not a lock that is gone."""
    now, stat = time.monotonic, os.stat

    def fail(path: Any, **options: Any) -> os.stat_result:
        if os.fspath(path).endswith(LOCK_FILE):
            raise OSError(errno.ESTALE, "Stale file handle", os.fspath(path))
        return stat(path, **options)

    monkeypatch.setattr(time, "monotonic", lambda: now() + 301)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Stale file handle"):
        patch.setattr(os, "stat", fail)
        silent.confirm()
    silent.confirm()
    (workdir / LOCK_FILE).unlink()
    monkeypatch.setattr(time, "monotonic", lambda: now() + 602)
    with pytest.raises(LockLostError):
        silent.confirm()


@pytest.mark.seconds
def test_lock_can_be_held_again(workdir, monkeypatch) -> None:
    lock = WorkdirLock(workdir)
    with lock:
        lock._lost.set()
    with lock:
        lock.check()
        while json.loads((workdir / LOCK_FILE).read_text())["heartbeats"] < 2:
            time.sleep(0.05)


def test_holder_that_was_frozen_while_it_read_the_lock_reads_it_again(
    workdir, silent, monkeypatch
) -> None:
    """It would write over the lock of its successor."""
    now, read, offset = time.monotonic, module._read, 0

    def freeze(path: epath.Path) -> dict[str, Any] | None:
        nonlocal offset
        holder = read(path)
        if not offset:
            offset = 301
            move_elsewhere(workdir)
        return holder

    monkeypatch.setattr(time, "monotonic", lambda: now() + offset)
    monkeypatch.setattr(module, "_read", freeze)
    assert not silent._is_held()


@pytest.mark.slow
def test_lock_in_a_bucket(tmp_path) -> None:
    server = Server("bucket", tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", BUCKET],
        env=process_environment() | server.environment,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    server.close()
    assert process.returncode == 0, process.stderr
    rejected, free, taken = process.stdout.splitlines()
    assert rejected.startswith("gs://bucket/run one: in use by process")
    assert (free, taken) == ("free", "taken")
    assert not server.refused and not server.below("")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "content", ["[]", '"x"', '{"pid": "x"}', '{"id": 5}', '{"id": "zz", "pid": 1}', "5", ""]
)
def test_damaged_lock_of_no_living_holder_is_replaced(content: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.01)
    (tmp_path / LOCK_FILE).write_text(content)
    with WorkdirLock(epath.Path(tmp_path)):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
