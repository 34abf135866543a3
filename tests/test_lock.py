"""One run a workdir: the second is refused, and what a dead one leaves behind hinders nobody."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from bucket import Server
from conftest import LONG, process_environment
from etils import epath

from bertjax.workdir import lock as module
from bertjax.workdir.lock import LOCK_FILE, LockLost, WorkdirLock
from data_pipelines.errors import InputError

HOLD = """
import sys, time
from etils import epath
from bertjax.workdir.lock import Lease
with Lease(epath.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""

# In a bucket: refused beside a holder, free after it, taken from one elsewhere that is silent.
BUCKET = """
import json, sys
from etils import epath
from bertjax.workdir import lock
from bertjax.workdir.lock import LEASE, Lease
lock.RENEW_SECONDS, lock.LOCK_TIMEOUT_SECONDS = 0.1, 1.0
workdir = epath.Path("gs://bucket/run one")
with Lease(workdir) as held:
    text = (workdir / LEASE).read_text()
    try:
        Lease(workdir).__enter__()
    except ValueError as error:
        print(error)
    held.check()
with Lease(workdir):
    print("free")
(workdir / LEASE).write_text(json.dumps(json.loads(text) | {"machine": "another"}))
with Lease(workdir):
    print("taken")
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> epath.Path:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 1.0)
    return epath.Path(tmp_path) / "run"


def elsewhere(workdir: epath.Path) -> bytes:
    """Makes the lease that of a process on another machine."""
    text = json.loads((workdir / LOCK_FILE).read_text()) | {"machine": "another", "host": "far"}
    (workdir / LOCK_FILE).write_text(json.dumps(text))
    return (workdir / LOCK_FILE).read_bytes()


def test_a_second_holder_is_refused_and_the_first_keeps_it(workdir) -> None:
    with WorkdirLock(workdir) as first:
        with pytest.raises(InputError, match=r"run is in use by process \d+ on .*--workdir"):
            WorkdirLock(workdir).__enter__()
        time.sleep(0.2)
        first.check()


@pytest.mark.parametrize("refuses", ["reads", "writes"])
def test_a_workdir_that_may_not_be_used_is_refused_with_the_reason(workdir, monkeypatch, refuses):
    class Store:
        def refuse(self, *_: object, **__: object) -> None:
            raise ValueError("PERMISSION_DENIED: lock.json: no\nmore of it")

        def read(self, *_: object) -> SimpleNamespace:
            if refuses == "reads":
                self.refuse()
            found = SimpleNamespace(state="missing", stamp=SimpleNamespace(generation=b""))
            return SimpleNamespace(result=lambda: found)

        write = refuse

    monkeypatch.setattr(module, "_open", lambda _: Store())
    with pytest.raises(InputError, match=r"run cannot be written to \(PERMISSION_DENIED: .*: no\)"):
        WorkdirLock(workdir).__enter__()


def test_nothing_is_left_of_a_holder_that_ended(workdir, monkeypatch) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 600)  # no renewal is under way
    with WorkdirLock(workdir):
        assert [path.name for path in workdir.iterdir()] == [LOCK_FILE]
    assert not list(workdir.iterdir())
    with WorkdirLock(workdir):
        pass


def test_a_killed_process_of_this_machine_hinders_nobody(workdir, monkeypatch) -> None:
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


def test_a_holder_elsewhere_that_is_silent_is_waited_for_and_replaced(workdir) -> None:
    with WorkdirLock(workdir):
        left = (workdir / LOCK_FILE).read_bytes()
    (workdir / LOCK_FILE).write_bytes(left)
    elsewhere(workdir)
    began = time.monotonic()
    with WorkdirLock(workdir) as lock:
        assert time.monotonic() - began >= 1
        lock.check()


def test_a_holder_elsewhere_that_renews_is_left_alone(workdir, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_machine_id", lambda: "another")
        monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 600)  # though a renewal may be late
        first = WorkdirLock(workdir).__enter__()
    with pytest.raises(InputError, match="is in use by process"):
        WorkdirLock(workdir).__enter__()
    first.check()
    first.__exit__(None, None, None)


def test_a_holder_that_was_replaced_is_told_and_takes_nothing_back(workdir) -> None:
    with WorkdirLock(workdir) as first:
        other = elsewhere(workdir)
        while not first._lost.wait(0.2):  # a renewal may have been under way
            other = elsewhere(workdir)
        with pytest.raises(LockLost, match="was taken by another run"):
            first.check()
    assert (workdir / LOCK_FILE).read_bytes() == other


@pytest.mark.slow
def test_a_bucket_is_held_in_the_same_way(tmp_path) -> None:
    server = Server("bucket", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", BUCKET],
        env=process_environment() | server.environment,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    server.close()
    assert done.returncode == 0, done.stderr
    refusal, free, taken = done.stdout.splitlines()
    assert refusal.startswith("gs://bucket/run one is in use by process")
    assert (free, taken) == ("free", "taken")
    assert not server.refused and not server.below("")
