"""Parameters of a checkpoint: their shapes, checks against a model, and their arrays."""

import logging
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.integrity import PARAMS_DIR
from bertjax.mesh.finite import find_non_finite
from bertjax.mesh.sharding import named_leaves
from bertjax.model.heads import TRAINING_MODULES
from data_pipelines.errors import InputError

# Orbax warns about a metadata file that checkpoints of one item do not have.
logging.getLogger("absl").addFilter(
    lambda record: "Metadata file does not" not in record.getMessage()
)


def read_param_shapes(path: epath.Path) -> Any:
    """Return the parameters of a model in a checkpoint as a tree of `jax.ShapeDtypeStruct`.

    Those that only training uses are left out.
    """
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path / PARAMS_DIR).item_metadata.tree
    model = {name: part for name, part in tree.items() if name not in TRAINING_MODULES}
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model)


def check_params(path: epath.Path, target: Any, saved_shapes: Any) -> None:
    """Reject a checkpoint that lacks parameters of a model; it may have more.

    Args:
      path: directory of one checkpoint, or of a published model.
      target: tree of arrays or shapes that must be in it.
      saved_shapes: the parameters of the checkpoint, as arrays or shapes.

    Raises:
      InputError: a name is missing, or a shape differs.
    """
    saved = {name: tuple(leaf.shape) for name, leaf in named_leaves(saved_shapes)}
    for name, leaf in named_leaves(target):
        if name not in saved:
            raise InputError(f"{path}: has no {name}. Use a checkpoint of a model that has it.")
        shape, saved_shape = tuple(leaf.shape), saved[name]
        # Blocks are stacked over layers (axis 0).
        if "/blocks/" in name and shape[0] != saved_shape[0] and shape[1:] == saved_shape[1:]:
            raise InputError(
                f"model.num_hidden_layers={shape[0]}: {path} has {saved_shape[0]} layers. Remove "
                "the field, or use another checkpoint."
            )
        if shape != saved_shape:
            raise InputError(
                f"{path}: {name} has shape {saved_shape}, and {shape} in this configuration. "
                "Configure the model that the checkpoint holds."
            )


def check_finite_params(path: epath.Path, params: Any) -> None:
    """Raise InputError if a parameter of a model is not finite.

    Args:
      path: directory of the model, for the error.
      params: tree of arrays, on the host or on devices.
    """
    if name := find_non_finite(params):
        raise InputError(f"{path}: {name} has numbers that are not finite. Use another checkpoint.")


def load_params(path: epath.Path, target: Any) -> Any:
    """Return the parameters in `target`, with its structure, from a checkpoint.

    Args:
      path: directory of one checkpoint, the parent of `params`; it may have further parameters.
      target: tree of `jax.ShapeDtypeStruct`. Its shardings decide where arrays go; without
        shardings they are NumPy arrays.
    """
    args = ocp.args.PyTreeRestore(
        item=target,
        restore_args=ocp.checkpoint_utils.construct_restore_args(target),
        partial_restore=True,
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path / PARAMS_DIR, args=args)
