"""Will it fit, how fast will it be: the train step compiled for a topology that is not here.

Each program that a run needs is compiled as the run compiles it, and read.
"""

import collections
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from bertjax.training.memory_budget import memory_fixes

_log = logging.getLogger("bertjax")

# Scopes of an operation's name -> the part of the step that it belongs to; the first counts.
SCOPE_TO_PART = (
    ("optimizer", "optimizer"),
    ("dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("_norm", "layer norm"),
    ("attention", "attention"),
    ("feed_forward", "feed-forward"),
    ("pooler", "pooler"),
)
_MAX_LINEAR_TRIES = 8  # tries after which a search believes in no line
_MAX_EXTRAPOLATION = 16  # times what fits: no line is believed further


def preflight(
    config: Config, topology: Topology, train_only: bool = False, runs: int = 0
) -> PreflightReport:
    """Compiles the programs of a configuration for a topology.

    It needs no data, but where durations count epochs.

    Args:
      train_only: leaves evaluation and prediction out.
      runs: of a sweep, which are trained at once, as many on each device.

    Raises:
      InputError: the configuration does not fit the mesh.
      NoCompiler: see `Topology.devices`.
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
        objective, parts = registry.make_objective(config, 1), 1
        programs = ParallelStepFunctions(
            [config] * round_up_runs(runs, len(devices)), objective, devices
        )
    else:
        objective = registry.make_objective(config, _row_parts(config, topology))
        programs = StepFunctions(config, objective, devices)
        parts = num_batch_shards(programs.mesh)
    check_batch_sizes(config, objective, programs.mesh, train=True)
    times = max(runs, 1)
    optimizer = shard_bytes(programs.state_shapes.opt_state)
    judge = functools.partial(_analyze_program, topology, devices, parts)
    remat = " with remat" if config.model.remat else ""
    of_runs = f" of each of {runs} runs" if runs else ""
    _log.info(
        f"compiling for {topology.name}, {objective.batch_size:,} rows a step{of_runs}{remat}"
    )
    saved = (
        shard_bytes(programs.state_shapes) if topology.kind == "cpu" else 0
    )  # a copy, see `runs.memory`
    train = judge(
        programs.compile_train_step, objective.batch_size, times * objective.step_flops(), saved
    )
    rows = objective.eval_batch_size
    others: dict[str, ProgramReport] = {}
    if train.fits and not train_only:
        forward = times * objective.forward_flops(rows)
        others["evaluation"] = judge(programs.compile_eval_step, rows, forward, optimizer + saved)
        if isinstance(programs, StepFunctions):
            predict = functools.partial(programs.compile_predict_step, objective.batch_shapes(rows))
            others["prediction"] = judge(predict, rows, forward, 0)
    return PreflightReport(
        topology=topology.name,
        fits=train.fits and all(each.fits for each in others.values()),
        chips=topology.chips,
        devices=len(devices),
        hbm_limit_bytes=topology.memory,
        parameter_bytes=shard_bytes(programs.param_shapes),
        optimizer_bytes=optimizer,
        steps=_num_steps(config, train),
        remat=config.model.remat,
        attention=str(objective.attention_implementation(programs.mesh)),
        train=train,
        **others,
    )


def _num_steps(config: Config, train: ProgramReport) -> int:
    """Of the run; where the clock ends it, as many as the estimate gives it."""
    if config.total_steps is not None:
        return config.total_steps
    return int((config.budget_seconds or 0) / (train.estimated_step_seconds or math.inf))


def _analyze_program(
    topology: Topology,
    devices: Sequence[jax.Device],
    parts: int,
    compile_program: Callable[[], jax.stages.Compiled],
    rows: int,
    model_flops: float,
    beside: int,
) -> ProgramReport:
    """Compiles a program and reads what came of it.

    Args:
      parts: into which the rows are split.
      beside: bytes of a device that are taken while it runs, and that it does not see.
    """
    began = time.perf_counter()
    try:
        compiled = compile_program()
    except jax.errors.JaxRuntimeError as error:
        needed = failed_allocation_bytes(error)
        if needed is None:
            raise
        seconds = time.perf_counter() - began
        return ProgramReport(False, rows // parts, needed + beside, None, {}, model_flops, seconds)
    seconds = time.perf_counter() - began
    memory: Any = compiled.memory_analysis()
    used = beside + program_bytes(compiled)
    text = compiled.as_text() or ""
    instructions, collectives = read_program(text)
    estimates: dict[str, Any] = {}
    if topology.chip is not None:
        estimates = _estimate_tpu(topology, devices, instructions, collectives, model_flops)
    elif topology.gpu is not None:
        estimates = _estimate_gpu(topology, devices, bytes_accessed(text), collectives, model_flops)
    return ProgramReport(
        fits=used <= topology.memory,
        per_device_batch_size=rows // parts,
        hbm_bytes=used,
        activation_bytes=memory.temp_size_in_bytes,
        collectives=_sum_by_kind(collectives),
        model_flops=model_flops,
        compile_seconds=seconds,
        **estimates,
    )


def suggested_fixes(config: Config, topology: Topology) -> Iterator[tuple[str, PreflightReport]]:
    """Overrides that need less memory, each with what it comes to, the mildest first.

    Ends with the first that fits, or when one sequence per device is left.
    """
    for text, less in memory_fixes(config, _row_parts(config, topology), topology.kind == "cpu"):
        verdict = preflight(less, topology, train_only=True)
        yield text, verdict
        if verdict.fits:
            return


def largest_batch(config: Config, topology: Topology, remat: bool) -> PreflightReport | None:
    """The most rows a device that fit, to one in a hundred; the first try are the configuration's.

    Returns:
      The verdict on them; None if not even one fits for each part of the accumulation.
    """
    config = _with_remat(config, remat)
    least = config.gradient_accumulation_steps * _row_parts(config, topology)
    best, fits, smallest_failure = None, 0, None
    over: dict[int, int] = {}
    times = max(1, config.batch_size // least)
    while smallest_failure is None or smallest_failure - fits > _search_step(fits):
        more = dataclasses.replace(config, batch_size=times * least)
        verdict = preflight(more, topology, train_only=True)
        over[times] = verdict.train.hbm_bytes - verdict.hbm_limit_bytes
        if verdict.fits:
            best, fits = verdict, times
        else:
            smallest_failure = times
        times = _next_try(over, fits, smallest_failure)
    return best


def _next_try(over: Mapping[int, int], fits: int, smallest_failure: int | None) -> int:
    """What to try next for the most that fits: few tries, as each compiles a program.

    Memory is nearly a line in the rows, so that the line through two tries, one on each side of the
    limit where there are, meets it nearly where the limit is. Where it turns out to be no line,
    doubling and bisection end the search.

    Args:
      over: bytes above the limit of what was tried.
    """
    times = 2 * fits if smallest_failure is None else (fits + smallest_failure) // 2
    if 2 <= len(over) < _MAX_LINEAR_TRIES:
        nearest = sorted(over, key=lambda each: abs(over[each]))
        x, y = (fits, smallest_failure) if fits and smallest_failure else nearest[:2]
        slope = (over[y] - over[x]) / (y - x)
        if slope > 0:
            most = (
                _MAX_EXTRAPOLATION * fits
                if smallest_failure is None
                else smallest_failure - _search_step(fits)
            )
            times = min(math.floor(x - over[x] / slope), most)
    return max(fits + _search_step(fits), times)


def _search_step(fits: int) -> int:
    """How far above what fits may be unknown: one in a hundred."""
    return max(1, fits // 100)


def _row_parts(config: Config, topology: Topology) -> int:
    mesh = config.mesh
    return num_batch_shards(make_mesh(mesh.data, mesh.fsdp, mesh.tensor, topology.devices()))


def _with_remat(config: Config, remat: bool) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


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
    of_device = peak * topology.chips / len(devices)
    cycles: collections.Counter[str] = collections.Counter()
    charged = 0
    for each in instructions:
        spent = each.cycles
        if not spent:  # the compiler does not see what it takes
            seconds = max(each.flops / of_device, each.bytes / chip.hbm_bandwidth)
            spent = round(seconds * chip.clock_hz)
            charged += each.runs * spent
        cycles[_part_of_op(each.op_name)] += each.runs * spent
    total = sum(cycles.values())
    sent = sum(each.sent * each.runs for each in collectives)
    waiting = sent / topology.bandwidth if sent else 0.0
    seconds = total / chip.clock_hz + waiting
    return {
        "estimated_cycles": total,
        "custom_kernel_cycles": charged,
        "estimated_collective_seconds": waiting,
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
    """What the step takes at the least, by what it computes, moves and sends, each at its peak."""
    peak = flops.peak_flops(devices[0].device_kind)
    assert topology.gpu is not None and peak is not None
    sent = sum(each.sent * each.runs for each in collectives)
    bounds = {
        "compute": model_flops / peak / len(devices),
        "memory": accessed_bytes / topology.gpu.bandwidth,
        "links": sent / topology.bandwidth,
    }
    return {"roofline_seconds": bounds, "estimated_collective_seconds": bounds["links"]}


def _part_of_op(op_name: str) -> str:
    heads = ((f"/{head.name}/", head.cost_name) for head in HEADS.values())
    return next((part for scope, part in (*SCOPE_TO_PART, *heads) if scope in op_name), "other")


def _sum_by_kind(collectives: Iterable[Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for each in collectives:
        numbers = kinds.setdefault(each.kind, {"runs": 0, "bytes": 0, "bytes_sent": 0})
        numbers["runs"] += each.runs
        numbers["bytes"] += each.runs * each.bytes
        numbers["bytes_sent"] += each.runs * each.sent
    return kinds
