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
from bertjax.mesh.memory import program_bytes, shard_bytes, short_of
from bertjax.mesh.sharding import make_mesh, row_parts
from bertjax.model import flops
from bertjax.model.heads import HEADS
from bertjax.preflight.hlo import Collective, Instruction, read_program
from bertjax.preflight.topology import Topology
from bertjax.preflight.traffic import bytes_moved
from bertjax.preflight.verdict import Judged, Verdict
from bertjax.steps.parallel_runs import Together, rounded_up
from bertjax.steps.step_functions import Programs
from bertjax.tasks import registry
from bertjax.training.memory_budget import smaller

_log = logging.getLogger("bertjax")

# Scopes of an operation's name -> the part of the step that it belongs to; the first counts.
PARTS = (
    ("optimizer", "optimizer"),
    ("dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("_norm", "layer norm"),
    ("attention", "attention"),
    ("feed_forward", "feed-forward"),
    ("pooler", "pooler"),
)
_LINES = 8  # tries after which a search believes in no line
_FURTHER = 16  # times what fits: no line is believed further


def preflight(
    config: Config, topology: Topology, train_alone: bool = False, runs: int = 0
) -> Verdict:
    """Compiles the programs of a configuration for a topology.

    It needs no data, but where durations count epochs.

    Args:
      train_alone: leaves evaluation and prediction out.
      runs: of a sweep, which are trained at once, as many on each device.
    Raises:
      InputError: the configuration does not fit the mesh.
      NoCompiler: see `Topology.devices`.
    """
    devices = topology.devices()
    examples = None
    if config.counts_epochs and config.data["dir"]:
        task = registry.find(config.task)(config)
        config, examples = task.config, task.examples_per_epoch
    config = config.resolve(examples)
    programs: Programs
    if runs:
        config = dataclasses.replace(config, mesh=MeshConfig(1, 1, 1))
        objective, parts = registry.objective(config, 1), 1
        programs = Together([config] * rounded_up(runs, len(devices)), objective, devices)
    else:
        objective = registry.objective(config, _row_parts(config, topology))
        programs = Programs(config, objective, devices)
        parts = row_parts(programs.mesh)
    programs.check_rows(train=True)
    times = max(runs, 1)
    optimizer = shard_bytes(programs.state.opt_state)
    judge = functools.partial(_judge, topology, devices, parts)
    remat = " with remat" if config.model.remat else ""
    of_runs = f" of each of {runs} runs" if runs else ""
    _log.info(f"compiling for {topology.name}, {objective.rows:,} rows a step{of_runs}{remat}")
    saved = (
        shard_bytes(programs.state) if topology.kind == "cpu" else 0
    )  # a copy, see `runs.memory`
    train = judge(programs.train, objective.rows, times * objective.step_flops(), saved)
    rows = objective.eval_rows
    others: dict[str, Judged] = {}
    if train.fits and not train_alone:
        forward = times * objective.forward_flops(rows)
        others["evaluation"] = judge(programs.evaluate, rows, forward, optimizer + saved)
        if not runs:
            predict = functools.partial(programs.predict, objective.batch_shapes(rows))
            others["prediction"] = judge(predict, rows, forward, 0)
    return Verdict(
        topology=topology.name,
        fits=train.fits and all(each.fits for each in others.values()),
        chips=topology.chips,
        devices=len(devices),
        hbm_limit_bytes=topology.memory,
        parameter_bytes=shard_bytes(programs.params),
        optimizer_bytes=optimizer,
        steps=_steps(config, train),
        remat=config.model.remat,
        attention=str(programs.attention()),
        train=train,
        **others,
    )


def _steps(config: Config, train: Judged) -> int:
    """Of the run; where the clock ends it, as many as the estimate gives it."""
    if config.total_steps is not None:
        return config.total_steps
    return int((config.budget or 0) / (train.estimated_step_seconds or math.inf))


def _judge(
    topology: Topology,
    devices: Sequence[jax.Device],
    parts: int,
    compile_program: Callable[[], jax.stages.Compiled],
    rows: int,
    model_flops: float,
    beside: int,
) -> Judged:
    """Compiles a program and reads what came of it.

    Args:
      parts: into which the rows are split.
      beside: bytes of a device that are taken while it runs, and that it does not see.
    """
    began = time.perf_counter()
    try:
        compiled = compile_program()
    except jax.errors.JaxRuntimeError as error:
        needed = short_of(error)
        if needed is None:
            raise
        seconds = time.perf_counter() - began
        return Judged(False, rows // parts, needed + beside, None, {}, model_flops, seconds)
    seconds = time.perf_counter() - began
    memory: Any = compiled.memory_analysis()
    used = beside + program_bytes(compiled)
    text = compiled.as_text() or ""
    instructions, exchanges = read_program(text)
    estimates: dict[str, Any] = {}
    if topology.chip is not None:
        estimates = _estimate(topology, devices, instructions, exchanges, model_flops)
    elif topology.gpu is not None:
        estimates = _roofline(topology, devices, bytes_moved(text), exchanges, model_flops)
    return Judged(
        fits=used <= topology.memory,
        rows_per_device=rows // parts,
        hbm_bytes=used,
        activation_bytes=memory.temp_size_in_bytes,
        collectives=_by_kind(exchanges),
        model_flops=model_flops,
        compile_seconds=seconds,
        **estimates,
    )


def remedies(config: Config, topology: Topology) -> Iterator[tuple[str, Verdict]]:
    """Overrides that need less memory, each with what it comes to, the mildest first.

    Ends with the first that fits, or when a device is left with a row at a time.
    """
    for text, less in smaller(config, _row_parts(config, topology), topology.kind == "cpu"):
        verdict = preflight(less, topology, train_alone=True)
        yield text, verdict
        if verdict.fits:
            return


def largest_batch(config: Config, topology: Topology, remat: bool) -> Verdict | None:
    """The most rows a device that fit, to one in a hundred; the first try are the configuration's.

    Returns:
      The verdict on them; None if not even one fits for each part of the accumulation.
    """
    config = _with_remat(config, remat)
    least = config.accumulation * _row_parts(config, topology)
    best, fits, fails = None, 0, None
    over: dict[int, int] = {}
    times = max(1, config.batch_size // least)
    while fails is None or fails - fits > _step(fits):
        more = dataclasses.replace(config, batch_size=times * least)
        verdict = preflight(more, topology, train_alone=True)
        over[times] = verdict.train.hbm_bytes - verdict.hbm_limit_bytes
        if verdict.fits:
            best, fits = verdict, times
        else:
            fails = times
        times = _next_try(over, fits, fails)
    return best


def _next_try(over: Mapping[int, int], fits: int, fails: int | None) -> int:
    """What to try next for the most that fits: few tries, as each compiles a program.

    Memory is nearly a line in the rows, so that the line through two tries, one on each side of the
    limit where there are, meets it nearly where the limit is. Where it turns out to be no line,
    doubling and bisection end the search.

    Args:
      over: bytes above the limit of what was tried.
    """
    times = 2 * fits if fails is None else (fits + fails) // 2
    if 2 <= len(over) < _LINES:
        nearest = sorted(over, key=lambda each: abs(over[each]))
        x, y = (fits, fails) if fits and fails else nearest[:2]
        slope = (over[y] - over[x]) / (y - x)
        if slope > 0:
            most = _FURTHER * fits if fails is None else fails - _step(fits)
            times = min(math.floor(x - over[x] / slope), most)
    return max(fits + _step(fits), times)


def _step(fits: int) -> int:
    """How far above what fits may be unknown: one in a hundred."""
    return max(1, fits // 100)


def _row_parts(config: Config, topology: Topology) -> int:
    mesh = config.mesh
    return row_parts(make_mesh(mesh.data, mesh.fsdp, mesh.model, topology.devices()))


def _with_remat(config: Config, remat: bool) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))


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


def _roofline(
    topology: Topology,
    devices: Sequence[jax.Device],
    moved: int,
    exchanges: Iterable[Collective],
    model_flops: float,
) -> dict[str, Any]:
    """What the step takes at the least, by what it computes, moves and sends, each at its peak."""
    peak = flops.peak_flops(devices[0].device_kind)
    assert topology.gpu is not None and peak is not None
    sent = sum(each.sent * each.runs for each in exchanges)
    bounds = {
        "compute": model_flops / peak / len(devices),
        "memory": moved / topology.gpu.bandwidth,
        "links": sent / topology.bandwidth,
    }
    return {"least_seconds": bounds, "estimated_collective_seconds": bounds["links"]}


def _part(op_name: str) -> str:
    heads = ((f"/{head.name}/", head.part) for head in HEADS.values())
    return next((part for scope, part in (*PARTS, *heads) if scope in op_name), "other")


def _by_kind(exchanges: Iterable[Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for each in exchanges:
        numbers = kinds.setdefault(each.kind, {"runs": 0, "bytes": 0, "bytes_sent": 0})
        numbers["runs"] += each.runs
        numbers["bytes"] += each.runs * each.bytes
        numbers["bytes_sent"] += each.runs * each.sent
    return kinds
