"""Reading of checkpoints whose run deletes them meanwhile."""

import pathlib
import threading

import numpy as np
import pytest
from checkpoint_states import make_state, save, state_target
from etils import epath

from bertjax.checkpointing import checkpointer as checkpointer_module
from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError
from bertjax.checkpointing.lookup import (
    find_checkpoint,
    has_checkpoint,
    read_checkpoint,
    read_unverified_checkpoint,
)
from bertjax.checkpointing.parameters import load_params
from data_pipelines.errors import InputError


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


@pytest.mark.parametrize("read", [read_checkpoint, read_unverified_checkpoint])
def test_read_checkpoint_takes_the_next_where_a_run_deletes_one(checkpoints, read) -> None:
    assert read(checkpoints.directory.parent, reader(checkpoints, 20, 30)) == 30


def test_read_checkpoint_takes_the_next_where_the_known_one_is_gone(checkpoints) -> None:
    first = checkpoints.path(10)
    save(checkpoints, 20)
    workdir = checkpoints.directory.parent
    assert read_checkpoint(workdir, reader(checkpoints), first=first) == 20


def test_read_checkpoint_gives_up_after_some_checkpoints(checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"deleted 8 checkpoints .* Raise its max_to_keep"):
        read_checkpoint(checkpoints.directory.parent, reader(checkpoints, *range(20, 120, 10)))


def test_read_checkpoint_raises_the_errors_of_an_existing_checkpoint(checkpoints) -> None:
    def read(path: epath.Path) -> None:
        calls.append(path)
        raise InputError("labels.json: damaged.")

    calls: list[epath.Path] = []
    with pytest.raises(InputError, match="damaged"):
        read_checkpoint(checkpoints.directory.parent, read)
    assert len(calls) == 1


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
    finally:
        ended.set()
        thread.join()
    assert steps == sorted(steps) and len({*steps}) > 5
