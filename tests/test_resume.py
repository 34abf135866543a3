"""A run survives what machines and people do: kill -9 at any moment, a full disk, a second run."""

import functools
import pathlib
import random
import re
import socket
import subprocess
import time

import pytest
from conftest import LONG
from processes import Command, hold, run
from run_outputs import metrics, params_of

from bertjax.checkpointing import checkpointer
from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.lookup import find_checkpoint

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
STEPS, SAVED_EVERY = 250, 15

pytestmark = pytest.mark.slow


def command(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "steps": STEPS, "checkpoint_every": SAVED_EVERY}
    fields |= {"log_every": 10, "eval_every": 100, **overrides}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> pathlib.Path:
    """A run without interruption."""
    workdir = tmp_path_factory.mktemp("whole")
    done = run(*command(corpus, workdir))
    assert done.returncode == 0, done.stderr
    return workdir


def write_for_ever() -> None:
    """Begins a run of whose checkpoints none is ever finished."""
    checkpointer.mark_finished = lambda *_: time.sleep(LONG)


def wait_for_save(process: Command, checkpoints: Checkpointer) -> None:
    """Returns while a checkpoint that had not been begun is being written, beside training."""
    begun = {int(path.name[:8]) for path in checkpoints.directory.glob("0*")}
    while process.poll() is None:
        steps = {int(path.name[:8]) for path in checkpoints.directory.glob("0*")}
        if steps - begun - set(checkpoints.all_steps()):
            return
    pytest.fail("the run ended without another save")


def test_ten_kills_change_nothing(corpus, tmp_path, whole) -> None:
    draw = random.Random(11)
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    for kill in range(10):
        saved = max(checkpoints.all_steps(), default=0)
        begin = write_for_ever if kill in (3, 7) else functools.partial(hold, saved + 36)
        process = Command(*command(corpus, tmp_path), begin=begin)
        if kill == 0:
            time.sleep(draw.uniform(0.5, 3))  # before there is anything
        elif kill == 1:  # as soon as there is something to go on from
            process.wait_for_step(SAVED_EVERY)
            while process.poll() is None and not checkpoints.all_steps():
                time.sleep(0.01)
        elif kill in (3, 7):
            process.wait_for_step(saved + 10)
            wait_for_save(process, checkpoints)
        else:
            process.wait_for_step(saved + draw.randrange(1, 25))
            time.sleep(draw.uniform(0, 0.1))
        assert process.poll() is None
        process.kill()
        process.wait()
    done = run(*command(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "going on from step" in done.stderr
    assert done.stderr.count("attention: ") == 1
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_a_stop_signal_saves_and_the_next_run_goes_on(corpus, tmp_path, whole) -> None:
    go = tmp_path.with_name(f"{tmp_path.name}.go")
    process = Command(*command(corpus, tmp_path), begin=functools.partial(hold, 45, str(go)))
    process.wait_for_step(30)
    process.terminate()
    go.touch()
    process.communicate()
    assert process.poll() == 75
    saved = Checkpointer(tmp_path / "checkpoints").all_steps()
    assert saved[-1] >= 30
    done = run(*command(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    page, after = done.stderr.split("compiling ...\n")
    assert page.startswith("devices ") and page.count("\n") <= 15
    assert f"which has step {saved[-1]}" in page and f"going on from step {saved[-1]}" in page
    first = re.search(r"^step .*$", after, re.MULTILINE)
    assert first and first[0].startswith(f"step {saved[-1] + 1}/") and "seq/s" not in first[0]
    assert f"saved {tmp_path}/checkpoints/{STEPS:08d}\ndone; " in after
    assert after.endswith("-hf\n") and f"bertjax predict --checkpoint {tmp_path} --text" in after
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_a_second_run_in_a_workdir_is_refused_and_the_first_goes_on(
    corpus, tmp_path, whole
) -> None:
    go = tmp_path.with_name(f"{tmp_path.name}.go")
    first = Command(*command(corpus, tmp_path), begin=functools.partial(hold, 20, str(go)))
    first.wait_for_step(10)
    second = run(*command(corpus, tmp_path))
    go.touch()
    assert second.returncode == 2
    (sentence,) = second.stderr.splitlines()
    assert f"{tmp_path} is in use by process {first.pid} on {socket.gethostname()}" in sentence
    first.communicate()
    assert first.poll() == 0
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_a_full_disk_is_said_and_costs_no_checkpoint(corpus, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        done = run(*command(corpus, disk / "workdir", max_to_keep=1000))
        assert done.returncode == 1
        sentence = done.stderr.splitlines()[-1]
        assert "could not be written" in sentence and "earlier checkpoints are intact" in sentence
        assert "Traceback" not in done.stderr
        saved = Checkpointer(disk / "workdir" / "checkpoints")
        assert saved.all_steps()
        assert find_checkpoint(disk / "workdir") == saved.path(saved.all_steps()[-1])
    finally:
        subprocess.run(["umount", str(disk)], check=True)
