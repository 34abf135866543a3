"""Parameters of a checkpoint: their shapes, checks against a model, and their arrays."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.integrity import PARAMS_DIR
from bertjax.mesh.finite import find_non_finite
from bertjax.mesh.sharding import named_leaves
from bertjax.model.heads import TRAINING_MODULES
from data_pipelines.errors import InputError, one_line

# What Orbax raises for files that are damaged, though their digests fit.
_DAMAGE: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
)
_DAMAGE += (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Orbax warns about a metadata file that checkpoints of one item do not have.
logging.getLogger("absl").addFilter(
    lambda record: "Metadata file does not" not in record.getMessage()
)
# Of several arrays that cannot be read, the first raises the error.
logging.getLogger("asyncio").addFilter(
    lambda record: "exception was never retrieved" not in record.getMessage()
)


def ignore_abandoned_reads(report: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a `sys.unraisablehook` that does not report reads that end after the first error.

    Args:
      report: hook for other exceptions.
    """

    def hook(unraisable: Any) -> None:
        # The second is Orbax's of a read that ends after its event loop.
        abandoned = ("Event loop is closed", "Encountered error while reading array index")
        if not str(unraisable.exc_value).startswith(abandoned):
            report(unraisable)

    return hook


sys.unraisablehook = ignore_abandoned_reads(sys.unraisablehook)


@contextlib.contextmanager
def damage_as_input_error(path: epath.Path) -> Iterator[None]:
    """Raise InputError for what Orbax raises where files of a checkpoint are damaged.

    Whoever wrote the files may have written their digests too. Failures of the machine, of a bucket
    and of other processes stay as they are.

    Args:
      path: directory of the arrays, for the error.
    """
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = one_line(str(error))[:200] or type(error).__name__
        raise InputError(f"{path}: cannot be read ({reason}). Use another checkpoint.") from error


def read_param_shapes(path: epath.Path) -> Any:
    """Return the parameters of a model in a checkpoint as a tree of `jax.ShapeDtypeStruct`.

    Those that only training uses are left out.

    Raises:
      InputError: files of the checkpoint are damaged.
    """
    path = path / PARAMS_DIR
    with damage_as_input_error(path), ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        metadata = reader.metadata(path).item_metadata
        if metadata is None:
            raise InputError(f"{path}: has no metadata of its arrays. Use another checkpoint.")
        model = {name: v for name, v in metadata.tree.items() if name not in TRAINING_MODULES}
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

    Raises:
      InputError: files of the checkpoint are damaged.
    """
    path = path / PARAMS_DIR
    args = ocp.args.PyTreeRestore(
        item=target,
        restore_args=ocp.checkpoint_utils.construct_restore_args(target),
        partial_restore=True,
    )
    with damage_as_input_error(path), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(path, args=args)
