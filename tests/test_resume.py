"""A run survives what machines do: kill -9 at any moment, damaged files, a full disk."""

import json
import pathlib
import random
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import bertjax, process_environment

from bertjax import tasks
from bertjax.checkpoint import Checkpoints, find_checkpoint, load_params
from bertjax.config import read_config
from bertjax.sharding import make_mesh, sharded_shapes

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretrain.py"
STEPS, SAVED_EVERY = 1000, 25
TIMES = ("sequences_per_second", "pieces_per_second", "mfu", "data_wait")

pytestmark = pytest.mark.slow


def command(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "steps": STEPS, "checkpoint_every": SAVED_EVERY}
    fields |= {"log_every": 10, "eval_every": 100, **overrides}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


def start(*arguments: object) -> subprocess.Popen:
    line = [sys.executable, "-m", "bertjax", *map(str, arguments)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, env=process_environment(), **quiet)


def metrics(workdir: pathlib.Path) -> list[dict]:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in entry.items() if k not in TIMES} for entry in entries]


def params_of(workdir: pathlib.Path) -> list[bytes]:
    config = read_config(find_checkpoint(workdir) / "config.json", tasks.data_fields())
    shapes = jax.eval_shape(lambda: tasks.find("pretrain").init_params(config, jax.random.key(0)))
    target = sharded_shapes(make_mesh(1, 1, 1, jax.devices()[:1]), shapes)
    params = load_params(find_checkpoint(workdir), target)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> pathlib.Path:
    """A run without interruption."""
    workdir = tmp_path_factory.mktemp("whole")
    done = bertjax(*command(corpus, workdir))
    assert done.returncode == 0, done.stderr
    return workdir


def wait_for_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
    while process.poll() is None and max([0, *(m["step"] for m in metrics(workdir))]) < step:
        time.sleep(0.01)


def wait_for_save(process: subprocess.Popen, workdir: pathlib.Path) -> None:
    """Returns while a checkpoint is being written."""
    checkpoints = Checkpoints(workdir / "checkpoints")
    while process.poll() is None:
        found = [path.name for path in (workdir / "checkpoints").glob("*")]
        if any(int(name) not in checkpoints.steps() for name in found if name.isdigit()):
            return


def test_ten_kills_change_nothing(corpus, tmp_path, whole) -> None:
    draw = random.Random(11)
    during_save = 0
    for kill in range(10):
        process = start(*command(corpus, tmp_path))
        reached = max([0, *Checkpoints(tmp_path / "checkpoints").steps()])
        if kill in (3, 7):
            wait_for_step(process, tmp_path, reached + 1)
            wait_for_save(process, tmp_path)
            during_save += process.poll() is None
        elif kill == 0:
            time.sleep(draw.uniform(0.5, 3))  # before there is anything
        else:
            wait_for_step(process, tmp_path, reached + draw.randrange(1, 60))
            time.sleep(draw.uniform(0, 0.3))
        process.kill()
        process.wait()
    assert during_save == 2
    done = bertjax(*command(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "going on from step" in done.stderr
    assert metrics(tmp_path) == metrics(whole)
    assert params_of(tmp_path) == params_of(whole)


def test_a_stop_signal_saves_and_the_next_run_goes_on(corpus, tmp_path, whole) -> None:
    process = start(*command(corpus, tmp_path))
    wait_for_step(process, tmp_path, 30)
    process.terminate()
    assert process.wait(timeout=60) == 1
    saved = Checkpoints(tmp_path / "checkpoints").steps()
    assert saved[-1] >= 30
    done = bertjax(*command(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"going on from step {saved[-1]}" in done.stderr
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
        done = bertjax(*command(corpus, disk / "workdir", keep=1000))
        assert done.returncode == 1
        sentence = done.stderr.splitlines()[-1]
        assert "could not be written" in sentence and "earlier checkpoints are intact" in sentence
        assert "Traceback" not in done.stderr
        saved = Checkpoints(disk / "workdir" / "checkpoints")
        assert saved.steps()
        assert find_checkpoint(disk / "workdir") == saved.path(saved.steps()[-1])
    finally:
        subprocess.run(["umount", str(disk)], check=True)
