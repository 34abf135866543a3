"""Preflight: compile the step functions of a run for a topology and report on them."""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from bertjax.config.config import Config, MeshConfig
from bertjax.errors import CommandError
from bertjax.mesh.device_mesh import bfloat16_warning, make_mesh, num_batch_shards
from bertjax.mesh.memory import failed_allocation_bytes, program_bytes, shard_bytes
from bertjax.model.decoder.options import Decoding
from bertjax.preflight.estimates import estimate_gpu, estimate_tpu
from bertjax.preflight.hlo import Collective, find_collectives, instruction_costs, parse_hlo
from bertjax.preflight.memory_traffic import bytes_accessed
from bertjax.preflight.report import PreflightReport, ProgramReport
from bertjax.preflight.topology import Topology
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.objective import Objective
from bertjax.steps.parallel_runs import AnyStepFunctions, ParallelStepFunctions, round_up_runs
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.generation.sources import program_options
from data_pipelines.rampup import BatchSizeRampup

_SEP_ID = 0  # stands for any token: no vocabulary is read
_log = logging.getLogger("bertjax")


def preflight(
    config: Config, topology: Topology, train_only: bool = False, num_runs: int = 0
) -> PreflightReport:
    """Compile the step functions of a configuration for a topology and report on them.

    Data is read only if durations count epochs, or labels are counted.

    Args:
      config: configuration of the run.
      topology: devices to compile for.
      train_only: leave out evaluation and prediction.
      num_runs: parallel runs of a sweep, spread over the devices; 0 for a single run.

    Raises:
      InputError: the configuration does not fit the mesh.
      MissingCompilerError: see `Topology.devices`.
    """
    devices = topology.devices()
    config = _resolve(config)
    objective, functions, num_shards = _make_step_functions(config, topology, devices, num_runs)
    check_batch_sizes(config, objective, functions.mesh, train=True)
    runs = f" of each of {num_runs} runs" if num_runs else ""
    remat = " with remat" if config.model.remat else ""
    _log.info(
        f"compiling for {topology.name}, {objective.batch_size:,} sequences a step{runs}{remat}"
    )
    if warning := bfloat16_warning(config.model.dtype, devices[0]):
        _log.warning(warning)
    analyze = functools.partial(_analyze_function, topology, devices, num_shards)
    # On CPUs checkpoints are written from a copy of the state.
    copy_bytes = shard_bytes(functions.state_shapes) if topology.kind == "cpu" else 0
    optimizer_bytes = shard_bytes(functions.state_shapes.opt_state)
    # Arrays that only the train step reads, such as a teacher, stay during an evaluation.
    teacher_bytes = shard_bytes(functions.train_constant_shapes) - shard_bytes(
        functions.constant_shapes
    )
    flops_factor, batch_size = max(num_runs, 1), objective.batch_size
    train_flops = flops_factor * functions.objective.step_flops()
    train = analyze(functions.compile_train_step, batch_size, train_flops, copy_bytes)
    forward: dict[str, ProgramReport] = {}
    if train.fits and not train_only:
        batch_size = objective.eval_batch_size
        flops = flops_factor * objective.forward_flops(batch_size)
        reserved_bytes = optimizer_bytes + copy_bytes + teacher_bytes
        forward["evaluation"] = analyze(
            functions.compile_eval_step, batch_size, flops, reserved_bytes
        )
        if isinstance(functions, StepFunctions) and objective.generates:
            forward["prediction"] = _analyze_generation(functions, objective, analyze)
        elif isinstance(functions, StepFunctions):
            compile_predict = functools.partial(
                functions.compile_predict_step, objective.batch_shapes(batch_size)
            )
            forward["prediction"] = analyze(compile_predict, batch_size, flops, 0)
    return PreflightReport(
        topology=topology.name,
        fits=train.fits and all(report.fits for report in forward.values()),
        chips=topology.chips,
        devices=len(devices),
        hbm_limit_bytes=topology.memory_bytes,
        parameter_bytes=shard_bytes(functions.param_shapes),
        optimizer_bytes=optimizer_bytes,
        teacher_bytes=teacher_bytes,
        steps=_num_steps(config, train),
        remat=config.model.remat,
        attention=str(objective.attention_implementation(functions.mesh) or "none"),
        train=train,
        mean_batch_fraction=mean_batch_fraction(config),
        **forward,
    )


def num_shards_on(topology: Topology, config: Config) -> int:
    """Return the number of shards of a batch on the mesh of a configuration."""
    mesh = config.mesh
    return num_batch_shards(make_mesh(mesh.data, mesh.fsdp, mesh.tensor, topology.devices()))


def _resolve(config: Config) -> Config:
    num_examples = None
    if config.has_epoch_durations and config.data["dir"]:
        task = registry.find_task(config.task)(config)
        config, num_examples = task.config, task.examples_per_epoch
    return registry.count_labels(config).resolve(num_examples)


