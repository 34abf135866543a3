"""The parameters of a checkpoint: what there are, whether they will do, their arrays."""

from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.mesh.sharding import named_leaves
from data_pipelines.errors import InputError


def saved_params(path: epath.Path) -> Any:
    """The parameters of a checkpoint as a tree of shapes: leaves have `shape` and `dtype`."""
    return shapes_of(path / "params")


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


def shapes_of(path: epath.Path) -> Any:
    """What Orbax has written, as a tree of shapes."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
