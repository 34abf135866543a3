"""Checkpoints that a path names, and checkpoints of parameters alone."""

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError, absolute_path
from bertjax.checkpointing.integrity import (
    MANIFEST_FILE,
    PARAMS_DIR,
    TRAINING_DIR,
    UnreadableError,
    find_damage,
    mark_finished,
)
from bertjax.mesh import distributed
from data_pipelines.errors import InputError

_MAX_ATTEMPTS = 8  # to read a checkpoint of a run that deletes old ones
_log = logging.getLogger("bertjax")
T = TypeVar("T")


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
    """Return the checkpoint that a path names: the path itself, or an intact one of a workdir.

    In a workdir it is the best one if the run keeps it (`best_metric`), else the newest. State that
    only training reads is not verified.

    Args:
      path: a checkpoint or a workdir.
      step: the step of the checkpoint in a workdir.

    Raises:
      InputError: there is no checkpoint.
      CheckpointError: the checkpoint, or every one of the workdir, is damaged or cannot be read.
    """
    checkpoint = find_unverified_checkpoint(path)
    if checkpoint == absolute_path(path):
        try:
            damage = find_damage(checkpoint, TRAINING_DIR)
        except UnreadableError as error:
            raise CheckpointError(error) from error
        if damage is not None:
            raise CheckpointError(f"{checkpoint}: is damaged ({damage}). Use another checkpoint.")
        return checkpoint
    checkpoints = Checkpointer(checkpoint.parent)
    if step is not None:
        return find_checkpoint(checkpoints.path(step))

    def find_intact() -> list[int]:
        for _ in range(_MAX_ATTEMPTS - 1):
            steps = checkpoints.steps_by_preference()
            with contextlib.suppress(CheckpointError):
                return [checkpoints.first_intact_step(steps, TRAINING_DIR)]
            if checkpoints.steps_by_preference() == steps:  # a running run deleted none of them
                break
        return [checkpoints.first_intact_step(checkpoints.steps_by_preference(), TRAINING_DIR)]

    (intact_step,) = distributed.broadcast_from_process_0(find_intact, 1)
    return checkpoints.path(intact_step)


def read_checkpoint(
    path: epath.PathLike,
    read: Callable[[epath.Path], T],
    step: int | None = None,
    *,
    first: epath.Path | None = None,
) -> T:
    """Return what a function reads from the checkpoint that a path names.

    A run may delete the checkpoint meanwhile. Then the function is called with the next one that
    `find_checkpoint` returns, a few times. Nothing is written that would keep the checkpoint: a
    reader may have no right to write, and a reader that is killed would leave it.

    Args:
      path: a checkpoint or a workdir.
      read: takes a checkpoint.
      step: the step of the checkpoint in a workdir.
      first: an intact checkpoint of the path, if it is known.

    Raises:
      InputError: there is no checkpoint.
      CheckpointError: checkpoints are damaged, or the run deletes each before it is read.
    """
    known = [first] if first else []
    return _read_existing(
        path,
        read,
        lambda: known.pop() if known else find_checkpoint(path, step),
        lambda is_deleted: bool(distributed.failing_processes(not is_deleted)),
    )


def read_unverified_checkpoint(path: epath.PathLike, read: Callable[[epath.Path], T]) -> T:
    """Return what a function reads from the checkpoint of `find_unverified_checkpoint`.

    As `read_checkpoint`, but processes do not wait for each other.
    """
    return _read_existing(path, read, lambda: find_unverified_checkpoint(path), bool)


def _read_existing(
    path: epath.PathLike,
    read: Callable[[epath.Path], T],
    find: Callable[[], epath.Path],
    is_deleted_anywhere: Callable[[bool], bool],
) -> T:
    for _ in range(_MAX_ATTEMPTS):
        checkpoint, error = find(), None
        try:
            result = read(checkpoint)
        except Exception as failure:
            error = failure
        if is_deleted_anywhere(error is not None and not (checkpoint / MANIFEST_FILE).exists()):
            _log.info("%s was deleted by its run while it was read: reading another.", checkpoint)
            continue
        if error is not None:
            raise error
        return result
    raise CheckpointError(
        f"{path}: its run deleted {_MAX_ATTEMPTS} checkpoints while they were read. Raise its "
        "max_to_keep or checkpoint_every, or name a checkpoint that is kept."
    )


def find_unverified_checkpoint(path: epath.PathLike) -> epath.Path:
    """Return the checkpoint that a path names, intact or not; see `find_checkpoint`.

    It may be called before processes join, when they cannot agree on an intact one.

    Raises:
      InputError: there is no checkpoint.
    """
    path = absolute_path(path)
    if (path / MANIFEST_FILE).exists():
        return path
    checkpoints = Checkpointer(path / "checkpoints")
    # A run that keeps one checkpoint may replace it while they are listed.
    lists = (checkpoints.steps_by_preference() for _ in range(_MAX_ATTEMPTS))
    steps = next(filter(None, lists), None)
    if not steps:
        raise InputError(
            f"{path}: is neither a checkpoint nor a workdir with one. Give a directory that "
            "`bertjax train` wrote."
        )
    return checkpoints.path(steps[0])


def has_checkpoint(workdir: epath.PathLike, step: int | None = None) -> bool:
    """Return whether a run has saved a checkpoint, of a step or of any, intact or not."""
    steps = Checkpointer(epath.Path(workdir) / "checkpoints").all_steps()
    return bool(steps) if step is None else step in steps


def write_params(
    path: epath.Path, params: Any, write_metadata: Callable[[epath.Path], None]
) -> None:
    """Write a checkpoint of parameters alone into an empty directory; see `Checkpointer.save`."""
    path = absolute_path(path)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path / PARAMS_DIR, params)
    if distributed.is_process_0():
        mark_finished(path, write_metadata)
