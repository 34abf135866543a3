"""Checkpoints that a path names, and checkpoints of parameters alone."""

from collections.abc import Callable
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError, absolute_path
from bertjax.checkpointing.integrity import (
    MANIFEST_FILE,
    PARAMS_DIR,
    TRAINING_DIR,
    find_damage,
    mark_finished,
)
from bertjax.mesh import distributed
from data_pipelines.errors import InputError


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
    """Return the checkpoint that a path names: the path itself, or an intact one of a workdir.

    In a workdir it is the best one if the run keeps it (`best_metric`), else the newest. State that
    only training reads is not verified.

    Args:
      path: a checkpoint or a workdir.
      step: the step of the checkpoint in a workdir.

    Raises:
      InputError: there is no checkpoint.
      CheckpointError: the checkpoint, or every one of the workdir, is damaged.
    """
    checkpoint = find_unverified_checkpoint(path)
    if checkpoint == absolute_path(path):
        damage = find_damage(checkpoint, TRAINING_DIR)
        if damage is not None:
            raise CheckpointError(f"{checkpoint}: is damaged ({damage}). Use another checkpoint.")
        return checkpoint
    checkpoints = Checkpointer(checkpoint.parent)
    if step is not None:
        return find_checkpoint(checkpoints.path(step))
    (intact_step,) = distributed.broadcast_from_process_0(
        lambda: [checkpoints.first_intact_step(checkpoints.steps_by_preference(), TRAINING_DIR)], 1
    )
    return checkpoints.path(intact_step)


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
    steps = checkpoints.steps_by_preference()
    if not steps:
        raise InputError(
            f"{path}: is neither a checkpoint nor a workdir with one. Give a directory that "
            "`bertjax train` wrote."
        )
    return checkpoints.path(steps[0])


def has_checkpoint(workdir: epath.PathLike) -> bool:
    """Return whether a run has saved a checkpoint, intact or not."""
    return bool(Checkpointer(epath.Path(workdir) / "checkpoints").all_steps())


def write_params(
    path: epath.Path, params: Any, write_metadata: Callable[[epath.Path], None]
) -> None:
    """Write a checkpoint of parameters alone into an empty directory; see `Checkpointer.save`."""
    path = absolute_path(path)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path / PARAMS_DIR, params)
    if distributed.is_process_0():
        mark_finished(path, write_metadata)
