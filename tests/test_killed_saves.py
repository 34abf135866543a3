"""Processes that strace kills inside Orbax's system calls while they save checkpoints."""

import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from checkpoint_states import equal, make_state, save, state_target
from conftest import LONG, process_environment
from processes import CONTEXT

from bertjax.checkpointing.checkpointer import Checkpointer

STEPS = range(1, 5)
NUM_KILLS = 40
CALLS = {  # system calls of one group count together, in each thread
    "rename,renameat,renameat2": 12,
    "mkdir,mkdirat": 12,
    "fsync,fdatasync": 8,
    "pwrite64,pwritev,writev": 4,
    "unlink,unlinkat,rmdir": 12,
    "write": 24,
}

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.skipif(not shutil.which("strace"), reason="needs strace"),
]


def run_saves(directory: pathlib.Path, environment: dict[str, str], go: pathlib.Path) -> None:
    os.environ.update(environment)
    while not go.exists():
        time.sleep(0.01)
    save(Checkpointer(directory, max_to_keep=2), *STEPS)


def kill_during_saves(directory: pathlib.Path, calls: str, number: int) -> int | None:
    """Save all steps in a process that is killed at a system call; return its exit code."""
    go = directory.with_name("go")
    go.unlink(missing_ok=True)
    process = CONTEXT.Process(target=run_saves, args=(directory, process_environment(), go))
    process.start()
    inject = f"inject={calls}:signal=SIGKILL:when={number}"
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(process.pid), "-e", f"trace={calls}", "-e", inject],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr and "attached" in tracer.stderr.readline()
    go.touch()
    tracer.communicate(timeout=LONG)
    process.join()
    return process.exitcode


def test_save_killed_in_a_system_call_leaves_the_checkpoints_before_it(tmp_path) -> None:
    kills = [
        zip(itertools.repeat(calls), range(1, count + 1), strict=False)
        for calls, count in CALLS.items()
    ]
    rounds = itertools.zip_longest(*kills)  # the first calls of each group come first
    target, left = state_target(), []
    for calls, number in filter(None, itertools.chain.from_iterable(rounds)):
        if len(left) == NUM_KILLS:
            break
        directory = tmp_path / "checkpoints"
        shutil.rmtree(directory, ignore_errors=True)
        if kill_during_saves(directory, calls, number) != -signal.SIGKILL:
            continue  # it has fewer such calls
        checkpoints = Checkpointer(directory, max_to_keep=2)
        checkpoints.delete_unfinished()
        restored, steps = checkpoints.restore(target), checkpoints.all_steps()
        left.append(steps[-1] if steps else 0)
        assert (restored is None) == (not steps), (calls, number)
        assert restored is None or equal(restored, make_state(steps[-1])), (calls, number)
        save(checkpoints, *range(left[-1] + 1, STEPS[-1] + 1))
        assert checkpoints.all_steps() == [*STEPS[-2:]], (calls, number)
        assert equal(checkpoints.restore(target), make_state(STEPS[-1])), (calls, number)
        finished = [path.name for path in directory.iterdir()]
        assert sorted(finished) == [f"{step:08d}" for step in STEPS[-2:]], (calls, number)
    print({step: left.count(step) for step in (0, *STEPS)})
    assert len(left) >= 20 and len({*left}) > 2
