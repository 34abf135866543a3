"""The parameters of a checkpoint: what there are, whether they will do, their arrays."""

import logging
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.mesh.sharding import named_leaves
from data_pipelines.errors import InputError

# Orbax looks for a file of its own beside the arrays, and misses it in a way that alarms.
logging.getLogger("absl").addFilter(lambda said: "Metadata file does not" not in said.getMessage())


def read_param_shapes(path: epath.Path) -> Any:
    """The parameters of a checkpoint as a tree of shapes: leaves have `shape` and `dtype`."""
    return read_shapes(path / "params")


def check_params(path: epath.Path, target: Any, saved: Any = None) -> None:
    """Refuses a checkpoint without parameters of a tree of arrays or shapes; it may have more.

    Args:
      saved: its parameters as `read_param_shapes` gives them, where they are known.
    Raises:
      InputError: a name is missing, or a shape differs.
    """
    have = {
        name: tuple(leaf.shape) for name, leaf in named_leaves(saved or read_param_shapes(path))
    }
    for name, leaf in named_leaves(target):
        if name not in have:
            raise InputError(f"{path} has no {name}: give a checkpoint of a model that has it.")
        ours, theirs = tuple(leaf.shape), have[name]
        if "/blocks/" in name and ours[0] != theirs[0] and ours[1:] == theirs[1:]:
            raise InputError(
                f"{path} has {theirs[0]} layers and this configuration {ours[0]}: leave "
                "--config.model.num_hidden_layers out, or give another model."
            )
        if ours != theirs:
            raise InputError(
                f"{path} has {name} of shape {theirs} and this configuration has "
                f"{ours}: give it the model that the checkpoint was made with."
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


def read_shapes(path: epath.Path) -> Any:
    """What Orbax has written, as a tree of shapes."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
