"""Checkpoints of a run: save, restore, fall back to an older one, delete old ones.

    DIRECTORY/00001000/
      params/       Orbax: the parameters alone, for readers that need nothing else
      training/     Orbax: step and optimizer state; window.json: sums since the last log
      config.json, vocab.txt ...   the files that make the checkpoint self-contained
      scores.json   scores, if the checkpoint was saved after an evaluation
      files.json    manifest: size and SHA-256 of every file; written last, marks it as finished

A directory without a manifest is what a killed save left; it is never read.

Orbax writes the arrays (`AsyncCheckpointer`), and its preservation policies decide which
checkpoints are kept. Its `CheckpointManager` is not used, for three reasons. It deletes old
checkpoints as soon as arrays are written, before digests are computed: a kill in between would
leave no verified checkpoint. It counts damaged checkpoints of later steps, so a run that resumed
from an earlier one would lose what it saves. It polls JAX's preemption sync point by the step and,
in the background, on one process alone, while `mesh.signals` needs one poll per step on all.

Save decisions are the training loop's (`training.cadence`): evaluations have the same intervals,
and Orbax's policy for times synchronizes the processes after every step.
"""

import concurrent.futures
import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from bertjax.checkpointing.integrity import (
    UnreadableError,
    check_disk_space,
    checkpoint_name,
    delete_checkpoint,
    find_damage,
    is_finished,
    is_unfinished,
    list_directory,
    mark_finished,
    step_of,
)
from bertjax.checkpointing.retention import (
    NO_METRIC,
    BestMetric,
    make_preservation_policy,
    read_best_metric,
    read_info,
    read_scores,
)
from bertjax.checkpointing.state_items import (
    PARAMS_DIR,
    TRAINING_DIR,
    copy_if_on_cpu,
    restore_state,
    save_args,
    write_metric_sums,
)
from bertjax.errors import CommandError, LockLostError
from bertjax.faults import InjectedFaultError, fault_point
from bertjax.mesh import distributed
from bertjax.mesh.watchdog import note_progress
from bertjax.model.losses import Sums
from bertjax.steps.train_step import TrainState
from data_pipelines.errors import InputError
from data_pipelines.paths import as_path, is_remote

_SAVE_TIMEOUT_SECONDS = 3600  # for processes that wait for each other's writes
_log = logging.getLogger("bertjax")


class CheckpointError(CommandError):
    """A checkpoint could not be written, or all checkpoints are damaged."""


