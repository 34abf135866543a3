"""The run summary, printed before compilation, and the next commands, printed at the end."""

import math
import shlex
from collections.abc import Iterator

import jax
from etils import epath

from bertjax.checkpointing.retention import BestMetric
from bertjax.config.config import Config
from bertjax.config.user_functions import USER_FUNCTIONS
from bertjax.mesh.device_mesh import bfloat16_warning, num_batch_shards
from bertjax.mesh.memory import format_bytes, shard_bytes
from bertjax.model.heads import HEADS
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.tasks import registry
from bertjax.tasks.pipeline import predict_arguments
from bertjax.tasks.task import Task
from data_pipelines.parallel import usable_cores

_MAX_UNUSED_ROWS = 1024  # embeddings without a token
_MAX_EPOCHS = 200  # even small data sets need fewer
_MAX_FINAL_LR_FRACTION = 0.5  # of the peak, at the end of a decay


def summarize_run(
    config: Config,
    task: Task,
    step_functions: AnyStepFunctions,
    workdir: epath.Path,
    step: int,
    num_runs: int,
) -> str:
    """Return the run summary: one line a topic, configuration warnings at the end.

    Args:
      config: resolved configuration.
      task: the task with its data.
      step_functions: the functions to compile.
      workdir: directory of the run.
      step: step of the newest checkpoint; 0 without one.
      num_runs: number of parallel runs.
    """
    state_bytes = format_bytes(shard_bytes(step_functions.state_shapes))
    lines = {
        "devices": _devices(step_functions),
        "model": _model(config, task, step_functions, num_runs),
        "data": task.data_summary + _epochs(config, task),
        "batch": _batch(config, task, step_functions, num_runs),
        "memory": f"{state_bytes} a device for parameters and optimizer",
        "schedule": _schedule(config),
        "steps": _steps(config, bool(task.eval_sets())),
        "workdir": f"{workdir}, " + (f"which has step {step:,}" if step else "new"),
    }
    if name := config.best_metric:
        metric = BestMetric(name, config.greater_is_better)
        extreme = "lowest" if metric.is_minimized else "highest"
        lines["best"] = f"the checkpoint with the {extreme} {name} is kept and used"
    dtype_warning = bfloat16_warning(config.model.dtype, step_functions.mesh.devices.flat[0])
    warnings = [*config_warnings(config, task), *filter(None, [dtype_warning])]
    notes = [("note", warning) for warning in warnings]
    return "\n".join(f"{name:9} {line}" for name, line in [*lines.items(), *notes])


def config_warnings(config: Config, task: Task) -> Iterator[str]:
    """Yield what is probably a mistake in a resolved configuration, each with a fix."""
    num_tokens, rows = len(task.tokenizer.tokens), config.model.vocab_size
    if not config.init and rows - num_tokens > _MAX_UNUSED_ROWS:
        yield (
            f"the vocabulary has {num_tokens:,} tokens, and the model {rows:,} embeddings: "
            f"--config.model.vocab_size={num_tokens} leaves out those without a token."
        )
    optimizer, steps = config.optimizer_config(), config.total_steps
    if steps is None:
        return
    final = float(learning_rate_schedule(optimizer)(steps)) / optimizer.learning_rate
    if optimizer.warmup_steps >= steps:
        yield (
            f"the warm-up of {optimizer.warmup_steps:,} steps is longer than the run of {steps:,}, "
            "so the learning rate never reaches its peak: shorten it, "
            "--config.optimizer.warmup=10% --config.optimizer.decay_steps=0."
        )
    elif optimizer.total_steps > steps and final > _MAX_FINAL_LR_FRACTION:
        yield (
            f"the learning rate decays until step {optimizer.total_steps:,} and the run ends at "
            f"{steps:,}, at {final:.0%} of the peak: --config.optimizer.decay_steps=0 ends both "
            "at once."
        )
    patience = config.early_stopping
    if patience and isinstance(config.eval_every, int) and steps <= patience * config.eval_every:
        yield (
            f"early_stopping={patience} cannot end a run of {steps:,} steps with evaluations every "
            f"{config.eval_every:,}: --config.eval_every=5% evaluates more often."
        )
    epochs = _num_epochs(config, task, steps)
    if epochs > _MAX_EPOCHS:
        yield (
            f"{epochs:,.0f} epochs are many, and the model will overfit: use fewer --config.steps, "
            "or more data."
        )


