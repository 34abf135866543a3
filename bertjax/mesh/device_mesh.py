"""The mesh of devices, and functions that are computed shard by shard on it.

The sequences of a batch are sharded over the axes `data` and `fsdp`, heads over `tensor`.
"""

import math
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from bertjax.mesh.allocator import keep_freed_memory
from data_pipelines.errors import InputError

AXES = ("data", "fsdp", "tensor")
BATCH_SPEC = PartitionSpec(("data", "fsdp"))
_ACCELERATOR_TOKENS = 32_768  # of a batch of a prediction, on each device


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


def lacks_bfloat16(device: jax.Device) -> bool:
    """Return whether a device is an NVIDIA GPU older than A100, such as V100, T4 and RTX 20.

    They have no units for bfloat16, and compilers for them no Triton.
    """
    capability = getattr(device, "compute_capability", "")  # "7.5"; of AMD's GPUs "gfx90a"
    is_nvidia = re.fullmatch(r"\d+\.\d+", str(capability)) is not None
    return device.platform == "gpu" and is_nvidia and float(capability) < 8


def bfloat16_warning(dtype: str, device: jax.Device) -> str:
    """Return a warning with its fix if `model.dtype` suits a device badly; "" otherwise."""
    if dtype != "bfloat16" or not lacks_bfloat16(device):
        return ""
    return (
        f"{device.device_kind} has no units for bfloat16 and multiplies in float32, so "
        "model.dtype=bfloat16 saves memory and no time: use --config.model.dtype=float32 if it "
        "fits."
    )


def is_traced_for_cpu() -> bool:
    """Return whether code is traced for CPUs of the context's mesh, or by default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"


def max_predict_sequences(num_tokens: int, num_devices: int, on_cpu: int) -> int:
    """Return the maximal number of sequences in a batch of a prediction, over all devices.

    A CPU is busy with a few sequences, and larger batches have more padding. An accelerator would
    wait for the host: 32,768 tokens take BERT-Base on an H200 about 14 ms at 40% of its peak.

    Args:
      num_tokens: tokens of a sequence.
      num_devices: devices that share a batch.
      on_cpu: sequences for each CPU device.
    """
    on_accelerator = max(1, _ACCELERATOR_TOKENS // num_tokens)
    per_device = on_cpu if jax.default_backend() == "cpu" else on_accelerator
    return 1 << (per_device * num_devices).bit_length() - 1  # batches are padded to powers of two


def split_batch(num_sequences: int, multiple: int) -> list[int]:
    """Return the sizes of the parts in which a batch of a prediction is computed.

    Each is padded to a power of two and a multiple. A CPU computes padding as slowly as tokens, so
    that a batch with more than an eighth of padding is split there.

    Args:
      num_sequences: sequences of the batch.
      multiple: the devices and processes that share a part.
    """
    sizes: list[int] = []
    while num_sequences:
        size = 1 << (num_sequences - 1).bit_length()
        is_wasteful = 8 * (size - num_sequences) > size > multiple
        if is_wasteful and jax.default_backend() == "cpu":
            size //= 2
        sizes.append(min(size, num_sequences))
        num_sequences -= sizes[-1]
    return sizes


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_SPEC[0])


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


def shard_map_over_batch(
    function: Callable[..., Array], arrays: Sequence[Array], params: Sequence[Array]
) -> Array:
    """Return `function(*arrays, *params)`, computed shard by shard, [B, ...].

    The gradients of the parameters are reduced once, after the backward pass of the function. In a
    loop the partitioner would reduce them at each step. Without a mesh, inside another `shard_map`,
    or if the batch cannot be split, there is one shard.

    Args:
      function: takes arrays and parameters of a shard.
      arrays: [B, ...].
      params: replicated.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if _is_sharded() and len(arrays[0]) % num_batch_shards(mesh) == 0:
        function = jax.shard_map(
            function,
            in_specs=(*[BATCH_SPEC] * len(arrays), *[PartitionSpec()] * len(params)),
            out_specs=BATCH_SPEC,
            check_vma=False,
        )
    return function(*arrays, *params)


def shard_over_batch(array: Array) -> Array:
    """Return an array [N, ...] whose N is sharded like the sequences of a batch.

    Without a mesh, inside a `shard_map`, or if N cannot be split, the array is returned as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes or len(array) % num_batch_shards(mesh):
        return array
    return jax.lax.with_sharding_constraint(array, BATCH_SPEC)


def _is_sharded() -> bool:
    """Return whether there is a mesh whose axes are not manual yet."""
    mesh = jax.sharding.get_abstract_mesh()
    return not (mesh.empty or {*AXES} <= {*mesh.manual_axes})


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
    if _is_sharded():
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