class Checkpointer:
    """The checkpoints of one run; at most one is written at a time, in the background.

    Args:
      directory: local or `gs://`.
      max_to_keep: number of newest checkpoints that are kept.
      keep_period: the first checkpoint at or after each multiple is kept forever; 0 for none.
      best_metric: score by which the best checkpoint is kept until there is a better one.
      progress_at: progress of the run after a step, in the unit of `keep_period`.
      confirm: called before each write and deletion; raises LockLostError if they are no longer
        those of this run.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        max_to_keep: int = 3,
        keep_period: float = 0,
        best_metric: BestMetric = NO_METRIC,
        progress_at: Callable[[int], float] = float,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = absolute_path(directory)
        self.best_metric, self._confirm = best_metric, confirm
        self._policy = make_preservation_policy(
            max_to_keep, keep_period, progress_at, bool(best_metric.name)
        )
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._saving: concurrent.futures.Future[None] | None = None
        self._finished: list[int] = []

    def all_steps(self) -> list[int]:
        """Return the steps of the finished checkpoints, ascending.

        Raises:
          UnreadableError: the directory cannot be read.
        """
        paths = [path for path in list_directory(self.directory) if step_of(path) is not None]
        return sorted(int(path.name) for path in paths if is_finished(path))

    def steps_by_preference(self) -> list[int]:
        """Return the steps in the order in which to use them.

        The best comes first if the run keeps it, then the newest.
        """
        steps = self.all_steps()
        metric = read_best_metric(self.path(steps[-1])) if steps else NO_METRIC
        best = metric.find_best(map(self.path, steps))
        return sorted(reversed(steps), key=lambda step: self.path(step) != best)

    def best_step(self) -> int:
        """Return the step of the best checkpoint, 0 without one; process 0 decides for all."""

        def find() -> list[int]:
            best = self.best_metric.find_best(map(self.path, self.all_steps()))
            return [0 if best is None else int(best.name)]

        return int(*distributed.broadcast_from_process_0(find, 1))

    def check_best_metric(self, scores: Mapping[str, float]) -> None:
        """Raise InputError if `best_metric` is not one of the scores of an evaluation."""
        if self.best_metric.name not in scores:
            raise InputError(
                f"best_metric={self.best_metric.name!r}: is not a score of this task. Use one of "
                f"{', '.join(scores)}."
            )

    def is_best(self, step: int, scores: Mapping[str, float]) -> bool:
        """Return whether the scores of a step are better than those of all checkpoints before it.

        All processes call it, and process 0 decides. It waits until a save has finished. Scores
        without `best_metric` are never better, and a warning.
        """
        name, score = self.best_metric.name, self.best_metric.comparable
        if not name:
            return False
        if name not in scores:
            _log.warning("step %d: best_metric=%s is not among the scores.", step, name)
            return False
        self.wait_until_finished()

        def decide() -> list[bool]:
            earlier = [read_scores(self.path(other)) for other in self.all_steps() if other < step]
            return [score(scores) > max(map(score, earlier), default=-math.inf)]

        return bool(*distributed.broadcast_from_process_0(decide, 1))

    def path(self, step: int) -> epath.Path:
        """Return the directory of the checkpoint of a step, finished or not."""
        return self.directory / checkpoint_name(step)

    def save(self, state: TrainState, write_metadata: Callable[[epath.Path], None]) -> None:
        """Start to save a state; the caller may donate its arrays afterwards.

        The background writes and verifies the checkpoint, then deletes older ones that the policy
        does not keep. A save in progress is waited for.

        Args:
          state: the training state.
          write_metadata: writes the files beside the arrays into the directory; called in another
            thread.

        Raises:
          CheckpointError: this checkpoint or the one before could not be written, for example to a
            full disk; earlier checkpoints are untouched.
          LockLostError: another run has taken the directory.
        """
        self.wait_until_finished()
        step = int(state.step)
        with self._raise_checkpoint_errors(step):
            if distributed.is_process_0():
                self._make_room(step, state)
            distributed.sync_processes("checkpoint-start")
            state = copy_if_on_cpu(state)
            self._writer.save(self.path(step), args=save_args(state))
            metric_sums = jax.device_get(state.metric_sums)
        self._saving = self._thread.submit(self._finish, step, metric_sums, write_metadata)

    def pop_finished(self) -> list[epath.Path]:
        """Return the checkpoints that were finished since the last call; called once a step.

        Raises:
          CheckpointError: the last save failed.
        """
        if self._saving and self._saving.done():
            self._saving.result()
        return [self.path(self._finished.pop(0)) for _ in range(len(self._finished))]

    def wait_until_finished(self) -> None:
        """Return once no process has a save in progress; raise as `pop_finished`."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()
            distributed.sync_processes("checkpoint-end")

    def close(self) -> None:
        """Wait for a save in progress and ignore its errors; called after another failure."""
        if self._saving:
            concurrent.futures.wait([self._saving])

    def delete_unfinished(self) -> None:
        """Delete what killed saves left; only the run that owns the directory may call it.

        A directory that cannot be deleted is a warning.
        """
        with _warn_of_failed_deletion(self.directory):
            self._confirm()
            for path in list_directory(self.directory):
                with _warn_of_failed_deletion(path):
                    if is_unfinished(path):
                        delete_checkpoint(path)

    def restore(self, target: TrainState) -> TrainState | None:
        """Return the newest intact state; None if there is no checkpoint at all.

        A damaged checkpoint is logged and the one before it is tried. One that cannot be read is an
        error: the run would repeat steps that a later attempt can restore.

        Args:
          target: `jax.ShapeDtypeStruct` with shardings; they decide where arrays go.

        Raises:
          CheckpointError: there are checkpoints and none is intact, or one cannot be read.
        """

        def find() -> list[int]:
            try:
                steps = self.all_steps()[::-1]
                return [self.first_intact_step(steps, skips_unreadable=False)]
            except UnreadableError as error:
                raise CheckpointError(error) from error

        (step,) = distributed.broadcast_from_process_0(find, 1)
        state = restore_state(self.path(step), target) if step >= 0 else None
        note_progress()
        return state

    def first_intact_step(
        self, steps: Sequence[int], ignored_dir: str = "", *, skips_unreadable: bool = True
    ) -> int:
        """Return the first step whose checkpoint is intact; -1 if there are no steps.

        Args:
          steps: in the order in which they are tried.
          ignored_dir: a directory of the checkpoints that need not be intact.
          skips_unreadable: whether the next checkpoint is tried if one cannot be read.

        Raises:
          CheckpointError: none is intact.
          UnreadableError: one cannot be read and is not skipped.
        """
        unreadable: UnreadableError | None = None
        for step in steps:
            path = self.path(step)
            try:
                damage = find_damage(path, ignored_dir)
            except UnreadableError as error:
                if not skips_unreadable:
                    raise
                unreadable = error
                _log.warning("%s Trying another checkpoint.", error)
                continue
            if damage is None:
                return step
            if is_finished(path):  # else its run has deleted it
                _log.warning("checkpoint %s is damaged (%s): trying another one.", path, damage)
        if unreadable:  # which may be intact
            raise CheckpointError(unreadable)
        if steps:
            raise CheckpointError(
                f"{self.directory}: no checkpoint is intact. Restore one from a backup, or delete "
                "the directory to start from step 0."
            )
        return -1

    def _make_room(self, step: int, state: TrainState) -> None:
        """Delete a damaged or unfinished checkpoint of the step, and check the free disk space."""
        path = self.path(step)
        if path.exists() and not (is_finished(path) or is_unfinished(path)):
            raise FileExistsError("the directory exists and is not a checkpoint")
        self._confirm()
        delete_checkpoint(path)
        check_disk_space(path, sum(leaf.nbytes for leaf in jax.tree.leaves(state)))

    @functools.cached_property
    def _writer(self) -> ocp.AsyncCheckpointer:
        return ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(PARAMS_DIR, TRAINING_DIR),
            async_options=ocp.options.AsyncOptions(timeout_secs=_SAVE_TIMEOUT_SECONDS),
        )

    def _finish(
        self, step: int, metric_sums: Sums, write_metadata: Callable[[epath.Path], None]
    ) -> None:
        """Finish a save in the background."""
        with self._raise_checkpoint_errors(step):
            self._writer.wait_until_finished()  # of all processes
            fault_point("save.after_write")
            if distributed.is_process_0():
                self._confirm()
                write_metric_sums(self.path(step), metric_sums)
                mark_finished(self.path(step), write_metadata, self._confirm)
        fault_point("save.after_manifest")
        self._finished.append(step)
        if distributed.is_process_0():
            self.delete_old(step)
        note_progress()

    @contextlib.contextmanager
    def _raise_checkpoint_errors(self, step: int) -> Iterator[None]:
        """Raise a CheckpointError for an error inside, after deleting unfinished checkpoints."""
        try:
            yield
        except LockLostError:
            raise
        except Exception as error:
            for cause in (error, error.__cause__):
                if isinstance(cause, jax.errors.JaxRuntimeError):  # another process was lost
                    raise cause from None
            if distributed.is_process_0():
                self.delete_unfinished()
            raise CheckpointError(
                f"{self.path(step)}: the checkpoint of step {step} could not be written "
                f"({_describe(error)}); earlier checkpoints are intact. Fix this, for example "
                "free disk space, and run the same command again."
            ) from error

    def delete_old(self, newest: int) -> None:
        """Delete the checkpoints up to a step that the policy does not keep.

        One that cannot be deleted is a warning: the newest one is saved, and the run continues.
        """
        with _warn_of_failed_deletion(self.directory):
            # A later checkpoint is damaged, or the run would have resumed from it.
            steps = [step for step in self.all_steps() if step <= newest]
            infos = [read_info(step, self.path(step), self.best_metric) for step in steps]
            kept = self._policy.should_preserve(
                infos, context=checkpoint_managers.PreservationContext()
            )
            self._confirm()
            for step, keep in zip(steps, kept, strict=True):
                if not keep:
                    with _warn_of_failed_deletion(self.path(step)):
                        delete_checkpoint(self.path(step))


@contextlib.contextmanager
def _warn_of_failed_deletion(path: epath.Path) -> Iterator[None]:
    """Log an error of the block as a warning, except that the workdir is lost."""
    try:
        yield
    except (LockLostError, InjectedFaultError):
        raise
    except Exception as error:  # of any kind: TensorFlow's errors of a bucket are no OSErrors
        _log.warning("%s: not deleted: %s. The next start tries again.", path, error)


def _describe(error: Exception) -> str:
    """Return the reason of an error: the outermost of Orbax's chained messages says least."""
    if isinstance(error, OSError):  # "[Errno 28] No space left on device: FILE"
        return str(error)
    return str(error).strip().split(": ")[-1] or type(error).__name__


def absolute_path(path: epath.PathLike) -> epath.Path:
    """Return a path that Orbax accepts: absolute; remote paths must not be resolved."""
    path = as_path(path)
    return path if is_remote(path) else path.resolve()