def summarize_result(workdir: epath.Path, checkpoint: epath.Path, task: Task) -> str:
    """Return where the result is, and the next commands."""
    paths = str(workdir), str(workdir / "scores"), f"{workdir.name}-hf"
    quoted, scores, exported = map(shlex.quote, paths)
    model = task.config.model
    is_language_model = "mlm" in task.objective.heads and model.direction != "bidirectional"
    can_predict = model.continues_text or not is_language_model
    sample = ""
    if can_predict:
        pipeline = task.pipeline_class(task.config)(task.objective, task.tokenizer, task.labels)
        sample = predict_arguments(pipeline.sample_input())
    custom = registry.task_argument(task.config.task)
    functions = "".join(
        f" --config.{name}={shlex.quote(function)}"
        for name in USER_FUNCTIONS
        if (function := getattr(task.config, name))
    )
    commands = {
        f"evaluate --checkpoint {quoted} --output {scores}{functions}": bool(task.eval_sets()),
        f"predict --checkpoint {quoted} {sample}": can_predict,
        f"report {quoted}": True,
        f"convert --to hf {quoted} {exported}": not model.unpublished_field,
    }
    lines = [f"  bertjax {command}{custom}" for command, possible in commands.items() if possible]
    return "\n".join([f"done; the model is in {checkpoint}. Next:", *lines])


def _devices(step_functions: AnyStepFunctions) -> str:
    devices = step_functions.mesh.devices.flatten()
    text = f"{len(devices)} {devices[0].device_kind}"
    if devices[0].platform == "cpu":
        text += f" ({usable_cores()} cores)"
    if jax.process_count() > 1:
        text += f" in {jax.process_count()} processes"
    axes = [f"{name}={size}" for name, size in step_functions.mesh.shape.items() if size > 1]
    return f"{text}, mesh {' '.join(axes)}" if axes else text


def _model(config: Config, task: Task, step_functions: AnyStepFunctions, num_runs: int) -> str:
    model = config.model
    leaves = jax.tree.leaves(step_functions.param_shapes)
    num_params = sum(math.prod(leaf.shape) for leaf in leaves) // num_runs
    shape = f"{model.num_hidden_layers} layers of {model.hidden_size}"
    heads = " and ".join(HEADS[name].display_name for name in task.objective.heads) or "no head"
    init = f", initialized from {config.init}" if config.init else ""
    return f"{shape}, {num_params:,} parameters, {model.dtype}; {heads}{init}"


def _epochs(config: Config, task: Task) -> str:
    steps = config.total_steps
    if steps is None:
        steps_per_epoch = math.ceil(task.examples_per_epoch / config.batch_size)
        return f"; an epoch is {steps_per_epoch:,} steps"
    epochs = _num_epochs(config, task, steps)
    return f"; the run has {epochs:,.{0 if epochs >= 10 else 2}f} epochs"


def _num_epochs(config: Config, task: Task, steps: int) -> float:
    """Return the number of epochs in the first `steps` steps.

    Batch sizes and epochs both count examples in fine-tuning, sequences in pre-training.
    """
    return config.rampup.sequences_before(steps) / task.examples_per_epoch


def _batch(config: Config, task: Task, step_functions: AnyStepFunctions, num_runs: int) -> str:
    batch_size = task.objective.batch_size
    text = f"{batch_size:,} sequences of {config.max_seq_length} tokens"
    if batch_size != config.batch_size:
        text = f"{config.batch_size:,} examples in {text}"
    if config.batch_size_rampup > 1:
        text += f", {config.rampup.batch_sizes[0]:,} at first"
    # The batch of a parallel run is on one device.
    shards = num_batch_shards(step_functions.mesh) if num_runs == 1 else 1
    if shards * config.gradient_accumulation_steps > 1:
        microbatch = batch_size // shards // config.gradient_accumulation_steps
        text += f", {microbatch:,} at once on a device"
    return f"{num_runs} parallel runs, each {text}" if num_runs > 1 else text


def _schedule(config: Config) -> str:
    optimizer = config.optimizer_config()
    text = f"{optimizer.name} at {optimizer.learning_rate:g}, {optimizer.schedule}"
    warmup, cooldown = optimizer.warmup_steps, optimizer.cooldown_steps
    if config.budget_seconds is not None:  # durations are fractions of the time budget
        fractions = {"warm-up": warmup, "cool-down": cooldown}
        parts = [f"{name} {n:.0%} of the time" for name, n in fractions.items() if n]
        return ", ".join([text, *parts])
    text += f", warm-up {warmup:,} steps"
    if optimizer.schedule == "wsd":
        return f"{text}, cool-down {cooldown:,}"
    after = optimizer.total_steps - (config.total_steps or 0)
    beyond = f", {after:,} after the run" if after > 0 else ""
    return f"{text}, to 0 at step {optimizer.total_steps:,}{beyond}"


def _steps(config: Config, evaluates: bool) -> str:
    durations = {
        "": config.steps,
        "metrics every ": config.log_every,
        "checkpoint every ": config.checkpoint_every,
        "evaluation every ": config.eval_every if evaluates else None,
    }
    parts = (
        f"{name}{value:,}" if isinstance(value, int) else f"{name}{value}"
        for name, value in durations.items()
        if value is not None
    )
    return ", ".join([*parts, *([] if evaluates else ["no eval data"])])
