"""The mesh, and one table of rules from parameter names to mesh axes.

The sequences of a batch are sharded over `data` and `fsdp`. Parameters and their optimizer moments
are sharded over `fsdp` and `tensor` by the table, and over `data` as well wherever the table names
`fsdp` and the size allows it. A step gathers a copy over `data` once, and gradients are
reduce-scattered to the shards (Rajbhandari et al. 2020, ZeRO, stages 1 and 2). Dimensions sharded
over `fsdp` are gathered where they are used (stage 3).
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from bertjax.mesh.allocator import keep_freed_memory
from data_pipelines.errors import InputError

AXES = ("data", "fsdp", "tensor")
BATCH_SPEC = PartitionSpec(("data", "fsdp"))

Axis = str | tuple[str, ...] | None

# (pattern of the end of a parameter's name, mesh axes of each of its last dimensions).
# The leading layer dimension of stacked parameters is never sharded. The last dimension is sharded
# over few devices if possible: a TPU pads it to 128 elements.
SHARDING_RULES: tuple[tuple[str, tuple[Axis, ...]], ...] = (
    (r"(query|key|value|up)/kernel", ("fsdp", "tensor")),
    (r"(output|down)/kernel", (("tensor", "fsdp"), None)),
    (r"(query|key|value|up)/bias", ("tensor",)),
    (r"embeddings/(word|position|type)", (None, "fsdp")),
    (r"(transform|nsp)/kernel", ("fsdp", None)),
    (r".*", ()),
)


def make_mesh(
    data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Return a mesh with the axes `data`, `fsdp` and `tensor`.

    A process feeds its own sequences of a batch, so its devices are consecutive along (data, fsdp):
    of P processes, process p has the sequences from p * B / P on. Within a process, consecutive
    devices along an axis are linked. The blocks of processes take precedence over a ring through
    the whole slice. All processes have the same arrangement of devices: the TPU compiler routes a
    collective only if the devices along an axis form a grid of the slice.

    For CPUs it calls `keep_freed_memory`.

    Args:
      data: devices along the axis `data`; one of the sizes may be -1 for the remaining devices.
      fsdp: devices along the axis `fsdp`.
      tensor: devices along the axis `tensor`.
      devices: all devices by default.

    Raises:
      InputError: the sizes do not multiply to the number of devices, or `tensor` does not divide
        the number of devices of a process.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, tensor]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) == 1:
        product = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = len(devices) // product if product > 0 else 0
    if min(sizes) < 1 or math.prod(sizes) != len(devices):
        raise InputError(
            f"mesh: {text} does not fit {len(devices)} devices. Use sizes whose product is that."
        )
    local = len(devices) // len({device.process_index for device in devices})
    if local % sizes[2]:
        raise InputError(
            f"mesh.tensor={sizes[2]}: does not divide the {local} devices of a process. Use a "
            "divisor."
        )
    if devices[0].platform == "cpu":
        keep_freed_memory()
    return Mesh(_arrange_devices(devices, local, sizes).reshape(sizes), AXES)


def _arrange_devices(devices: Sequence[jax.Device], local: int, sizes: Sequence[int]) -> np.ndarray:
    """Return the devices in the order of the mesh.

    Args:
      devices: all devices of the mesh.
      local: number of devices of each process.
      sizes: devices along each axis.
    """

    def coords(device: jax.Device) -> tuple[int, ...]:
        return tuple(getattr(device, "coords", ()))  # of a TPU chip in its slice

    ordered = sorted(devices, key=lambda d: (d.process_index, coords(d), d.id))
    # A process has all devices of `tensor`, then as many of `fsdp` as fit, then of `data`.
    fsdp = math.gcd(sizes[1], local // sizes[2])
    block_shape = (local // sizes[2] // fsdp, fsdp, sizes[2])
    blocks = np.asarray(ordered, object).reshape(-1, *block_shape)
    for axis in (1, 2, 3):
        line = [coords(device) for device in np.moveaxis(blocks[0], axis - 1, 0)[:, 0, 0]]
        blocks = blocks.take(_snake_order(line), axis)
    return blocks


def _snake_order(coords: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the indices of the points of a grid along a path that moves to an adjacent point.

    The narrowest dimension is crossed last, so the path is a ring if its size is 2.
    """
    grid = [sorted(set(values)) for values in zip(*coords, strict=True)]
    narrow_first = sorted(range(len(grid)), key=lambda dimension: len(grid[dimension]))

    def rank(index: int) -> int:
        # Each dimension is walked forward and backward in turn, as in a Gray code.
        rank = 0
        for dimension in narrow_first:
            size = len(grid[dimension])
            position = grid[dimension].index(coords[index][dimension])
            rank = rank * size + (size - 1 - position if rank % 2 else position)
        return rank

    return sorted(range(len(coords)), key=rank)


def tpu_kind() -> str:
    """Return the kind of the TPUs of the context's mesh, for which code is traced; "" for none."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device is not None and device.platform == "tpu" else ""


def gpu_kind() -> str:
    """Return the kind of the GPUs of the context's mesh, for which code is traced; "" for none."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device is not None and device.platform == "gpu" else ""


