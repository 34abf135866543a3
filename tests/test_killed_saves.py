"""Processes that strace kills inside Orbax's system calls while they save checkpoints.

Some kills of each command are tested; `BERTJAX_KILLS=40` tests 40 of each, which takes an hour.
"""

import collections
import functools
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from typing import NamedTuple

import pytest
from checkpoint_states import equal, make_state, save, state_target
from conftest import LONG, process_environment
from file_kills import OF_ORBAX, role_of
from killable_commands import CACHE_ALL, Killable, write_inputs
from processes import CONTEXT, Command

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
KILLS_OF_A_COMMAND = min(40, int(os.environ.get("BERTJAX_KILLS", "3")))
WRITING_CALLS = "openat,mkdir,mkdirat,rename,renameat,renameat2,fsync,fdatasync,ftruncate,"
WRITING_CALLS += "write,writev,pwrite64,pwritev,unlink,unlinkat,rmdir"

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


class SystemCall(NamedTuple):
    """The first system call that is the n-th of its name in its thread."""

    name: str
    number: int
    role: str | None  # of its file below the root

    @property
    def is_of_orbax(self) -> bool:
        return self.role is not None and OF_ORBAX.search(f"/{self.role}") is not None


def hold_at_first_save(ready: pathlib.Path, go: pathlib.Path) -> None:
    """Stop the process before its first checkpoint until the file `go` exists."""
    from bertjax.inference import convert

    def held(write):
        def call(*arguments):
            ready.touch()
            while not go.exists():
                time.sleep(0.01)
            return write(*arguments)

        return call

    Checkpointer.save = held(Checkpointer.save)
    convert.write_params = held(convert.write_params)


def trace(command: Killable, folder: pathlib.Path, *expressions: str) -> tuple[int, list]:
    """Run a command with strace from its first checkpoint on; return its status and its calls."""
    command.clear()
    ready, go, log = folder / "ready", folder / "go", folder / "log"
    for path in (ready, go, log):
        path.unlink(missing_ok=True)
    process = Command(
        *command.words, begin=functools.partial(hold_at_first_save, ready, go), **CACHE_ALL
    )
    while not ready.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    options = [word for expression in expressions for word in ("-e", expression)]
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-s", "300", "-p", str(process.pid), "-o", log, *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr and "attached" in tracer.stderr.readline()
    go.touch()
    process.communicate()
    tracer.communicate(timeout=LONG)
    status = process.poll()
    assert status is not None
    return status, first_calls(log.read_text(errors="replace"), str(command.root))


def first_calls(log: str, root: str) -> list[SystemCall]:
    """Return the calls in a log at which strace would kill: the first of each name and number."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    calls: dict[tuple[str, int], SystemCall] = {}
    for line in log.splitlines():
        if not (match := re.match(r"(\d+) +(\w+)\((.*)", line)):
            continue  # a signal, or a call that is resumed
        thread, name, rest = match.groups()
        counts[thread, name] += 1
        roles = (role_of(path, root) for path in re.findall(r"[\"<](/[^\">]*)[\">]", rest))
        role = next(filter(None, roles), None)
        number = counts[thread, name]
        calls.setdefault((name, number), SystemCall(name, number, role))
    return [*calls.values()]


@pytest.mark.parametrize("name", ["train", "sweep", "convert-bertjax", "import-hf"])
def test_command_killed_in_orbax_has_the_same_result(name, tmp_path, tmp_path_factory) -> None:
    command = Killable(name, write_inputs(tmp_path_factory.mktemp("inputs")), tmp_path)
    status, calls = trace(command, tmp_path, f"trace={WRITING_CALLS}")
    assert status == 0
    whole = command.contents()
    places = [call for call in calls if call.is_of_orbax]
    assert places
    fell: list[SystemCall] = []
    for place in places[:: -(-len(places) // KILLS_OF_A_COMMAND)]:
        inject = f"inject={place.name}:signal=SIGKILL:when={place.number}"
        status, calls = trace(command, tmp_path, f"trace={place.name}", inject)
        assert status in (0, -signal.SIGKILL), place
        fell += [call for call in calls if status and call.number == place.number]
        assert command.finish() == whole, (place, fell)
    of_orbax = [call for call in fell if call.is_of_orbax]
    kinds = {(call.name, call.role) for call in of_orbax}
    print(f"{name}: {len(fell)} kills, {len(of_orbax)} in files of Orbax, {len(kinds)} kinds")
    assert of_orbax
