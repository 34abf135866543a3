"""Checkpoints: save, restore, fall back.

    DIRECTORY/00001000/
      params/       Orbax: the parameters alone, for whoever wants no more
      training/     Orbax: step and optimizer state; window.json: sums since the last log
      config.json, vocab.txt ...   what opens it with nothing else
      scores.json   of an evaluation, where it was evaluated when it was saved
      files.json    size and SHA-256 of every file, written last: the mark of a finished checkpoint

A directory without files.json is what a killed save left behind; it is never read.
"""

import concurrent.futures
import contextlib
import functools
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.best import (
    comparable_score,
    find_best,
    read_best_metric_name,
    read_scores,
)
from bertjax.checkpointing.integrity import (
    MANIFEST_FILE,
    check_disk_space,
    delete_checkpoint,
    find_damage,
    mark_finished,
)
from bertjax.checkpointing.parameters import read_shapes
from bertjax.errors import RunError
from bertjax.mesh import distributed
from bertjax.mesh.sharding import with_shardings
from bertjax.steps.train_step import Sums, TrainState
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

_TRAINING_DIR, _WINDOW_FILE = "training", "window.json"
_SAVE_SECONDS = 3600  # the longest that hosts wait for each other's writing
_log = logging.getLogger("bertjax")


class CheckpointError(RunError):
    """A checkpoint could not be written, or none that was found is intact."""