def is_traced_for_cpu() -> bool:
    """Return whether code is traced for CPUs of the context's mesh, or by default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"


def split_unsupported_reason(sequences: int, heads: int) -> str:
    """Return why the context's mesh cannot share sequences and heads evenly; "" if it can."""
    mesh = jax.sharding.get_abstract_mesh()
    if not {*AXES} <= {*mesh.axis_names}:
        return f"there is no mesh with axes {', '.join(AXES)}"
    if any(mesh.shape[axis] > 1 for axis in AXES if axis in mesh.manual_axes):
        return "the mesh has manual axes"
    if sequences % num_batch_shards(mesh):
        return f"{sequences} sequences: the mesh has {num_batch_shards(mesh)} batch shards"
    if heads % mesh.shape["tensor"]:
        return f"{heads} heads: mesh.tensor={mesh.shape['tensor']} does not divide them"
    return ""


def shard_map_over_batch_and_heads(
    function: Callable[..., Array], seeds: Array, example_ids: Array, arrays: Sequence[Array]
) -> Array:
    """Return `function((seeds, sequences, heads, example_ids), *arrays)`, computed shard by shard.

    Without a mesh, or inside another `shard_map`, there is one shard.

    Args:
      function: takes and returns arrays [b, T, n * D] of a shard; `sequences` [b] and `heads` [n]
        are their indices in the batch and in the model.
      seeds: replicated.
      example_ids: int32 [B, T].
      arrays: [B, T, N, D], as the result.
    """
    sequences, length, heads, size = shape = arrays[0].shape
    mesh = jax.sharding.get_abstract_mesh()
    if not (mesh.empty or {*AXES} <= {*mesh.manual_axes}):
        spec, heads_spec = PartitionSpec(BATCH_SPEC[0], None, "tensor"), PartitionSpec("tensor")
        function = jax.shard_map(
            function,
            in_specs=((PartitionSpec(), BATCH_SPEC, heads_spec, BATCH_SPEC), *[spec] * len(arrays)),
            out_specs=spec,
            check_vma=False,
        )
    shared = (seeds, jnp.arange(sequences), jnp.arange(heads), example_ids)
    flat = (x.reshape(sequences, length, heads * size) for x in arrays)
    return function(shared, *flat).reshape(shape)


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of shards of a batch."""
    return _parts(mesh, BATCH_SPEC[0])


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

    def leaf_sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, parameter_name(path), leaf)))

    return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


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

    def gather(path: tuple[Any, ...], leaf: Array) -> Array | tuple[Array, ...]:
        name = parameter_name(path)
        rule = _compute_axes(name, leaf)
        if not any("fsdp" in (axes or ()) for axes in rule):
            return leaf
        storage_sharding = NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, name, leaf)))
        compute_sharding = NamedSharding(mesh, PartitionSpec(*rule))
        split_layers = per_layer and leaf.ndim > 2
        return _gather(leaf, np.dtype(dtype), storage_sharding, compute_sharding, split_layers)

    return jax.tree_util.tree_map_with_path(gather, params)


def stack_layers(params: Any) -> Any:
    """Return the result of `gather_matrices` with tuples of layers stacked to one array."""

    def are_layers(leaf: Any) -> bool:
        return isinstance(leaf, tuple)

    return jax.tree.map(
        lambda leaf: jnp.stack(leaf) if are_layers(leaf) else leaf, params, is_leaf=are_layers
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(
    x: Array,
    dtype: np.dtype,
    storage_sharding: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
) -> Array | tuple[Array, ...]:
    # Without the first constraint, the partitioner for GPUs gathers before it casts.
    stored_copy = jax.lax.with_sharding_constraint(x.astype(dtype), storage_sharding)
    if not per_layer:
        return jax.lax.with_sharding_constraint(stored_copy, compute_sharding)
    layer = NamedSharding(compute_sharding.mesh, PartitionSpec(*compute_sharding.spec[1:]))
    return tuple(jax.lax.with_sharding_constraint(matrix, layer) for matrix in stored_copy)


def _gather_forward(
    x: Array,
    dtype: np.dtype,
    storage_sharding: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
) -> tuple[Array | tuple[Array, ...], None]:
    return _gather(x, dtype, storage_sharding, compute_sharding, per_layer), None


def _gather_backward(
    dtype: np.dtype,
    storage_sharding: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
    _: None,
    gradient: Array | tuple[Array, ...],
) -> tuple[Array]:
    gradient = jnp.stack(gradient) if per_layer else gradient
    return (jax.lax.with_sharding_constraint(gradient, storage_sharding).astype(np.float32),)


_gather.defvjp(_gather_forward, _gather_backward)


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
    """Return (name, leaf) of each leaf of a tree."""
    return [
        (parameter_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def parameter_name(path: tuple[Any, ...]) -> str:
    """Return the name of the parameter at a JAX key path, such as `encoder/embeddings/word`."""
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
