"""The mesh, and one table of rules from parameter names to mesh axes.

A batch's rows lie over `data` and `fsdp` together. Parameters and the optimizer's moments of them
are stored in pieces, over `fsdp` and `tensor` as the table says, and over `data` wherever `fsdp`
stands in it and the size allows it. A step computes with a copy that is whole over `data`,
gathered once, and gradients are summed into the pieces that a device keeps (Rajbhandari et al.
2020, ZeRO, stages 1 and 2); what lies over `fsdp` is gathered where it is used (stage 3).
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
# The leading layer dimension of stacked parameters is never split, nor, where it can be helped,
# the last one over many devices: a TPU lays out 128 elements of it at the least.
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
    """A mesh with the axes `data`, `fsdp` and `tensor` over the devices (all by default).

    A process feeds its own rows of a batch, so its devices follow one another along (data, fsdp),
    process by process: of H hosts, host h has the rows h * B / H onwards. Within a host, devices
    that follow one another along an axis are linked. Where a ring through the whole slice would
    leave a host and come back, the hosts' blocks win; and devices lie alike in all hosts, as the
    groups that an axis makes must be grids of the slice: for others there is no route.

    Over CPUs, what this process frees stays with it from then on.

    Args:
      data, fsdp, tensor: devices along each axis; one may be -1 for all that the others leave.
    Raises:
      InputError: the sizes do not multiply to the number of devices, or `tensor` does not divide
        those of a host.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, tensor]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = len(devices) // rest if rest > 0 else 0
    if min(sizes) < 1 or math.prod(sizes) != len(devices):
        raise InputError(
            f"mesh {text} does not fit {len(devices)} devices: the sizes must multiply to that."
        )
    local = len(devices) // len({device.process_index for device in devices})
    if local % sizes[2]:
        raise InputError(
            f"mesh {text} splits the model over hosts of {local} devices: choose a divisor of "
            "that for mesh.tensor."
        )
    if devices[0].platform == "cpu":
        keep_freed_memory()
    return Mesh(_arrange_devices(devices, local, sizes).reshape(sizes), AXES)


def _arrange_devices(devices: Sequence[jax.Device], local: int, sizes: Sequence[int]) -> np.ndarray:
    """The devices in the order of the mesh, `local` of each host."""

    def coords(device: jax.Device) -> tuple[int, ...]:
        return tuple(getattr(device, "coords", ()))  # of the chip in its slice, where it is a TPU

    ordered = sorted(devices, key=lambda each: (each.process_index, coords(each), each.id))
    # Of `tensor` a host has all, of `fsdp` what it has room for, of `data` the rest.
    fsdp = math.gcd(sizes[1], local // sizes[2])
    own = (local // sizes[2] // fsdp, fsdp, sizes[2])
    blocks = np.asarray(ordered, object).reshape(-1, *own)
    for axis in (1, 2, 3):
        line = [coords(device) for device in np.moveaxis(blocks[0], axis - 1, 0)[:, 0, 0]]
        blocks = blocks.take(_snake_order(line), axis)
    return blocks


def _snake_order(coords: Sequence[tuple[int, ...]]) -> list[int]:
    """The numbers of the points of a grid in the order of a path from each to the one beside it.

    The narrowest dimension is crossed last, so that the path is a ring where that has two places.
    """
    places = [sorted(set(along)) for along in zip(*coords, strict=True)]
    narrow_first = sorted(range(len(places)), key=lambda dimension: len(places[dimension]))

    def rank(number: int) -> int:
        # Each dimension is walked to and fro in turn, as in a Gray code.
        found = 0
        for dimension in narrow_first:
            size = len(places[dimension])
            place = places[dimension].index(coords[number][dimension])
            found = found * size + (size - 1 - place if found % 2 else place)
        return found

    return sorted(range(len(coords)), key=rank)


def tpu_kind() -> str:
    """The kind of the TPUs that what is being traced is for, by the context's mesh; "" for none."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device is not None and device.platform == "tpu" else ""


def gpu_kind() -> str:
    """As `tpu_kind`, of GPUs."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device is not None and device.platform == "gpu" else ""


def is_traced_for_cpu() -> bool:
    """Whether what is being traced is for CPUs: those of the context's mesh, or by default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"


def split_unsupported_reason(rows: int, heads: int) -> str:
    """Why the context's mesh gives its devices no even shares of rows and heads; "" if it does."""
    mesh = jax.sharding.get_abstract_mesh()
    if not {*AXES} <= {*mesh.axis_names}:
        return f"there is no mesh of {', '.join(AXES)}"
    if any(mesh.shape[axis] > 1 for axis in AXES if axis in mesh.manual_axes):
        return "the mesh has been split by hand"
    if rows % num_batch_shards(mesh):
        return f"{rows} rows: the mesh splits them in {num_batch_shards(mesh)}"
    if heads % mesh.shape["tensor"]:
        return f"{heads} heads: mesh.tensor={mesh.shape['tensor']} does not divide them"
    return ""


def shard_map_over_batch_and_heads(
    function: Callable[..., Array], seeds: Array, example_ids: Array, arrays: Sequence[Array]
) -> Array:
    """What `function((seeds, rows, heads, example_ids), *arrays)` gives, each device doing its part.

    `arrays` and the result are [B, T, N, D], for `function` [B, T, N * D]. Rows [B] and heads [N]
    are given by their numbers in the whole batch and model. Without a mesh, or within one device of
    it, all is one part.
    """
    rows, length, heads, size = shape = arrays[0].shape
    mesh = jax.sharding.get_abstract_mesh()
    if not (mesh.empty or {*AXES} <= {*mesh.manual_axes}):
        wide, own_heads = PartitionSpec(BATCH_SPEC[0], None, "tensor"), PartitionSpec("tensor")
        function = jax.shard_map(
            function,
            in_specs=((PartitionSpec(), BATCH_SPEC, own_heads, BATCH_SPEC), *[wide] * len(arrays)),
            out_specs=wide,
            check_vma=False,
        )
    shared = (seeds, jnp.arange(rows), jnp.arange(heads), example_ids)
    return function(shared, *(x.reshape(rows, length, heads * size) for x in arrays)).reshape(shape)


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return _parts(mesh, BATCH_SPEC[0])


def check_mesh(mesh: Mesh, params: Any) -> None:
    """Refuses parameters that the mesh cannot hold, before anything compiles.

    Args:
      params: tree of arrays or shapes.
    Raises:
      InputError: a dimension of a parameter does not divide over the devices.
    """
    for name, leaf in named_leaves(params):
        for size, axes in zip(leaf.shape, _storage_axes(mesh, name, leaf), strict=True):
            if size % _parts(mesh, axes or ()):
                split = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes or ())
                raise InputError(
                    f"{name} has a dimension of {size}, which {split} of the mesh does not "
                    "divide: choose another mesh."
                )


def tree_shardings(mesh: Mesh | AbstractMesh, tree: Any) -> Any:
    """How each leaf of a tree of arrays or shapes is stored, as a `NamedSharding`.

    Works for parameters and for whatever holds trees of them, such as optimizer states.
    """

    def leaf_sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, parameter_name(path), leaf)))

    return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