def _make_step_functions(
    config: Config, topology: Topology, devices: Sequence[jax.Device], num_runs: int
) -> tuple[Objective, AnyStepFunctions, int]:
    """Return the objective, the step functions and the shards of a run's batch."""
    if not num_runs:
        num_shards = num_shards_on(topology, config)
        objective = registry.make_objective(config, num_shards)
        train_objective = registry.make_train_objective(config, objective)
        return objective, StepFunctions(config, train_objective, devices), num_shards
    config = dataclasses.replace(config, mesh=MeshConfig(1, 1, 1))
    configs = [config] * round_up_runs(num_runs, len(devices))
    objective = registry.make_objective(config, 1)
    train_objective = registry.make_train_objective(config, objective)
    return objective, ParallelStepFunctions(configs, train_objective, devices), 1


def mean_batch_fraction(config: Config) -> float:
    """Return the mean batch size over the steps, relative to the full batch."""
    # Each lasts for as many steps, however many those are.
    sizes = BatchSizeRampup(config.batch_size, config.batch_size_rampup).batch_sizes
    return sum(sizes) / len(sizes) / sizes[-1]


def _num_steps(config: Config, train: ProgramReport) -> int:
    """Return the steps of the run; for a time budget, an estimate."""
    if config.total_steps is not None:
        return config.total_steps
    return int((config.budget_seconds or 0) / (train.estimated_step_seconds or math.inf))


def _analyze_generation(
    functions: StepFunctions, objective: Objective, analyze: Callable[..., ProgramReport]
) -> ProgramReport:
    """Return the report of the generation of targets that have all tokens of the program."""
    options, batch_size = program_options(objective.decoding_options), objective.eval_batch_size
    decoding = Decoding(options, objective.config.model.vocab_size, _SEP_ID)
    shapes = objective.generation_shapes(batch_size)
    compile_generate = functools.partial(functions.compile_generate_step, shapes, decoding)
    flops = objective.generation_flops(batch_size, options)
    report = analyze(compile_generate, batch_size, flops, 0)
    return dataclasses.replace(report, target_tokens=batch_size * options.max_new_tokens)


def _analyze_function(
    topology: Topology,
    devices: Sequence[jax.Device],
    num_shards: int,
    compile_function: Callable[[], jax.stages.Compiled],
    batch_size: int,
    model_flops: float,
    reserved_bytes: int,
) -> ProgramReport:
    """Compile a step function and return its report.

    Args:
      topology: devices to compile for.
      devices: devices of the topology.
      num_shards: shards of a batch.
      compile_function: returns the compiled function.
      batch_size: sequences of a batch.
      model_flops: operations of a call on all devices.
      reserved_bytes: bytes per device in use besides the function's arguments.

    Raises:
      CommandError: the TPU compiler cannot place the function's fusions in VMEM.
    """
    figures: dict[str, Any] = {
        "per_device_batch_size": batch_size // num_shards,
        "model_flops": model_flops,
    }
    start = time.perf_counter()
    try:
        compiled = compile_function()
    except jax.errors.JaxRuntimeError as error:
        needed = failed_allocation_bytes(error)
        if needed is None:
            if "Ran out of memory in memory space vmem" in str(error):
                raise CommandError(
                    f"topology={topology.name}: the TPU compiler exceeds VMEM, the memory of a "
                    "core, in a fusion. Use another batch_size, max_seq_length or libtpu."
                ) from error
            raise
        figures["compile_seconds"] = time.perf_counter() - start
        return ProgramReport(fits=False, hbm_bytes=needed + reserved_bytes, **figures)
    figures["compile_seconds"] = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    hbm_bytes = reserved_bytes + program_bytes(compiled)
    module = parse_hlo(compiled.as_text() or "")
    collectives = find_collectives(module)
    bytes_sent = sum(collective.bytes_sent * collective.count for collective in collectives)
    if topology.tpu is not None:
        costs = instruction_costs(module)
        figures |= estimate_tpu(topology, devices, costs, bytes_sent, model_flops)
    elif topology.gpu is not None:
        traffic = bytes_accessed(module)
        figures |= estimate_gpu(topology, devices, traffic, bytes_sent, model_flops)
    return ProgramReport(
        fits=hbm_bytes <= topology.memory_bytes,
        hbm_bytes=hbm_bytes,
        activation_bytes=memory.temp_size_in_bytes,
        collectives=_sum_by_kind(collectives),
        **figures,
    )


def _sum_by_kind(collectives: Iterable[Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for collective in collectives:
        sums = kinds.setdefault(collective.kind, {"count": 0, "bytes": 0, "bytes_sent": 0})
        sums["count"] += collective.count
        sums["bytes"] += collective.count * collective.bytes
        sums["bytes_sent"] += collective.count * collective.bytes_sent
    return kinds