class Checkpointer:
    """The checkpoints of one run; at most one is being written at a time, in the background.

    Args:
      directory: where they lie, local or `gs://`.
      max_to_keep: newest ones that are kept.
      keep_period: the first at or after each multiple of this is kept for ever; 0 for none.
      best_metric: the score by which the best one is kept until there is a better; "" for none.
      reached: how far the run is after a step, in what `keep_period` counts.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        max_to_keep: int = 3,
        keep_period: float = 0,
        best_metric: str = "",
        progress_at: Callable[[int], float] = float,
    ) -> None:
        self.directory = _absolute(directory)
        self.max_to_keep = max_to_keep
        self.keep_period = keep_period
        self.best_metric = best_metric
        self._progress_at = progress_at
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._saving: concurrent.futures.Future[None] | None = None
        self._finished: list[int] = []

    def all_steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        if not self.directory.exists():
            return []
        found = [path for path in self.directory.iterdir() if path.name.isdigit()]
        return sorted(int(path.name) for path in found if (path / MANIFEST_FILE).exists())

    def steps_best_first(self) -> list[int]:
        """The same with the one to use first: the best where its run keeps it, then the newest."""
        steps = self.all_steps()
        name = read_best_metric_name(self.path(steps[-1])) if steps else ""
        best = find_best(name, map(self.path, steps))
        return sorted(reversed(steps), key=lambda step: self.path(step) != best)

    def is_best(self, step: int, scores: Mapping[str, float]) -> bool:
        """Whether the scores of a step are better than those of all checkpoints before it.

        To be asked on all hosts, of which the first one decides; a save is waited for.

        Raises:
          InputError: `best_metric` is none of the scores.
        """
        if not self.best_metric:
            return False
        if self.best_metric not in scores:
            raise InputError(
                f"best_metric={self.best_metric!r} is no score of this task: choose one of "
                f"{', '.join(scores)}."
            )
        self.wait_until_finished()

        def decide() -> list[bool]:
            before = [read_scores(self.path(other)) for other in self.all_steps() if other < step]
            best = max(
                (comparable_score(self.best_metric, each) for each in before), default=-math.inf
            )
            return [comparable_score(self.best_metric, scores) > best]

        return bool(*distributed.broadcast_from_process_0(decide, 1))

    def path(self, step: int) -> epath.Path:
        """Directory of the checkpoint of a step, finished or not."""
        return self.directory / f"{step:08d}"

    def save(self, state: TrainState, write_metadata: Callable[[epath.Path], None]) -> None:
        """Begins a checkpoint of the state, of which nothing is needed once this returns.

        What remains, to write and to verify it and then to delete those that need not be kept, is
        done beside training. A save that is still under way is waited for.

        Args:
          describe: writes the files beside the arrays into the directory it is given; called in
            another thread.
        Raises:
          CheckpointError: this one or the one before could not be written, for want of space for
            example; what was there before is untouched.
        """
        self.wait_until_finished()
        step = int(state.step)
        with self._raise_checkpoint_errors(step):
            if distributed.is_process_0():
                delete_checkpoint(self.path(step))
                check_disk_space(self.path(step), state)
            distributed.sync_processes("checkpoint-start")
            state = _copy_if_on_cpu(state)
            params, training = map(ocp.args.StandardSave, (state.params, _training_tree(state)))
            self._writer.save(
                self.path(step), args=ocp.args.Composite(params=params, training=training)
            )
            window = jax.device_get(state.window)
        numbers = {
            name: [np.asarray(number).tolist() for number in pair] for name, pair in window.items()
        }
        self._saving = self._thread.submit(self._finish, step, numbers, write_metadata)

    def pop_finished(self) -> list[epath.Path]:
        """Those finished since this was asked, once a step; raises where the last save failed."""
        if self._saving and self._saving.done():
            self._saving.result()
        return [self.path(self._finished.pop(0)) for _ in range(len(self._finished))]

    def wait_until_finished(self) -> None:
        """Returns once no save is under way on any host; raises as `check`."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()
            distributed.sync_processes("checkpoint-end")

    def close(self) -> None:
        """Lets a save that is under way come to its end; for when something else has failed."""
        if self._saving:
            concurrent.futures.wait([self._saving])

    def delete_unfinished(self) -> None:
        """Deletes what killed saves left; only for the run whose checkpoints they are."""
        if self.directory.exists():
            for path in self.directory.iterdir():
                if re.match(r"\d{8}", path.name) and not (path / MANIFEST_FILE).exists():
                    delete_checkpoint(path)

    def restore(self, target: TrainState) -> TrainState | None:
        """The newest intact state; None where there is no checkpoint at all.

        A damaged checkpoint is reported and the one before it is tried.

        Args:
          target: shapes with shardings, as `jax.ShapeDtypeStruct`; decides where arrays go.
        Raises:
          CheckpointError: there are checkpoints and none is intact.
        """
        (step,) = distributed.broadcast_from_process_0(
            lambda: [self.first_intact_step(self.all_steps()[::-1])], 1
        )
        if step < 0:
            return None
        params = _restore(self.path(step) / "params", target.params)
        path, wanted = self.path(step) / _TRAINING_DIR, _training_tree(target)
        if inside := read_shapes(path).get("window"):  # where older versions kept it
            wanted["window"] = with_shardings(inside, target.step.sharding)
        training = _restore(path, wanted)
        saved = training["window"] if inside else json.loads((path / _WINDOW_FILE).read_text())
        return TrainState(
            training["step"], params, training["opt_state"], _to_devices(saved, target.window)
        )

    def first_intact_step(self, steps: Sequence[int], ignored_dir: str = "") -> int:
        """The first of all steps, in the order that is given; -1 where there are none.

        What they keep in the folder `ignored_dir` need not be intact.
        """
        for step in steps:
            path = self.path(step)
            damage = find_damage(path, ignored_dir)
            if damage is None:
                return step
            _log.warning("checkpoint %s is damaged (%s): trying another one.", path, damage)
        if steps:
            raise CheckpointError(
                f"no checkpoint in {self.directory} is intact: put back a copy of one, or delete "
                "the directory to begin from step 0."
            )
        return -1

    @functools.cached_property
    def _writer(self) -> ocp.AsyncCheckpointer:
        return ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler("params", _TRAINING_DIR),
            async_options=ocp.options.AsyncOptions(timeout_secs=_SAVE_SECONDS),
        )

    def _finish(
        self,
        step: int,
        window: Mapping[str, Sequence[Any]],
        write_metadata: Callable[[epath.Path], None],
    ) -> None:
        """What of a save is done in the background."""
        with self._raise_checkpoint_errors(step):
            self._writer.wait_until_finished()  # of all hosts
            if distributed.is_process_0():
                (self.path(step) / _TRAINING_DIR / _WINDOW_FILE).write_text(json.dumps(window))
                mark_finished(self.path(step), write_metadata)
        if distributed.is_process_0():
            self._delete_old(step)
        self._finished.append(step)

    @contextlib.contextmanager
    def _raise_checkpoint_errors(self, step: int) -> Iterator[None]:
        """What goes wrong inside is a CheckpointError, and leaves no trace."""
        try:
            yield
        except Exception as error:
            for lost in (error, error.__cause__):
                if isinstance(lost, jax.errors.JaxRuntimeError):  # another host
                    raise lost from None
            if distributed.is_process_0():
                self.delete_unfinished()
            # What is outermost in the storage library's chain of messages says least.
            reason = str(error).strip().split(": ")[-1] or type(error).__name__
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.path(step)} "
                f"({reason}): earlier checkpoints are intact; make room and run the same command "
                "again."
            ) from error

    def _delete_old(self, newest: int) -> None:
        steps = [step for step in self.all_steps() if step <= newest]  # a later one is damaged
        best = find_best(self.best_metric, map(self.path, steps))
        passed = 0  # multiples of `keep_period`, by the checkpoint before
        for step in steps[: -self.max_to_keep]:
            before, passed = passed, self._keep_periods_passed(step)
            if passed == before and self.path(step) != best:
                delete_checkpoint(self.path(step))

    def _keep_periods_passed(self, step: int) -> int:
        """Multiples of `keep_period`."""
        return int(self._progress_at(step) // self.keep_period) if self.keep_period else 0


def write_params(
    path: epath.Path, params: Any, write_metadata: Callable[[epath.Path], None]
) -> None:
    """Writes a checkpoint of parameters alone into an empty directory; see `Checkpoints.save`."""
    path = _absolute(path)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "params", params)
    if distributed.is_process_0():
        mark_finished(path, write_metadata)


