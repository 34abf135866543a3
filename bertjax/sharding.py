"""The mesh, and one table of rules from parameter names to mesh axes.

A batch's rows lie over `data` and `fsdp` together. Parameters (and the optimizer's moments of
them) lie over `fsdp` and `model` as the first rule that matches their name says.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "model")
ROWS = PartitionSpec(("data", "fsdp"))

# (pattern of the end of a parameter's name, mesh axis of each of its last dimensions).
# The leading layer dimension of stacked parameters is never split.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(query|key|value|up)/kernel", ("fsdp", "model")),
    (r"(output|down)/kernel", ("model", "fsdp")),
    (r"(query|key|value|up)/bias", ("model",)),
    (r"embeddings/(word|position|type)", (None, "fsdp")),
    (r"(transform|nsp)/kernel", ("fsdp", None)),
    (r".*", ()),
)


def make_mesh(
    data: int, fsdp: int, model: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh with the axes `data`, `fsdp` and `model` over the devices (all by default).

    Args:
      data, fsdp, model: devices along each axis; one may be -1 for all that the others leave.
    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, model]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = len(devices) // rest if rest > 0 else 0
    if min(sizes) < 1 or math.prod(sizes) != len(devices):
        raise ValueError(
            f"mesh {text} does not fit {len(devices)} devices: the sizes must multiply to that."
        )
    return Mesh(np.asarray(devices).reshape(sizes), AXES)


def check_mesh(mesh: Mesh, batch_size: int, accumulation: int, params: Any) -> None:
    """Refuses what the mesh cannot hold, before anything compiles.

    Args:
      params: tree of arrays or shapes.
    Raises:
      ValueError: rows or a dimension of a parameter do not divide over the devices.
    """
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % (ways * accumulation):
        raise ValueError(
            f"batch_size={batch_size} does not divide over {ways} devices x accumulation="
            f"{accumulation}: make it a multiple of {ways * accumulation}."
        )
    for name, leaf in named_leaves(params):
        for size, axis in zip(leaf.shape, _spec(name, leaf), strict=True):
            if axis is not None and size % mesh.shape[axis]:
                raise ValueError(
                    f"{name} has a dimension of {size}, which {axis}={mesh.shape[axis]} of the "
                    f"mesh does not divide: choose another mesh.{axis}."
                )


def tree_shardings(mesh: Mesh, tree: Any) -> Any:
    """A `NamedSharding` for each leaf of a tree of arrays or shapes, by the table of rules.

    Works for parameters and for whatever holds trees of them, such as optimizer states.
    """

    def leaf_sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*_spec(parameter_name(path), leaf)))

    return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


def sharded_shapes(mesh: Mesh, tree: Any) -> Any:
    """The tree's shapes as `jax.ShapeDtypeStruct` with the shardings of `tree_shardings`."""
    return with_shardings(tree, tree_shardings(mesh, tree))


def with_shardings(tree: Any, shardings: Any) -> Any:
    """The tree's shapes as `jax.ShapeDtypeStruct`, with one sharding for all or a tree of them."""
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """(name, leaf) of each leaf of a tree."""
    return [
        (parameter_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def parameter_name(path: tuple[Any, ...]) -> str:
    """The name of the parameter at a JAX key path, such as `encoder/embeddings/word`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _spec(name: str, leaf: Any) -> tuple[str | None, ...]:
    axes = next(axes for pattern, axes in RULES if re.search(f"(^|/){pattern}$", name))
    if leaf.ndim < len(axes):
        axes = ()
    return (None,) * (leaf.ndim - len(axes)) + axes
