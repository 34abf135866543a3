"""Parallel runs of a sweep: the trainer of runs of one shape, each on a device of its own."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.checkpointing.integrity import delete_checkpoint
from bertjax.checkpointing.lookup import write_params
from bertjax.config.config import Config
from bertjax.mesh import distributed
from bertjax.steps.parallel_runs import ParallelStepFunctions
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.train_step import Sums, means
from bertjax.sweeps.grid import Trial
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import Evaluation, Task
from bertjax.training.evaluator import make_parallel_evaluator
from bertjax.training.initialization import PretrainedModel
from bertjax.training.metrics_file import read_metrics, to_scalar
from bertjax.training.trainer import Trainer
from bertjax.workdir.run_record import write_checkpoint_metadata

ScoresByStep = Mapping[int, Mapping[str, float]]  # number of updates -> scores
# Of the scores of runs and their number of steps: whether all are pruned.
Pruning = Callable[[Mapping[str, ScoresByStep], int], bool]


class ParallelRuns:
    """Stacked batches, metrics and scores of parallel runs; see `bertjax.training.trainer.Runs`.

    A run that diverges stops no other run.

    Args:
      names: names of the trials. There may be fewer than runs: copies of the last fill the devices.
      configs: resolved configurations of all runs, copies included.
      task: the data of the sweep.
      step_functions: vmapped step functions of these configurations.
      batch_size: sequences of the batch of each run.
      workdir: directory of the runs.
      pruning: whether to end the runs early; None for never.
    """

    standalone = False

    def __init__(
        self,
        names: Sequence[str],
        configs: Sequence[Config],
        task: Task,
        step_functions: ParallelStepFunctions,
        batch_size: int,
        workdir: epath.Path,
        pruning: Pruning | None = None,
    ) -> None:
        self.num_runs, self._pruning, self._workdir = len(configs), pruning, workdir
        self._start: int | None = None  # step from which this process trains
        self._scores: dict[int, dict[str, dict[str, Any]]] = {}  # by step, of this process
        self._names, self._task, self._step_functions = names, task, step_functions
        self._batch_size, self._total_steps = batch_size, configs[0].total_steps
        self._schedules = [learning_rate_schedule(config.optimizer_config()) for config in configs]
        num_local = len(configs) // jax.process_count()
        first = num_local * jax.process_index()
        self._tasks = [prepare_task(task, config) for config in configs[first : first + num_local]]

    def train_batches(self, start: int) -> Iterable[HostBatch]:
        """Return this process's stacked batches [R, B, ...] from step `start` on."""
        self._start = start
        batches = [task.train_batches(start, self._total_steps) for task in self._tasks]
        return (
            {
                name: np.stack([_pad(batch[name], self._batch_size) for batch in run_batches])
                for name in run_batches[0]
            }
            for run_batches in zip(*batches, strict=True)
        )

    def fetch(self, sums: Sums) -> Sums:
        """Return the metric sums of the train step on the host."""
        fetched: Sums = jax.device_get(self._step_functions.gather(sums))
        return fetched

    def read_metrics(self, sums: Sums, position: float) -> dict[str, dict[str, float]]:
        """Return the means of metric sums and the learning rate at a position of the schedule."""
        fetched = self.fetch(sums)
        runs = [
            means({name: (value[run], weight[run]) for name, (value, weight) in fetched.items()})
            for run in range(len(self._names))
        ]
        metrics = {"": _finite_means(runs)}
        for name, values, schedule in zip(self._names, runs, self._schedules, strict=False):
            metrics[name] = values | {"learning_rate": float(schedule(position))}
        return metrics

    def compile_evaluator(self) -> Callable[[int, Any], Mapping[str, Evaluation]]:
        """Return a function from a step and its parameters to evaluations by run."""
        evaluate = make_parallel_evaluator(self._task, self._step_functions)

        def evaluator(step: int, params: Any) -> dict[str, Evaluation]:
            evaluations = evaluate(params)[: len(self._names)]
            mean = Evaluation(_finite_means([evaluation.scores for evaluation in evaluations]))
            named = dict(zip(self._names, evaluations, strict=True))
            self._scores[step] = {
                name: {k: to_scalar(v) for k, v in evaluation.scores.items()}
                for name, evaluation in named.items()
            }
            return {"": mean} | named

        return evaluator

    def scores(self, last: int) -> dict[str, dict[int, dict[str, Any]]]:
        """Return run -> step -> scores, up to a step.

        Those of this process come from the evaluations themselves: process 0 alone writes the file,
        to a bucket with a delay, and all processes must find the same scores. An evaluation before
        the first step, which finds the names of scores, has no part in them.
        """
        start = last if self._start is None else min(self._start, last)
        by_run: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self._names}
        for line in read_metrics(self._workdir) if start else ():
            name, _, split = line["split"].rpartition("/")
            if split == "eval" and name in by_run and line["step"] <= start:
                scores = {k: v for k, v in line.items() if k not in ("step", "split")}
                by_run[name][line["step"]] = scores
        for step, of_runs in self._scores.items():
            for name, scores in of_runs.items() if step > start else ():
                by_run[name][step] = scores
        return by_run

    def are_pruned(self, step: int) -> bool:
        """Return whether all runs are pruned at the evaluation of a step, or the last before it."""
        assert self._total_steps is not None  # a sweep has no time budget
        return self._pruning is not None and self._pruning(self.scores(step), self._total_steps)