def find_unverified_checkpoint(path: epath.PathLike) -> epath.Path:
    """The checkpoint that a path names, itself or that of a workdir to use, intact or not.

    Hosts that have not met yet, and so cannot agree on one, may ask.

    Raises:
      InputError: there is none.
    """
    path = _absolute(path)
    if (path / MANIFEST_FILE).exists():
        return path
    found = Checkpointer(path / "checkpoints")
    steps = found.steps_best_first()
    if not steps:
        raise InputError(
            f"{path} is neither a checkpoint nor a workdir with one: give a directory that "
            "`bertjax train` wrote."
        )
    return found.path(steps[0])


def has_checkpoint(workdir: epath.PathLike) -> bool:
    """Whether a run has saved one, intact or not."""
    return bool(Checkpointer(epath.Path(workdir) / "checkpoints").all_steps())


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
    """The checkpoint that a path names: itself, or an intact one of a workdir.

    That is the best one where the run keeps it (`best_metric`), else the newest. What it keeps for
    training to go on is not looked at.

    Args:
      step: of a workdir the one of this step in its place.
    Raises:
      InputError: there is none.
      CheckpointError: the one that is named, or every one of the workdir, is damaged.
    """
    named = find_unverified_checkpoint(path)
    if named == _absolute(path):
        damage = find_damage(named, _TRAINING_DIR)
        if damage is not None:
            raise CheckpointError(f"checkpoint {named} is damaged ({damage}): use another one.")
        return named
    found = Checkpointer(named.parent)
    if step is not None:
        return find_checkpoint(found.path(step))
    steps = found.steps_best_first
    (used,) = distributed.broadcast_from_process_0(
        lambda: [found.first_intact_step(steps(), _TRAINING_DIR)], 1
    )
    return found.path(used)


def _copy_if_on_cpu(state: TrainState) -> TrainState:
    """The state where no step will change it; Orbax sees to it for all devices but CPUs.

    Of a CPU's arrays it takes no copy. The next step could not have their memory then, and would
    copy them itself, one after the other.
    """
    (platform,) = {device.platform for device in state.step.devices()}
    return _copy(state) if platform == "cpu" else state


@jax.jit
def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _training_tree(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "opt_state": state.opt_state}


def _to_devices(saved: Mapping[str, Sequence[Any]], target: Sums) -> Sums:
    """Sums that were saved, of the names of the target; what was not measured begins at 0."""

    def place(leaf: Any, number: Any) -> jax.Array:
        value = np.broadcast_to(np.asarray(number, leaf.dtype), leaf.shape)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: value[index])

    numbers = {name: tuple(saved.get(name, (0.0, 0.0))) for name in target}
    return jax.tree.map(place, target, numbers)


def _restore(path: epath.Path, target: Any) -> Any:
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path, args=ocp.args.StandardRestore(target))


def _absolute(path: epath.PathLike) -> epath.Path:
    """Orbax takes no relative paths, and remote ones do not pass through `resolve`."""
    return epath.Path(path) if is_remote(path) else epath.Path(path).resolve()
