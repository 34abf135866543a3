"""Compile the programs of a run for absent devices: memory, collectives and estimated speed.

Each program is compiled exactly as the run compiles it.
"""

import collections
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from bertjax.config.config import Config, MeshConfig
from bertjax.mesh.device_mesh import make_mesh, num_batch_shards
from bertjax.mesh.memory import failed_allocation_bytes, program_bytes, shard_bytes
from bertjax.model import flops
from bertjax.model.heads import HEADS
from bertjax.preflight.hlo import Collective, Instruction, read_program
from bertjax.preflight.memory_traffic import bytes_accessed
from bertjax.preflight.report import PreflightReport, ProgramReport
from bertjax.preflight.topology import Topology
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.parallel_runs import AnyStepFunctions, ParallelStepFunctions, round_up_runs
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry

_log = logging.getLogger("bertjax")

# Scope in an operation's name -> part of the step; the first match counts.
SCOPE_TO_PART = (
    ("optimizer", "optimizer"),
    ("dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("_norm", "layer norm"),
    ("attention", "attention"),
    ("feed_forward", "feed-forward"),
    ("pooler", "pooler"),
)


def preflight(
    config: Config, topology: Topology, train_only: bool = False, runs: int = 0
) -> PreflightReport:
    """Compile the programs of a configuration for a topology and report on them.

    Data are read only if durations are in epochs.

    Args:
      config: the run.
      topology: devices to compile for.
      train_only: skip evaluation and prediction.
      runs: runs of a sweep that are trained in one program, spread evenly over the devices.

    Raises:
      InputError: the configuration does not fit the mesh.
      MissingCompilerError: see `Topology.devices`.
    """
    devices = topology.devices()
    examples = None
    if config.has_epoch_durations and config.data["dir"]:
        task = registry.find_task(config.task)(config)
        config, examples = task.config, task.examples_per_epoch
    config = config.resolve(examples)
    programs: AnyStepFunctions
    if runs:
        config = dataclasses.replace(config, mesh=MeshConfig(1, 1, 1))
        objective, num_shards = registry.make_objective(config, 1), 1
        programs = ParallelStepFunctions(
            [config] * round_up_runs(runs, len(devices)), objective, devices
        )
    else:
        objective = registry.make_objective(config, num_config_shards(config, topology))
        programs = StepFunctions(config, objective, devices)
        num_shards = num_batch_shards(programs.mesh)
    check_batch_sizes(config, objective, programs.mesh, train=True)
    num_runs = max(runs, 1)
    optimizer_bytes = shard_bytes(programs.state_shapes.opt_state)
    analyze = functools.partial(_analyze_program, topology, devices, num_shards)
    remat = " with remat" if config.model.remat else ""
    per_run = f" for each of {runs} runs" if runs else ""
    _log.info(
        f"compiling for {topology.name}, {objective.batch_size:,} sequences a step{per_run}{remat}"
    )
    # On CPUs a checkpoint that is being written is a copy in the same memory.
    saved_bytes = shard_bytes(programs.state_shapes) if topology.kind == "cpu" else 0
    step_flops = num_runs * objective.step_flops()
    train = analyze(programs.compile_train_step, objective.batch_size, step_flops, saved_bytes)
    batch_size = objective.eval_batch_size
    others: dict[str, ProgramReport] = {}
    if train.fits and not train_only:
        forward_flops = num_runs * objective.forward_flops(batch_size)
        others["evaluation"] = analyze(
            programs.compile_eval_step, batch_size, forward_flops, optimizer_bytes + saved_bytes
        )
        if isinstance(programs, StepFunctions):
            shapes = objective.batch_shapes(batch_size)
            predict = functools.partial(programs.compile_predict_step, shapes)
            others["prediction"] = analyze(predict, batch_size, forward_flops, 0)
    return PreflightReport(
        topology=topology.name,
        fits=train.fits and all(report.fits for report in others.values()),
        chips=topology.chips,
        devices=len(devices),
        hbm_limit_bytes=topology.memory_bytes,
        parameter_bytes=shard_bytes(programs.param_shapes),
        optimizer_bytes=optimizer_bytes,
        steps=_num_steps(config, train),
        remat=config.model.remat,
        attention=str(objective.attention_implementation(programs.mesh)),
        train=train,
        **others,
    )


def _num_steps(config: Config, train: ProgramReport) -> int:
    """Return the steps of the run, by the estimated step time for a time budget."""
    if config.total_steps is not None:
        return config.total_steps
    return int((config.budget_seconds or 0) / (train.estimated_step_seconds or math.inf))


def _analyze_program(
    topology: Topology,
    devices: Sequence[jax.Device],
    num_shards: int,
    compile_program: Callable[[], jax.stages.Compiled],
    batch_size: int,
    model_flops: float,
    reserved_bytes: int,
) -> ProgramReport:
    """Compile a program and report on it.

    Args:
      topology: devices to compile for.
      devices: the same as JAX devices.
      num_shards: shards of the batch.
      compile_program: function that compiles it.
      batch_size: sequences of a global batch.
      model_flops: operations of one run on all devices.
      reserved_bytes: bytes of a device that other arrays occupy while it runs.
    """
    start = time.perf_counter()
    try:
        compiled = compile_program()
    except jax.errors.JaxRuntimeError as error:
        needed_bytes = failed_allocation_bytes(error)
        if needed_bytes is None:
            raise
        seconds = time.perf_counter() - start
        return ProgramReport(
            fits=False,
            per_device_batch_size=batch_size // num_shards,
            hbm_bytes=needed_bytes + reserved_bytes,
            activation_bytes=None,
            collectives={},
            model_flops=model_flops,
            compile_seconds=seconds,
        )
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    used_bytes = reserved_bytes + program_bytes(compiled)
    text = compiled.as_text() or ""
    instructions, collectives = read_program(text)
    estimates: dict[str, Any] = {}
    if topology.chip is not None:
        estimates = _estimate_tpu(topology, devices, instructions, collectives, model_flops)
    elif topology.gpu is not None:
        estimates = _estimate_gpu(topology, devices, bytes_accessed(text), collectives, model_flops)
    return ProgramReport(
        fits=used_bytes <= topology.memory_bytes,
        per_device_batch_size=batch_size // num_shards,
        hbm_bytes=used_bytes,
        activation_bytes=memory.temp_size_in_bytes,
        collectives=_sum_by_kind(collectives),
        model_flops=model_flops,
        compile_seconds=seconds,
        **estimates,
    )


def num_config_shards(config: Config, topology: Topology) -> int:
    """Return the number of shards of a batch on the configuration's mesh."""
    mesh = config.mesh
    return num_batch_shards(make_mesh(mesh.data, mesh.fsdp, mesh.tensor, topology.devices()))


def _estimate_tpu(
    topology: Topology,
    devices: Sequence[jax.Device],
    instructions: Iterable[Instruction],
    collectives: Iterable[Collective],
    model_flops: float,
) -> dict[str, Any]:
    peak = flops.peak_flops(devices[0].device_kind)
    chip = topology.chip
    assert chip is not None and peak is not None
    device_peak = peak * topology.chips / len(devices)
    cycles: collections.Counter[str] = collections.Counter()
    kernel_cycles = 0
    for instruction in instructions:
        spent = instruction.cycles
        if not spent:  # the compiler does not estimate custom kernels
            seconds = max(instruction.flops / device_peak, instruction.bytes / chip.hbm_bandwidth)
            spent = round(seconds * chip.clock_hz)
            kernel_cycles += instruction.runs * spent
        cycles[_part_of_op(instruction.op_name)] += instruction.runs * spent
    total = sum(cycles.values())
    bytes_sent = sum(collective.bytes_sent * collective.runs for collective in collectives)
    collective_seconds = bytes_sent / topology.bandwidth if bytes_sent else 0.0
    seconds = total / chip.clock_hz + collective_seconds
    return {
        "estimated_cycles": total,
        "custom_kernel_cycles": kernel_cycles,
        "estimated_collective_seconds": collective_seconds,
        "estimated_step_seconds": seconds,
        "estimated_mfu": model_flops / (seconds * peak * topology.chips),
        "estimated_cycle_shares": {part: n / total for part, n in cycles.most_common()},
    }


def _estimate_gpu(
    topology: Topology,
    devices: Sequence[jax.Device],
    accessed_bytes: int,
    collectives: Iterable[Collective],
    model_flops: float,
) -> dict[str, Any]:
    """Return lower bounds of the time of a run, by FLOPs, memory traffic and bytes sent."""
    peak = flops.peak_flops(devices[0].device_kind)
    assert topology.gpu is not None and peak is not None
    bytes_sent = sum(collective.bytes_sent * collective.runs for collective in collectives)
    bounds = {
        "compute": model_flops / peak / len(devices),
        "memory": accessed_bytes / topology.gpu.memory_bandwidth,
        "links": bytes_sent / topology.bandwidth,
    }
    return {"roofline_seconds": bounds, "estimated_collective_seconds": bounds["links"]}


def _part_of_op(op_name: str) -> str:
    heads = ((f"/{head.name}/", head.cost_name) for head in HEADS.values())
    return next((part for scope, part in (*SCOPE_TO_PART, *heads) if scope in op_name), "other")


def _sum_by_kind(collectives: Iterable[Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for collective in collectives:
        numbers = kinds.setdefault(collective.kind, {"runs": 0, "bytes": 0, "bytes_sent": 0})
        numbers["runs"] += collective.runs
        numbers["bytes"] += collective.runs * collective.bytes
        numbers["bytes_sent"] += collective.runs * collective.bytes_sent
    return kinds
