"""Reading of checkpoints whose run deletes them meanwhile."""

import gc
import os
import pathlib
import sys
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import toy_tasks
from checkpoint_states import make_state, save, state_target
from etils import epath
from processes import Command, run

from bertjax.checkpointing import checkpointer as checkpointer_module
from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError
from bertjax.checkpointing.lookup import (
    find_checkpoint,
    has_checkpoint,
    read_checkpoint,
    read_unverified_checkpoint,
    write_params,
)
from bertjax.checkpointing.parameters import ignore_abandoned_reads, load_params
from data_pipelines.errors import InputError

PREDICTS = int(os.environ.get("BERTJAX_PREDICTS", "10"))  # commands beside a run


@pytest.fixture
def checkpoints(tmp_path) -> Checkpointer:
    """The checkpoints of a run that keeps one, of step 10."""
    checkpoints = Checkpointer(tmp_path / "checkpoints", max_to_keep=1)
    save(checkpoints, 10)
    return checkpoints


def reader(checkpoints: Checkpointer, *later_steps: int):
    """Return a function that reads a checkpoint, which its run replaces at each call."""
    remaining = iter(later_steps)

    def read(path: epath.Path) -> int:
        if (step := next(remaining, None)) is not None:
            save(checkpoints, step)
        return len((path / "vocab.txt").read_text()) and int(path.name)

    return read


@pytest.mark.seconds
@pytest.mark.parametrize("read", [read_checkpoint, read_unverified_checkpoint])
def test_read_checkpoint_takes_the_next_where_a_run_deletes_one(checkpoints, read) -> None:
    assert read(checkpoints.directory.parent, reader(checkpoints, 20, 30)) == 30


def test_read_checkpoint_takes_the_next_where_the_known_one_is_gone(checkpoints) -> None:
    first = checkpoints.path(10)
    save(checkpoints, 20)
    workdir = checkpoints.directory.parent
    assert read_checkpoint(workdir, reader(checkpoints), first=first) == 20


@pytest.mark.seconds
def test_read_checkpoint_gives_up_after_some_checkpoints(checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"deleted 8 checkpoints .* Raise its max_to_keep"):
        read_checkpoint(checkpoints.directory.parent, reader(checkpoints, *range(20, 120, 10)))


@pytest.mark.seconds
def test_read_checkpoint_raises_the_errors_of_an_existing_checkpoint(checkpoints) -> None:
    def read(path: epath.Path) -> None:
        calls.append(path)
        raise InputError("labels.json: damaged.")

    calls: list[epath.Path] = []
    with pytest.raises(InputError, match="damaged"):
        read_checkpoint(checkpoints.directory.parent, read)
    assert len(calls) == 1


@pytest.mark.seconds
def test_find_checkpoint_takes_the_next_where_a_run_deletes_what_it_verifies(
    checkpoints, monkeypatch, caplog
) -> None:
    find_damage, later = checkpointer_module.find_damage, iter([20, 30])

    def delete_first(path: epath.Path, *options: str) -> str | None:
        if (step := next(later, None)) is not None:
            save(checkpoints, step)
        return find_damage(path, *options)

    monkeypatch.setattr(checkpointer_module, "find_damage", delete_first)
    assert find_checkpoint(checkpoints.directory.parent).name == "00000030"
    assert not caplog.records


def test_has_checkpoint_of_a_step(checkpoints) -> None:
    workdir = checkpoints.directory.parent
    assert has_checkpoint(workdir) and has_checkpoint(workdir, 10)
    assert not has_checkpoint(workdir, 11)


@pytest.mark.slow
def test_every_read_of_a_running_workdir_succeeds(checkpoints) -> None:
    ended, target = threading.Event(), state_target().params

    def train() -> None:
        step = 10
        while not ended.wait(0.05):
            step += 1
            save(checkpoints, step)

    def read(path: epath.Path) -> int:
        params, step = load_params(path, target), int(path.name)
        np.testing.assert_array_equal(params["bias"], make_state(step).params["bias"])
        return step

    thread = threading.Thread(target=train)
    thread.start()
    try:
        workdir = pathlib.Path(checkpoints.directory.parent)
        steps = [read_checkpoint(workdir, read) for _ in range(46)]
        while len({*steps}) <= 5 and thread.is_alive():  # a busy machine saves more slowly
            steps.append(read_checkpoint(workdir, read))
    finally:
        ended.set()
        thread.join()
    assert steps == sorted(steps) and len({*steps}) > 5, "saving failed"


@pytest.mark.minutes
def test_predict_beside_a_run_that_keeps_one_checkpoint_answers_or_says_why(tmp_path) -> None:
    toy_tasks.write_data(tmp_path)
    fields = {"steps": 10**6, "log_every": 10, "eval_every": 10**6, "checkpoint_every": 1}
    arguments = toy_tasks.arguments("single_label", tmp_path, **fields, max_to_keep=1)
    training = Command("train", *arguments, "--workdir", tmp_path / "run")
    training.wait_for_step(10)
    outcomes = [
        run("predict", "--checkpoint", tmp_path / "run", "--text", "ba do") for _ in range(PREDICTS)
    ]
    assert training.poll() is None  # they ran beside it
    training.terminate()
    training.communicate()
    for done in outcomes:
        lines = done.stderr.splitlines()
        is_answered = done.returncode == 0 and '"label"' in done.stdout
        is_refused = done.returncode in (1, 2) and lines[-1].startswith("bertjax: ")
        assert is_answered or is_refused, done.stderr
        assert "Traceback" not in done.stderr
    answered = sum(done.returncode == 0 for done in outcomes)
    print(f"{answered} of {PREDICTS} answered, the others in one line")
    assert answered


@pytest.mark.seconds
def test_reads_of_deleted_arrays_leave_one_error(tmp_path, monkeypatch, caplog) -> None:
    path, reported = epath.Path(tmp_path) / "checkpoint", []
    draw = np.random.default_rng(0).random
    params = {f"array {i}": draw((300, 300), np.float32) for i in range(40)}
    write_params(path, params, lambda path: None)
    for file in pathlib.Path(path).glob("params/**/d/*"):
        file.unlink()
    monkeypatch.setattr("sys.unraisablehook", ignore_abandoned_reads(reported.append))
    shapes = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in params.items()}
    for _ in range(3):  # the first one abandons few
        with pytest.raises(InputError, match="cannot be read"):
            load_params(path, shapes)
    sys.unraisablehook(SimpleNamespace(exc_value=KeyError("another")))
    error = Exception("Encountered error while reading array index: (slice(0, 300),). See full")
    sys.unraisablehook(SimpleNamespace(exc_value=error))  # if it ends after the others
    time.sleep(0.5)  # until the abandoned reads have ended
    gc.collect()
    assert len(reported) == 1 and not caplog.records
