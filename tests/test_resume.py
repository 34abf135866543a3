"""Runs that are killed, stopped, started twice, or out of disk space."""

import functools
import pathlib
import re
import signal
import socket
import subprocess

import pytest
from processes import Command, fail_at, hold, run
from run_outputs import metrics, params_of

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.lookup import find_checkpoint

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
STEPS, CHECKPOINT_EVERY = 250, 15

pytestmark = pytest.mark.slow


def command(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "steps": STEPS, "checkpoint_every": CHECKPOINT_EVERY}
    fields |= {"log_every": 10, "eval_every": 100, **overrides}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> pathlib.Path:
    """The workdir of a run without interruption."""
    workdir = tmp_path_factory.mktemp("whole")
    done = run(*command(corpus, workdir))
    assert done.returncode == 0, done.stderr
    return workdir


# Injected kills, in this order, with the checkpoints that each leaves.
KILLS = {
    "step.before_update:5=kill": [],
    "save.after_write:2=kill": [15],
    "save.after_manifest:2=kill": [15, 30, 45],
    "delete.after_manifest=kill": [30, 45, 60],
    "step.before_update:23=kill": None,  # the checkpoint of step 75 may be unfinished
}


@pytest.mark.minutes
def test_killed_run_resumes_bit_identical(corpus, tmp_path, whole) -> None:
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    for fault, steps in KILLS.items():
        process = Command(*command(corpus, tmp_path), begin=functools.partial(fail_at, fault))
        process.communicate()
        assert process.poll() == -signal.SIGKILL, fault
        assert steps in (None, checkpoints.all_steps()), fault
    process = Command(*command(corpus, tmp_path), begin=functools.partial(hold, 112))
    process.wait_for_step(110)
    process.kill()
    process.wait()
    done = run(*command(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert done.stderr.count("attention: ") == 1
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_stop_signal_saves_and_the_next_run_resumes(corpus, tmp_path, whole) -> None:
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
    assert f"which has step {saved[-1]}" in page and f"resuming from step {saved[-1]}" in page
    first = re.search(r"^step .*$", after, re.MULTILINE)
    assert first and first[0].startswith(f"step {saved[-1] + 1}/") and "seq/s" not in first[0]
    assert f"saved {tmp_path}/checkpoints/{STEPS:08d}\ndone; " in after
    assert after.endswith("-hf\n") and f"bertjax predict --checkpoint {tmp_path} --text" in after
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_second_run_in_a_workdir_is_rejected(corpus, tmp_path, whole) -> None:
    go = tmp_path.with_name(f"{tmp_path.name}.go")
    first = Command(*command(corpus, tmp_path), begin=functools.partial(hold, 20, str(go)))
    first.wait_for_step(10)
    second = run(*command(corpus, tmp_path))
    go.touch()
    assert second.returncode == 2
    (sentence,) = second.stderr.splitlines()
    assert f"{tmp_path}: in use by process {first.pid} on {socket.gethostname()}" in sentence
    first.communicate()
    assert first.poll() == 0
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_full_disk_is_reported_and_costs_no_checkpoint(corpus, tmp_path) -> None:
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
