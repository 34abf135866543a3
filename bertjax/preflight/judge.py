"""Will it fit, how fast will it be: the train step compiled for a topology that is not here.

What the compiler and arithmetic know (memory, operations, collectives and their bytes) and what is
estimated (cycles, seconds, utilisation) are told apart in all that is reported.
"""

import collections
import dataclasses
import json
import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from bertjax.mesh.sharding import make_mesh, row_parts
from bertjax.model import flops
from bertjax.preflight.hlo import Collective, Instruction, read_program
from bertjax.preflight.topology import GIB, Topology
from bertjax.tasks import registry
from bertjax.training.config import Config
from bertjax.training.objective import rows_of
from bertjax.training.programs import Program
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

# Scopes of an operation's name -> the part of the step that it belongs to; the first counts.
PARTS = (
    ("optimizer", "optimizer"),
    ("dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("_norm", "layer norm"),
    ("attention", "attention"),
    ("feed_forward", "feed-forward"),
    ("mlm", "MLM head"),
    ("nsp", "NSP head"),
    ("pooler", "NSP head"),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known and what is estimated of a train step on a topology; bytes are a device's.

    Attributes:
      parameter_bytes, optimizer_bytes: by the sharding table.
      activation_bytes: all else that the program keeps while it runs; None if it does not fit.
      hbm_bytes: what it needs; where it does not fit, as much as the compiler says it would.
      collectives: {kind: {"runs", "bytes", "bytes_sent"}} of one step.
      model_flops: of one step on all devices.
      estimated_cycles: of one step, collectives left out; None without a TPU's compiler.
      charged_cycles: those among them that the compiler does not see: of kernels of our own, which
        are charged what they compute or move at the chip's peaks, whichever takes longer.
      estimated_collective_seconds: if links carry what they can and nothing runs beside them.
      estimated_step_seconds: cycles and collectives one after the other.
      estimated_parts: {part of the model: share of the cycles}.
    """

    topology: str
    fits: bool
    chips: int
    devices: int
    hbm_bytes: int
    hbm_limit_bytes: int | None
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None
    collectives: dict[str, dict[str, float]]
    model_flops: float
    compile_seconds: float
    steps: int
    rows_per_device: int
    remat: bool
    estimated_cycles: int | None = None
    charged_cycles: int | None = None
    estimated_collective_seconds: float | None = None
    estimated_step_seconds: float | None = None
    estimated_mfu: float | None = None
    estimated_parts: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)


def preflight(config: Config, topology: Topology) -> Verdict:
    """Compiles the train step of a configuration for a topology.

    It needs no data, but where durations count epochs.

    Raises:
      InputError: the configuration does not fit the mesh.
      NoCompiler: see `Topology.devices`.
    """
    devices = topology.devices()
    with_data = config.counts_epochs and config.data["dir"]
    rows_per_epoch = registry.find(config.task)(config).rows_per_epoch if with_data else None
    config = config.resolve(rows_per_epoch)
    parts = _row_parts(config, topology)
    objective = registry.objective(config, config.accumulation * parts)
    program = Program(config, objective, devices)
    rows = rows_of(objective) // parts
    remat = " with remat" if config.model.remat else ""
    _log.info(f"compiling for {topology.name}, {rows} rows a device{remat}")
    began = time.perf_counter()
    limit = topology.chip.hbm if topology.chip else None
    common: dict[str, Any] = {
        "topology": topology.name,
        "chips": topology.chips,
        "devices": len(devices),
        "parameter_bytes": shard_bytes(program.state.params),
        "optimizer_bytes": shard_bytes(program.state.opt_state),
        "hbm_limit_bytes": limit,
        "model_flops": objective.flops_per_step(),
        "steps": int(config.steps),
        "rows_per_device": rows,
        "remat": config.model.remat,
    }
    try:
        compiled = program.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = _needed(str(error))
        if needed is None:
            raise
        seconds = time.perf_counter() - began
        return Verdict(
            fits=False,
            hbm_bytes=needed,
            activation_bytes=None,
            collectives={},
            compile_seconds=seconds,
            **common,
        )
    common["compile_seconds"] = time.perf_counter() - began
    memory: Any = compiled.memory_analysis()
    state = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    used = state + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    instructions, exchanges = read_program(compiled.as_text() or "")
    estimates: dict[str, Any] = {}
    if topology.chip is not None:
        estimates = _estimate(topology, devices, instructions, exchanges, common["model_flops"])
    return Verdict(
        fits=limit is None or used <= limit,
        hbm_bytes=used,
        activation_bytes=memory.temp_size_in_bytes,
        collectives=_by_kind(exchanges),
        **estimates,
        **common,
    )


def remedies(config: Config, topology: Topology) -> Iterator[tuple[str, Verdict]]:
    """Overrides that need less memory, each with what it comes to, the mildest first.

    Ends with the first that fits, or when a device is left with a row at a time.
    """
    config = _with_remat(config, True)
    text, accumulation = "--config.model.remat=True", config.accumulation
    while config.batch_size % (accumulation * _row_parts(config, topology)) == 0:
        verdict = preflight(dataclasses.replace(config, accumulation=accumulation), topology)
        yield text, verdict
        if verdict.fits:
            return
        accumulation *= 2
        text = f"--config.model.remat=True --config.accumulation={accumulation}"


def largest_batch(config: Config, topology: Topology, remat: bool) -> Verdict | None:
    """The most rows a device that fit, by doubling those of the configuration and then bisection.

    Returns:
      The verdict on them; None if not even one fits for each part of the accumulation.
    Raises:
      InputError: the topology has no limit.
    """
    if topology.chip is None:
        raise InputError(f"{topology.name} has no memory limit to search for: name a TPU topology.")
    config = _with_remat(config, remat)
    least = config.accumulation * _row_parts(config, topology)
    best, fits, fails = None, 0, None
    times = max(1, config.batch_size // least)
    while fails is None or fails - fits > 1:
        verdict = preflight(dataclasses.replace(config, batch_size=times * least), topology)
        if verdict.fits:
            best, fits = verdict, times
        else:
            fails = times
        times = 2 * fits if fails is None else (fits + fails) // 2
    return best


def _row_parts(config: Config, topology: Topology) -> int:
    mesh = config.mesh
    return row_parts(make_mesh(mesh.data, mesh.fsdp, mesh.model, topology.devices()))


def _with_remat(config: Config, remat: bool) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


def shard_bytes(tree: Any) -> int:
    """Bytes of a tree of shapes with shardings on the device that holds most of it."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def describe(verdict: Verdict) -> str:
    """The verdict for a person."""
    v, limit = verdict, verdict.hbm_limit_bytes
    if v.fits:
        share = "" if limit is None else f" of {_size(limit)} ({v.hbm_bytes / limit:.0%})"
        head = f"fits {v.topology}: {_size(v.hbm_bytes)}{share} a device"
    else:
        over = v.hbm_bytes - (limit or 0)
        head = f"does NOT fit {v.topology}: {_size(v.hbm_bytes)} a device is {_size(over)} too many"
    lines = [head, "", "Known, from the compiler and by arithmetic"]
    lines += [
        f"  parameters       {_size(v.parameter_bytes)} a device",
        f"  optimizer        {_size(v.optimizer_bytes)} a device",
    ]
    if v.activation_bytes is not None:
        lines.append(f"  activations      {_size(v.activation_bytes)} a device, with other buffers")
    for kind, numbers in v.collectives.items():
        text = f"{numbers['runs']:.0f} a step, {numbers['bytes'] / 1e6:,.1f} MB"
        lines.append(f"  {kind:16} {text}")
    lines.append(f"  model            {v.model_flops / 1e12:,.1f} TFLOP a step")
    lines.append(f"  compilation      {v.compile_seconds:.0f} s")
    if v.estimated_step_seconds is None or v.estimated_cycles is None:
        return "\n".join(lines)
    days = v.estimated_step_seconds * v.steps / 86_400
    lines += [
        "",
        "Estimated, by the compiler's cost model and the bandwidth of the links",
        f"  cycles           {v.estimated_cycles / 1e6:,.1f} million a step, of them "
        f"{(v.charged_cycles or 0) / 1e6:,.1f} for kernels that the compiler does not see, at the "
        "chip's peaks",
        f"  collectives      {1e3 * (v.estimated_collective_seconds or 0):,.1f} ms a step, if none "
        "runs beside other work",
        f"  step             {1e3 * v.estimated_step_seconds:,.1f} ms, model FLOP utilisation "
        f"{v.estimated_mfu:.0%}",
        f"  {v.steps:,} steps  {days:,.2f} days, {days * 24 * v.chips:,.0f} chip-hours",
        "  of the cycles    "
        + ", ".join(f"{part} {share:.0%}" for part, share in v.estimated_parts.items()),
    ]
    return "\n".join(lines)


def _estimate(
    topology: Topology,
    devices: Sequence[jax.Device],
    instructions: Iterable[Instruction],
    exchanges: Iterable[Collective],
    model_flops: float,
) -> dict[str, Any]:
    peak = flops.peak_flops(devices[0].device_kind)
    chip = topology.chip
    assert chip is not None and peak is not None
    of_device = peak * topology.chips / len(devices)
    cycles: collections.Counter[str] = collections.Counter()
    charged = 0
    for each in instructions:
        spent = each.cycles
        if not spent:  # the compiler does not see what it takes
            seconds = max(each.flops / of_device, each.bytes / chip.hbm_bandwidth)
            spent = round(seconds * chip.hz)
            charged += each.runs * spent
        cycles[_part(each.op_name)] += each.runs * spent
    total = sum(cycles.values())
    sent = sum(each.sent * each.runs for each in exchanges)
    waiting = sent / topology.bandwidth if sent else 0.0
    seconds = total / chip.hz + waiting
    return {
        "estimated_cycles": total,
        "charged_cycles": charged,
        "estimated_collective_seconds": waiting,
        "estimated_step_seconds": seconds,
        "estimated_mfu": model_flops / (seconds * peak * topology.chips),
        "estimated_parts": {part: n / total for part, n in cycles.most_common()},
    }


def _part(op_name: str) -> str:
    return next((part for scope, part in PARTS if scope in op_name), "other")


def _by_kind(exchanges: Iterable[Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for each in exchanges:
        numbers = kinds.setdefault(each.kind, {"runs": 0, "bytes": 0, "bytes_sent": 0})
        numbers["runs"] += each.runs
        numbers["bytes"] += each.runs * each.bytes
        numbers["bytes_sent"] += each.runs * each.sent
    return kinds


def _needed(message: str) -> int | None:
    """Bytes that a program needs, from the compiler's refusal; None for another complaint."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    found = re.search(r"Used ([\d.]+)([KMGT]) of", message)
    found = found or re.search(r"memory required[^(]*\(([\d.]+)([KMGT])\)", message)
    return round(float(found[1]) * 1024 ** (" KMGT".index(found[2]))) if found else None


def _size(size: float) -> str:
    """Bytes for a person."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.1f} MiB"
