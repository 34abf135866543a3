"""What a run says of itself to a person: before it compiles, and at its end."""

import math
import os
import shlex
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from bertjax.config.config import Config
from bertjax.mesh.memory import format_bytes, shard_bytes
from bertjax.mesh.sharding import num_batch_shards
from bertjax.model.heads import HEADS
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.tasks.pipeline import predict_arguments
from bertjax.tasks.task import Task

_MAX_EPOCHS = 200  # of which even small data need fewer
_MAX_FINAL_LR_FRACTION = 0.5  # of the peak, more of which a decay is not to leave at the end


def summarize_run(
    config: Config,
    task: Task,
    programs: AnyStepFunctions,
    workdir: epath.Path,
    step: int,
    runs: int,
) -> str:
    """The page that a run begins with, a line for each thing, what is odd at its end.

    Args:
      config: resolved.
      step: of the newest checkpoint; 0 where there is none.
      runs: how many are trained at once.
    """
    parts = {
        "devices": _devices(programs),
        "model": _model(config, task, programs, runs),
        "data": task.data_summary + _epochs(config, task),
        "rows": _rows(config, task, programs, runs),
        "memory": f"{format_bytes(shard_bytes(programs.state_shapes))} a device for parameters and optimizer",
        "schedule": _schedule(config),
        "steps": _steps(config),
        "workdir": f"{workdir}, " + (f"which has step {step:,}" if step else "new"),
    }
    lines = [f"{name:9} {said}" for name, said in parts.items()]
    return "\n".join([*lines, *(f"note      {each}" for each in config_warnings(config, task))])


def config_warnings(config: Config, task: Task) -> Iterator[str]:
    """What of a resolved configuration can hardly be meant, each with a cure."""
    optimizer, steps = config.optimizer_config(), config.total_steps
    if steps is None:
        return
    left = float(learning_rate_schedule(optimizer)(steps)) / optimizer.learning_rate
    if optimizer.warmup_steps >= steps:
        yield (
            f"the warm-up of {optimizer.warmup_steps:,} steps is longer than the run of {steps:,}, "
            "whose rate never comes to its peak: shorten it, --config.optimizer.warmup=10%, "
            "--config.optimizer.decay_steps=0."
        )
    elif optimizer.total_steps > steps and left > _MAX_FINAL_LR_FRACTION:
        yield (
            f"the rate decays until step {optimizer.total_steps:,} and the run ends at {steps:,}, "
            f"with {left:.0%} of its peak: --config.optimizer.decay_steps=0 ends both at once."
        )
    epochs = config.rampup.sequences_before(steps) / task.examples_per_epoch
    if epochs > _MAX_EPOCHS:
        yield (
            f"{epochs:,.0f} epochs are many: a model learns by heart what it sees so often; give "
            "fewer --config.steps, or more data."
        )


def summarize_result(workdir: epath.Path, checkpoint: epath.Path, task: Task) -> str:
    """Where the result is, and what to do with it."""
    paths = str(workdir), str(workdir / "scores"), f"{workdir.name}-hf"
    place, scores, exported = map(shlex.quote, paths)
    pipeline = task.pipeline_class(task.config)(task.objective, task.tokenizer, task.labels)
    sample = predict_arguments(pipeline.sample_input())
    commands = {
        f"evaluate --checkpoint {place} --output {scores}": bool(task.eval_sets()),
        f"predict --checkpoint {place} {sample}": True,
        f"report {place}": True,
        f"convert --to hf {place} {exported}": not task.config.model.bilstm,
    }
    wanted = [f"  bertjax {command}" for command, possible in commands.items() if possible]
    return "\n".join([f"done; the model is in {checkpoint}. Next:", *wanted])


def _devices(programs: AnyStepFunctions) -> str:
    devices = programs.mesh.devices.flatten()
    kind = devices[0].device_kind
    said = f"{len(devices)} {kind}"
    if devices[0].platform == "cpu":
        said += f" ({os.cpu_count()} cores)"
    if jax.process_count() > 1:
        said += f" on {jax.process_count()} hosts"
    axes = [f"{name}={count}" for name, count in programs.mesh.shape.items() if count > 1]
    return f"{said}, mesh {' '.join(axes)}" if axes else said


def _model(config: Config, task: Task, programs: AnyStepFunctions, runs: int) -> str:
    model = config.model
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(programs.param_shapes)) // runs
    heads = " and ".join(HEADS[name].part for name in task.objective.heads)
    said = f"{model.num_hidden_layers} layers of {model.hidden_size}, {count:,} parameters, {model.dtype}"
    begun = f", begins with {config.init}" if config.init else ""
    return f"{said}; {heads}{begun}"


def _epochs(config: Config, task: Task) -> str:
    steps, each = config.total_steps, task.examples_per_epoch
    if steps is None:
        return f"; an epoch is {math.ceil(each / config.batch_size):,} steps"
    epochs = config.rampup.sequences_before(steps) / each
    return f"; the run sees {epochs:,.{0 if epochs >= 10 else 2}f} epochs"


def _rows(config: Config, task: Task, programs: AnyStepFunctions, runs: int) -> str:
    rows = task.objective.batch_size
    said = f"{rows:,} a step of {config.max_seq_length} pieces"
    if rows != config.batch_size:
        said = f"{config.batch_size:,} examples a step in {said.replace(' a step', ' rows')}"
    if config.batch_size_rampup > 1:
        said += f", {config.rampup.batch_sizes[0]:,} at first"
    parts = num_batch_shards(programs.mesh) if runs == 1 else 1
    if parts * config.gradient_accumulation_steps > 1:
        said += f", {rows // parts // config.gradient_accumulation_steps:,} at once on a device"
    return f"{runs} runs at once, each {said}" if runs > 1 else said


def _schedule(config: Config) -> str:
    optimizer, given = config.optimizer_config(), config.optimizer
    said = f"{optimizer.name} at {optimizer.learning_rate:g}, {optimizer.schedule}"
    if config.budget_seconds is not None:
        shares = {"warm-up": optimizer.warmup_steps, "cool-down": optimizer.cooldown_steps}
        parts = [f"{name} {n:.0%} of the time" for name, n in shares.items() if n]
        return ", ".join([said, *parts])
    said += f", warm-up {int(given.warmup):,} steps"
    if optimizer.schedule != "wsd":
        after = optimizer.total_steps - (config.total_steps or 0)
        beyond = f", {after:,} after the run" if after > 0 else ""
        return f"{said}, to 0 at step {optimizer.total_steps:,}{beyond}"
    return f"{said}, cool-down {int(given.cooldown):,}"


def _steps(config: Config) -> str:
    said = f"{config.steps:,}" if config.budget_seconds is None else str(config.steps)
    every: list[Any] = [
        (name, getattr(config, f"{field}_every"))
        for name, field in (("metrics", "log"), ("checkpoint", "checkpoint"), ("score", "eval"))
    ]
    told = (
        f"{name} every {n:,}" if isinstance(n, int) else f"{name} every {n}" for name, n in every
    )
    return ", ".join([said, *told])
