"""One table of sharding rules from parameter names to mesh axes.

Parameters and their optimizer moments
are sharded over `fsdp` and `tensor` by the table, and over `data` as well wherever the table names
`fsdp` and the size allows it. A step gathers a copy over `data` once, and gradients are
reduce-scattered to the shards (Rajbhandari et al. 2020, ZeRO, stages 1 and 2). Dimensions sharded
over `fsdp` are gathered where they are used (stage 3).
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from data_pipelines.errors import InputError

Axis = str | tuple[str, ...] | None

# (pattern of the end of a parameter's name, mesh axes of each of its last dimensions).
# The leading layer dimension of stacked parameters is never sharded. The last dimension is sharded
# over few devices if possible: a TPU pads it to 128 elements.
SHARDING_RULES: tuple[tuple[str, tuple[Axis, ...]], ...] = (
    (r"blocks/\w+/(query|key|value|up)/kernel", ("fsdp", "tensor")),
    (r"blocks/\w+/(output|down)/kernel", (("tensor", "fsdp"), None)),
    (r"blocks/\w+/(query|key|value|up)/bias", ("tensor",)),
    (r"embeddings/(word|position|type)", (None, "fsdp")),
    (r"(transform|nsp)/kernel", ("fsdp", None)),
    (r".*", ()),
)


def check_mesh(mesh: Mesh, params: Any) -> None:
    """Reject parameters that the mesh cannot hold, before anything compiles.

    Args:
      mesh: the devices.
      params: tree of arrays or shapes.

    Raises:
      InputError: a dimension of a parameter does not divide over the devices.
    """
    for name, leaf in named_leaves(params):
        for size, axes in zip(leaf.shape, _storage_axes(mesh, name, leaf), strict=True):
            if size % _parts(mesh, axes or ()):
                sizes = " x ".join(f"mesh.{axis}={mesh.shape[axis]}" for axis in axes or ())
                raise InputError(
                    f"{sizes}: does not divide a dimension of {size} of {name}. Use other sizes."
                )


def tree_shardings(mesh: Mesh | AbstractMesh, tree: Any) -> Any:
    """Return the storage sharding of each leaf, as a `NamedSharding`.

    Args:
      mesh: the devices.
      tree: arrays or shapes: parameters, or a tree that contains them, as an optimizer state.
    """

    def leaf_sharding(name: str, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, name, leaf)))

    return map_named(leaf_sharding, tree)


def gather_matrices(
    mesh: Mesh, params: Any, dtype: jax.typing.DTypeLike, *, per_layer: bool = False
) -> Any:
    """Return the parameters that a step computes with: matrices in `dtype`, gathered over `data`.

    The all-gather moves the copy in `dtype`. The backward pass reduce-scatters its gradient, which
    is cast to float32 afterwards.

    Args:
      mesh: the devices.
      params: nested dictionary of float32 arrays.
      dtype: the compute type.
      per_layer: whether each stacked matrix becomes a tuple of layers, gathered one by one. Models
        without scanned layers need it: a TPU would fill VMEM with the layers it needs last.
    """
    constrain = jax.lax.with_sharding_constraint

    def gather(name: str, leaf: Array) -> Array | tuple[Array, ...]:
        axes = _compute_axes(name, leaf)
        if not any("fsdp" in (names or ()) for names in axes):
            return leaf
        split_layers = per_layer and leaf.ndim > 2
        storage_sharding = NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, name, leaf)))
        compute_sharding = NamedSharding(mesh, PartitionSpec(*axes[1:] if split_layers else axes))

        @jax.custom_vjp
        def gather_copy(x: Array) -> Array | tuple[Array, ...]:
            # Without the first constraint, the partitioner for GPUs gathers before it casts.
            stored_copy = constrain(x.astype(dtype), storage_sharding)
            if split_layers:
                return tuple(constrain(layer, compute_sharding) for layer in stored_copy)
            return constrain(stored_copy, compute_sharding)

        def backward(_: None, gradient: Array | tuple[Array, ...]) -> tuple[Array]:
            gradient = jnp.stack(gradient) if split_layers else gradient
            return (constrain(gradient, storage_sharding).astype(jnp.float32),)

        gather_copy.defvjp(lambda x: (gather_copy(x), None), backward)
        return gather_copy(leaf)

    return map_named(gather, params)


def stack_layers(params: Any) -> Any:
    """Return the result of `gather_matrices` with tuples of layers stacked to one array."""

    def stack(leaf: Any) -> Any:
        return jnp.stack(leaf) if isinstance(leaf, tuple) else leaf

    return jax.tree.map(stack, params, is_leaf=lambda leaf: isinstance(leaf, tuple))


def sharded_shapes(mesh: Mesh, tree: Any) -> Any:
    """Return a tree's shapes as `jax.ShapeDtypeStruct` with the shardings of `tree_shardings`."""
    return with_shardings(tree, tree_shardings(mesh, tree))


def with_shardings(tree: Any, shardings: Any) -> Any:
    """Return a tree's shapes as `jax.ShapeDtypeStruct` with one sharding or a tree of shardings."""
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return (name, leaf) of each leaf of a tree; the names are those of `map_named`."""
    return [(_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def map_named(function: Callable[..., Any], *trees: Any) -> Any:
    """Return the tree of `function(name, leaf, ...)`, with the leaf of each tree.

    A name is the path in the tree, such as `encoder/embeddings/word`.
    """
    return jax.tree.map_with_path(lambda path, *leaves: function(_name(path), *leaves), *trees)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _compute_axes(name: str, leaf: Any) -> tuple[Axis, ...]:
    axes = next(axes for pattern, axes in SHARDING_RULES if re.search(f"(^|/){pattern}$", name))
    if leaf.ndim < len(axes):
        axes = ()
    return (None,) * (leaf.ndim - len(axes)) + axes


def _storage_axes(
    mesh: Mesh | AbstractMesh, name: str, leaf: Any
) -> tuple[tuple[str, ...] | None, ...]:
    """Return the mesh axes of each dimension: those of the table, and `data` where it divides."""
    dimensions: list[tuple[str, ...] | None] = []
    for size, axes in zip(leaf.shape, _compute_axes(name, leaf), strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        zero_names = tuple(part for name in names for part in _ZERO_AXES.get(name, (name,)))
        dimensions.append((zero_names if size % _parts(mesh, zero_names) == 0 else names) or None)
    return tuple(dimensions)


_ZERO_AXES = {"fsdp": ("data", "fsdp")}


def _parts(mesh: Mesh | AbstractMesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
