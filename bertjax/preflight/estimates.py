"""Estimates of the time of a step from its compiled function."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from bertjax.model import flops
from bertjax.model.heads import HEADS
from bertjax.preflight.hlo import InstructionCost
from bertjax.preflight.topology import Topology

# Part of the step by a scope in an operation's name. The first match counts.
SCOPE_TO_PART = (
    ("optimizer", "optimizer"),
    ("dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("_norm", "layer norm"),
    ("attention", "attention"),
    ("feed_forward", "feed-forward"),
    ("pooler", "pooler"),
)


def estimate_tpu(
    topology: Topology,
    devices: Sequence[jax.Device],
    costs: Iterable[InstructionCost],
    bytes_sent: float,
    model_flops: float,
) -> dict[str, Any]:
    """Return the estimates of a `ProgramReport` from the cycles of the TPU compiler.

    The compiler has no estimate for custom kernels. They are charged the time of their operations
    or their memory traffic at the chip's peaks, whichever is longer.

    Args:
      topology: TPU slice.
      devices: devices of the slice.
      costs: costs of one call.
      bytes_sent: bytes that a device sends in one call.
      model_flops: operations of one call on all devices.
    """
    peak, chip = flops.peak_flops(devices[0].device_kind), topology.tpu
    assert chip is not None and peak is not None
    peak *= topology.chips * chip.devices
    peak_per_device = peak / len(devices)
    cycles_by_part: collections.Counter[str] = collections.Counter()
    kernel_cycles = 0
    for cost in costs:
        cycles = cost.cycles
        if not cycles:
            seconds = max(cost.flops / peak_per_device, cost.bytes / chip.memory_bandwidth)
            cycles = round(seconds * chip.clock_hz)
            kernel_cycles += cost.count * cycles
        cycles_by_part[_part_of_op(cost.op_name)] += cost.count * cycles
    total = sum(cycles_by_part.values())
    collective_seconds = bytes_sent / topology.bandwidth if bytes_sent else 0.0
    step_seconds = total / chip.clock_hz + collective_seconds
    return {
        "estimated_cycles": total,
        "custom_kernel_cycles": kernel_cycles,
        "estimated_collective_seconds": collective_seconds,
        "estimated_step_seconds": step_seconds,
        "estimated_mfu": model_flops / (step_seconds * peak),
        "estimated_cycle_shares": {
            part: cycles / total for part, cycles in cycles_by_part.most_common()
        },
    }


def estimate_gpu(
    topology: Topology,
    devices: Sequence[jax.Device],
    accessed_bytes: int,
    bytes_sent: float,
    model_flops: float,
) -> dict[str, Any]:
    """Return the roofline of a step: seconds of its operations and bytes at the GPU's peaks.

    Args:
      topology: GPUs.
      devices: devices of the topology.
      accessed_bytes: bytes that a device reads and writes in one call.
      bytes_sent: bytes that a device sends in one call.
      model_flops: operations of one call on all devices.
    """
    peak = flops.peak_flops(devices[0].device_kind)
    assert topology.gpu is not None and peak is not None
    roofline = {
        "compute": model_flops / peak / len(devices),
        "memory": accessed_bytes / topology.gpu.memory_bandwidth,
        "links": bytes_sent / topology.bandwidth,
    }
    return {"roofline_seconds": roofline, "estimated_collective_seconds": roofline["links"]}


def _part_of_op(op_name: str) -> str:
    heads = ((f"/{head.name}/", head.display_name) for head in HEADS.values())
    return next((part for scope, part in (*SCOPE_TO_PART, *heads) if scope in op_name), "other")
