"""Checkpoints: save, verify, restore, fall back.

    DIRECTORY/00001000/
      params/       Orbax: the parameters alone, for whoever wants no more
      training/     Orbax: step, optimizer state and sums since the last log
      config.json, vocab.txt ...   what opens it with nothing else
      files.json    size and SHA-256 of every file, written last: the mark of a finished checkpoint

A directory without files.json is what a killed save left behind; it is never read.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.errors import RunError
from bertjax.mesh import hosts
from bertjax.mesh.sharding import named_leaves, with_shardings
from bertjax.training.step import TrainState
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

FILES = "files.json"
_log = logging.getLogger("bertjax")


class CheckpointError(RunError):
    """A checkpoint could not be written, or none that was found is intact."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
      directory: where they lie, local or `gs://`.
      keep: newest ones that are kept.
      keep_every: multiples of this step are kept for ever; 0 for none.
    """

    def __init__(self, directory: epath.PathLike, keep: int = 3, keep_every: int = 0) -> None:
        self.directory = _absolute(directory)
        self.keep = keep
        self.keep_every = keep_every

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        if not self.directory.exists():
            return []
        found = [path for path in self.directory.iterdir() if path.name.isdigit()]
        return sorted(int(path.name) for path in found if (path / FILES).exists())

    def path(self, step: int) -> epath.Path:
        """Directory of the checkpoint of a step, finished or not."""
        return self.directory / f"{step:08d}"

    def save(self, state: TrainState, describe: Callable[[epath.Path], None]) -> epath.Path:
        """Writes a checkpoint of the state, then deletes those that need not be kept.

        Args:
          describe: writes the files beside the arrays into the directory it is given.
        Raises:
          CheckpointError: it could not be written, for want of space for example; what was
            there before is untouched.
        """
        path = self.path(int(state.step))
        try:
            if hosts.is_first():
                _discard(path)
                _check_room(path, state)
            hosts.wait_for_all("checkpoint-start")
            with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
                checkpointer.save(path / "params", state.params, force=True)
                checkpointer.save(path / "training", _training(state), force=True)
            if hosts.is_first():
                _finish(path, describe)
        except jax.errors.JaxRuntimeError:  # another host is lost
            raise
        except Exception as error:
            if hosts.is_first():
                _discard(path)
            # What is outermost in the storage library's chain of messages says least.
            reason = str(error).strip().split(": ")[-1] or type(error).__name__
            raise CheckpointError(
                f"the checkpoint of step {int(state.step)} could not be written to {path} "
                f"({reason}): earlier checkpoints are intact; make room and run the same command "
                "again."
            ) from error
        hosts.wait_for_all("checkpoint-end")
        if hosts.is_first():
            self._delete_old()
        return path

    def restore(self, target: TrainState) -> TrainState | None:
        """The newest intact state; None where there is no checkpoint at all.

        A damaged checkpoint is reported and the one before it is tried.

        Args:
          target: shapes with shardings, as `jax.ShapeDtypeStruct`; decides where arrays go.
        Raises:
          CheckpointError: there are checkpoints and none is intact.
        """
        (step,) = hosts.from_first(lambda: [self.newest_intact()], 1)
        if step < 0:
            return None
        training = _restore(self.path(step) / "training", _training(target))
        params = _restore(self.path(step) / "params", target.params)
        return TrainState(training["step"], params, training["opt_state"], training["window"])

    def newest_intact(self) -> int:
        """Its step; -1 where there is no checkpoint at all."""
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            damage = find_damage(path)
            if damage is None:
                return step
            _log.warning("checkpoint %s is damaged (%s): trying the one before.", path, damage)
        if steps:
            raise CheckpointError(
                f"no checkpoint in {self.directory} is intact: put back a copy of one, or delete "
                "the directory to begin from step 0."
            )
        return -1

    def _delete_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            if not (self.keep_every and step % self.keep_every == 0):
                _discard(self.path(step))


def write_params(path: epath.Path, params: Any, describe: Callable[[epath.Path], None]) -> None:
    """Writes a checkpoint of parameters alone into an empty directory; see `Checkpoints.save`."""
    path = _absolute(path)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "params", params)
    _finish(path, describe)


def find_finished(path: epath.PathLike) -> epath.Path:
    """The checkpoint that a path names, itself or the newest of a workdir, intact or not.

    Hosts that have not met yet, and so cannot agree on one, may ask.

    Raises:
      InputError: there is none.
    """
    path = _absolute(path)
    if (path / FILES).exists():
        return path
    found = Checkpoints(path / "checkpoints")
    steps = found.steps()
    if not steps:
        raise InputError(
            f"{path} is neither a checkpoint nor a workdir with one: give a directory that "
            "`bertjax train` wrote."
        )
    return found.path(steps[-1])


def has_checkpoint(workdir: epath.PathLike) -> bool:
    """Whether a run has saved one, intact or not."""
    return bool(Checkpoints(epath.Path(workdir) / "checkpoints").steps())


def find_checkpoint(path: epath.PathLike, step: int | None = None) -> epath.Path:
    """The checkpoint that a path names: itself, or the newest intact one of a workdir.

    Args:
      step: of a workdir the one of this step in its place.
    Raises:
      InputError: there is none.
      CheckpointError: the one that is named, or every one of the workdir, is damaged.
    """
    named = find_finished(path)
    if named == _absolute(path):
        damage = find_damage(named)
        if damage is not None:
            raise CheckpointError(f"checkpoint {named} is damaged ({damage}): use another one.")
        return named
    found = Checkpoints(named.parent)
    if step is not None:
        return find_checkpoint(found.path(step))
    (newest,) = hosts.from_first(lambda: [found.newest_intact()], 1)
    return found.path(newest)


def find_damage(path: epath.Path) -> str | None:
    """What is wrong with a finished checkpoint's files, as a phrase; None when all are intact."""
    try:
        listed = json.loads((path / FILES).read_text())
    except (OSError, ValueError):
        return f"{FILES} cannot be read"
    for name, (size, digest) in listed.items():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().length != size:
            return f"{name} has {file.stat().length} bytes instead of {size}"
        if _digest(file) != digest:
            return f"the content of {name} has changed"
    return None


