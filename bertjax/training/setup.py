"""The trainer of one run, from its configuration."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from bertjax.checkpointing.lookup import has_checkpoint
from bertjax.config.config import Config
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import Sums, means
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, HostBatch, Task
from bertjax.training.evaluator import make_evaluator
from bertjax.training.trackers import Tracker
from bertjax.training.trainer import Trainer
from bertjax.workdir.workdir import check_processes
from data_pipelines.paths import as_path


def make_trainer(
    config: Config,
    workdir: epath.PathLike,
    trackers: Sequence[Tracker] = (),
    start_time: float | None = None,
) -> Trainer:
    """Return the trainer of a run, after everything that can be checked before compilation.

    Args:
      config: configuration, not yet resolved.
      workdir: a new directory, or that of a run to resume.
      trackers: further receivers of the metrics.
      start_time: Unix time at which the command started; now by default.

    Raises:
      InputError: configuration, data, `init` and workdir do not fit each other.
    """
    workdir = as_path(workdir)
    start_time = start_time or time.time()
    # A checkpoint holds everything that came from `init`, which may be gone by now.
    source = dataclasses.replace(config, init=str(workdir)) if has_checkpoint(workdir) else config
    task = registry.find_task(config.task)(source, jax.process_count(), jax.process_index())
    check_processes(task.config, task)
    config = dataclasses.replace(task.config, init=config.init).resolve(task.examples_per_epoch)
    task.prepare(config.total_steps)
    step_functions = StepFunctions(config, task.objective)
    check_batch_sizes(config, task.objective, step_functions.mesh, train=True)
    run = SingleRun(config, task, step_functions)
    return Trainer(
        config, workdir, task, step_functions, run, trackers=trackers, start_time=start_time
    )


class SingleRun:
    """Data, metrics and scores of a single run; see `bertjax.training.trainer.Runs`."""

    num_runs = 1
    standalone = True

    def __init__(self, config: Config, task: Task, step_functions: StepFunctions) -> None:
        self._task, self._step_functions = task, step_functions
        self._total_steps = config.total_steps
        self._schedule = learning_rate_schedule(config.optimizer_config())

    def train_batches(self, start: int) -> Iterable[HostBatch]:
        """Return this process's part of the batches from step `start` on."""
        return self._task.train_batches(start, self._total_steps)

    def fetch(self, sums: Sums) -> Sums:
        """Return the metric sums of the train step on the host."""
        fetched: Sums = jax.device_get(sums)
        return fetched

    def read_metrics(self, sums: Sums, position: float) -> dict[str, dict[str, float]]:
        """Return the means of metric sums and the learning rate at a position of the schedule."""
        learning_rate = float(self._schedule(position))
        return {"": means(self.fetch(sums)) | {"learning_rate": learning_rate}}

    def compile_evaluator(self) -> Callable[[Any], Mapping[str, Evaluation]]:
        """Return a function from parameters to evaluations by run."""
        evaluate = make_evaluator(self._task, self._step_functions)

        def evaluator(params: Any) -> dict[str, Evaluation]:
            evaluation = evaluate([params])
            return {} if evaluation is None else {"": evaluation}

        return evaluator