def make_parallel_trainer(
    trials: Sequence[Trial],
    task: Task,
    step_functions: ParallelStepFunctions,
    workdir: epath.Path,
    sweep_dir: epath.Path,
    teacher: PretrainedModel | None = None,
    pruning: Pruning | None = None,
) -> tuple[Trainer, ParallelRuns]:
    """Return the trainer of parallel runs, whose state has a leading axis of runs, and the runs.

    Args:
      trials: the runs, at most as many as the step functions have.
      task: their data, prepared once for all; its objective has the batch size of each run.
      step_functions: compiled once for all runs of the shape.
      workdir: directory of these runs.
      sweep_dir: directory of the sweep, which records initial model and teacher of all its runs.
      teacher: the model that they learn from; None without distillation.
      pruning: whether to end them early; None for never.
    """
    first, batch_size = trials[0].config, task.objective.batch_size
    task = task.with_config(resolve_like(first, task.config))
    config = dataclasses.replace(task.config, init=first.init).resolve(task.examples_per_epoch)
    num_copies = len(step_functions.configs) - len(trials)
    filled = [*trials, *[trials[-1]] * num_copies]
    configs = [resolve_like(trial.config, config) for trial in filled]
    step_functions = step_functions.with_configs(configs)
    names = [trial.name for trial in trials]
    runs = ParallelRuns(names, configs, task, step_functions, batch_size, workdir, pruning)
    trainer = Trainer(
        config, workdir, task, step_functions, runs, init_record_dir=sweep_dir, teacher=teacher
    )
    return trainer, runs


def write_run(
    trainer: Trainer,
    number: int,
    trial: Trial,
    scores: Mapping[str, float],
    base_config: Config,
    path: epath.Path,
    confirm: Callable[[], None],
) -> None:
    """Write the parameters of one run as a checkpoint that opens by itself.

    Args:
      trainer: the trainer of the parallel runs, at their end.
      number: index of the run.
      trial: the run.
      scores: its scores.
      base_config: configuration with the mesh that the run would have alone.
      path: directory of the checkpoint, which is replaced.
      confirm: raises LockLostError if another sweep has taken the workdir.
    """
    step_functions = trainer.step_functions
    assert isinstance(step_functions, ParallelStepFunctions)
    state = trainer.checkpointer.restore(step_functions.state_shapes)
    assert state is not None
    params = step_functions.gather(jax.tree.map(lambda array: array[number], state.params))
    config = resolve_like(trial.config, trainer.config)
    config = dataclasses.replace(config, mesh=base_config.mesh)
    partial = path.with_name(f"{path.name}.partial")
    if distributed.is_process_0():
        confirm()
        if partial.exists():
            partial.rmtree()
        partial.mkdir(parents=True)
    distributed.sync_processes("best")

    def write_metadata(directory: epath.Path) -> None:
        evaluation = Evaluation(dict(scores))
        write_checkpoint_metadata(
            directory, config, trainer.task, int(trainer.config.steps), evaluation
        )

    write_params(partial, params, write_metadata)
    if distributed.is_process_0():
        confirm()
        delete_checkpoint(path)
        partial.rename(path)


def prepare_task(task: Task, config: Config) -> Task:
    """Return the same data for another configuration."""
    prepared = task.with_config(config)
    prepared.prepare(config.total_steps)
    return prepared


def resolve_like(config: Config, resolved: Config) -> Config:
    """Return a resolved configuration with the learning rate and the seeds of another one."""
    optimizer = dataclasses.replace(
        resolved.optimizer, learning_rate=config.optimizer.learning_rate
    )
    return dataclasses.replace(
        resolved, seed=config.seed, data_seed=config.data_seed, optimizer=optimizer
    )


def _pad(array: np.ndarray, batch_size: int) -> np.ndarray:
    """Return an array with empty sequences at the end."""
    return np.pad(array, [(0, batch_size - len(array))] + [(0, 0)] * (array.ndim - 1))


def _finite_means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over the runs with a finite value; NaN for a name without one."""
    result = {}
    for name in runs[0]:
        finite = [run[name] for run in runs if math.isfinite(run.get(name, math.nan))]
        result[name] = float(np.mean(finite)) if finite else math.nan
    return result