def saved_params(path: epath.Path) -> Any:
    """The parameters of a checkpoint as a tree of shapes: leaves have `shape` and `dtype`."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path / "params").item_metadata.tree
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def check_params(path: epath.Path, target: Any, saved: Any = None) -> None:
    """Refuses a checkpoint without parameters of a tree of arrays or shapes; it may have more.

    Args:
      saved: its parameters as `saved_params` gives them, where they are known.
    Raises:
      InputError: a name is missing, or a shape differs.
    """
    have = {name: tuple(leaf.shape) for name, leaf in named_leaves(saved or saved_params(path))}
    for name, leaf in named_leaves(target):
        if name not in have:
            raise InputError(f"{path} has no {name}: give a checkpoint of a model that has it.")
        if have[name] != tuple(leaf.shape):
            raise InputError(
                f"{path} has {name} of shape {have[name]} and this configuration has "
                f"{tuple(leaf.shape)}: give it the model that the checkpoint was made with."
            )


def load_params(path: epath.Path, target: Any) -> Any:
    """Parameters of a checkpoint, of which it must have all that are asked for.

    Args:
      target: tree of `jax.ShapeDtypeStruct`, whose shardings say where the arrays go; without
        shardings they are NumPy's.
    """
    args = ocp.args.PyTreeRestore(
        item=target,
        restore_args=ocp.checkpoint_utils.construct_restore_args(target),
        partial_restore=True,
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path / "params", args=args)


def load_on_device(path: epath.Path, shapes: Any) -> Any:
    """Parameters of a checkpoint on the first device, for a tree of shapes.

    Raises:
      InputError: see `check_params`.
    """
    check_params(path, shapes)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return load_params(path, with_shardings(shapes, device))


def _training(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "opt_state": state.opt_state, "window": state.window}


def _restore(path: epath.Path, target: Any) -> Any:
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path, args=ocp.args.StandardRestore(target))


def _absolute(path: epath.PathLike) -> epath.Path:
    """Orbax takes no relative paths, and remote ones do not pass through `resolve`."""
    return epath.Path(path) if is_remote(path) else epath.Path(path).resolve()


def _finish(path: epath.Path, describe: Callable[[epath.Path], None]) -> None:
    describe(path)
    draft = path / f"{FILES}.draft"
    draft.write_text(json.dumps(_list_files(path), indent=1))
    draft.replace(path / FILES)


def _check_room(path: epath.Path, state: TrainState) -> None:
    """Raises OSError where a local disk has no room for the state's arrays.

    The storage library finds out too, but only half-way.
    """
    if is_remote(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = 1.25 * sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2e6  # and its metadata
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(f"it needs {needed / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB left")


def _list_files(path: epath.Path, prefix: str = "") -> dict[str, tuple[int, str]]:
    """Name -> (bytes, SHA-256) of every file below the path."""
    listed: dict[str, tuple[int, str]] = {}
    for file in sorted(path.iterdir()):
        if file.is_dir():
            listed |= _list_files(file, f"{prefix}{file.name}/")
        else:
            listed[prefix + file.name] = (file.stat().length, _digest(file))
    return listed


def _digest(file: epath.Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:  # remote ones are no files that hashlib could read itself
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _discard(path: epath.Path) -> None:
    """Deletes a checkpoint, its mark first, so that a kill half-way leaves no damaged one."""
    if path.exists():
        (path / FILES).unlink(missing_ok=True)
        path.rmtree()