def gather_matrices(
    mesh: Mesh, params: Any, dtype: jax.typing.DTypeLike, *, per_layer: bool = False
) -> Any:
    """The parameters that a step computes with: matrices in `dtype` and whole over `data`.

    What goes over the wire is the copy in `dtype`, and in the backward pass the gradient of it,
    which each device receives summed for its own piece alone, and which is float32 from there on.

    Args:
      apart: whether layers are gathered one by one, each matrix of all layers becoming a tuple of
        them. They must be where they are not scanned: of a whole stack a TPU fills its fast memory
        with what it needs last, and all else stays out.
    """

    def gathered(path: tuple[Any, ...], leaf: Array) -> Array | tuple[Array, ...]:
        name = parameter_name(path)
        rule = _compute_axes(name, leaf)
        if not any("fsdp" in (axes or ()) for axes in rule):
            return leaf
        stored = NamedSharding(mesh, PartitionSpec(*_storage_axes(mesh, name, leaf)))
        compute_sharding = NamedSharding(mesh, PartitionSpec(*rule))
        return _gather(leaf, np.dtype(dtype), stored, compute_sharding, per_layer and leaf.ndim > 2)

    return jax.tree_util.tree_map_with_path(gathered, params)


def stack_layers(params: Any) -> Any:
    """What `gather_matrices` gives, with the matrices of all layers in one array again."""

    def are_layers(leaf: Any) -> bool:
        return isinstance(leaf, tuple)

    return jax.tree.map(
        lambda leaf: jnp.stack(leaf) if are_layers(leaf) else leaf, params, is_leaf=are_layers
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(
    x: Array,
    dtype: np.dtype,
    stored: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
) -> Array | tuple[Array, ...]:
    # Without the first, the partitioner gathers before it casts where devices are GPUs.
    stored_copy = jax.lax.with_sharding_constraint(x.astype(dtype), stored)
    if not per_layer:
        return jax.lax.with_sharding_constraint(stored_copy, compute_sharding)
    layer = NamedSharding(compute_sharding.mesh, PartitionSpec(*compute_sharding.spec[1:]))
    return tuple(jax.lax.with_sharding_constraint(each, layer) for each in stored_copy)


def _gather_forward(
    x: Array,
    dtype: np.dtype,
    stored: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
) -> tuple[Array | tuple[Array, ...], None]:
    return _gather(x, dtype, stored, compute_sharding, per_layer), None


def _gather_backward(
    dtype: np.dtype,
    stored: NamedSharding,
    compute_sharding: NamedSharding,
    per_layer: bool,
    _: None,
    gradient: Array | tuple[Array, ...],
) -> tuple[Array]:
    gradient = jnp.stack(gradient) if per_layer else gradient
    return (jax.lax.with_sharding_constraint(gradient, stored).astype(np.float32),)


_gather.defvjp(_gather_forward, _gather_backward)


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


def _compute_axes(name: str, leaf: Any) -> tuple[Axis, ...]:
    axes = next(axes for pattern, axes in SHARDING_RULES if re.search(f"(^|/){pattern}$", name))
    if leaf.ndim < len(axes):
        axes = ()
    return (None,) * (leaf.ndim - len(axes)) + axes


def _storage_axes(
    mesh: Mesh | AbstractMesh, name: str, leaf: Any
) -> tuple[tuple[str, ...] | None, ...]:
    """The mesh axes of each dimension: those of the table, and `data` where it divides."""
    split: list[tuple[str, ...] | None] = []
    for size, axes in zip(leaf.shape, _compute_axes(name, leaf), strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        spread = tuple(part for name in names for part in _ZERO_AXES.get(name, (name,)))
        split.append((spread if size % _parts(mesh, spread) == 0 else names) or None)
    return tuple(split)


_ZERO_AXES = {"fsdp": ("data", "fsdp")}


def _parts(mesh: Mesh | AbstractMesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
