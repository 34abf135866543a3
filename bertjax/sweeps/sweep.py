"""Many short runs: trained in parallel, compared by their scores, the best one kept."""

import collections
import dataclasses
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath

from bertjax.checkpointing.retention import NO_METRIC, BestMetric
from bertjax.config.config import Config
from bertjax.mesh import distributed
from bertjax.mesh.watchdog import note_progress
from bertjax.steps.parallel_runs import ParallelStepFunctions
from bertjax.sweeps.grid import Trial, check_parallel, group_by_shape
from bertjax.sweeps.parallel_training import (
    ParallelRuns,
    Pruning,
    ScoresByStep,
    make_parallel_trainer,
    prepare_task,
    resolve_like,
    write_run,
)
from bertjax.sweeps.search import MedianPruning, Search
from bertjax.sweeps.summary import comparable, rank, summarize
from bertjax.sweeps.sweep_state import BEST_DIR, SweepState, write_json
from bertjax.tasks import registry
from bertjax.tasks.task import Task
from bertjax.training.evaluator import check_best_metric
from bertjax.training.initialization import PretrainedModel
from bertjax.training.prediction.generated_texts import check_no_generation
from bertjax.training.setup import add_teacher, open_teacher
from bertjax.training.trainer import Trainer
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.model_records import share_commits
from bertjax.workdir.workdir import check_processes
from data_pipelines.errors import InputError

RESULT_FILE = "sweep.json"

_log = logging.getLogger("bertjax")


def sweep(
    trials: Sequence[Trial] | Search,
    base_config: Config,
    workdir: epath.PathLike,
    runs_per_device: int = 1,
) -> dict[str, Any]:
    """Train and evaluate all runs; resume where an earlier process ended.

    Args:
      trials: the runs, or what proposes them.
      base_config: configuration of the sweep, whose mesh the checkpoint of the best run gets.
      workdir: directory of the sweep.
      runs_per_device: parallel runs of a device.

    Returns:
      The content of `sweep.json`: the runs with their scores, a summary of each point of the grid,
      and the name of the best run.

    Raises:
      InputError: there is no eval split, the runs have a time budget, or the workdir belongs to
        another sweep or is in use.
    """
    workdir = epath.Path(workdir)
    check_parallel(base_config)
    with WorkdirLock(workdir) as lock:
        state = SweepState(workdir, lock.confirm)
        num_runs = trials.num_runs if isinstance(trials, Search) else len(trials)
        prunes = isinstance(trials, Search) and trials.prunes
        runner = SweepRunner(base_config, state, lock, runs_per_device, num_runs, prunes)
        # Results alone have another order, and a round that was interrupted has more points.
        rounds = (
            [trials.restore(names) for names in state.read_proposals()]
            if isinstance(trials, Search)
            else [[*trials]]
        )
        all_trials = [trial for proposed in rounds for trial in proposed]
        state.check_trials(all_trials)
        runner.check_data(all_trials)
        for number in itertools.count():  # in the order of a search that was not interrupted
            if number == len(rounds):
                proposed = (
                    trials.propose(
                        all_trials, runner.comparable_scores(), runner.num_parallel, state.pruned
                    )
                    if isinstance(trials, Search)
                    else []
                )
                if not proposed:
                    break
                rounds.append(proposed)
                all_trials += proposed
                state.write_proposals(rounds)
            try:
                runner.train(rounds[number])
            except InputError:  # such as of a batch that is too large; a narrower range may follow
                if isinstance(trials, Search):
                    trained = [trial for trial in rounds[number] if trial.name in state.results]
                    state.write_proposals([*rounds[:number], trained, *rounds[number + 1 :]])
                raise
        result = summarize(all_trials, state.results, runner.primary_metric)
        if distributed.is_process_0():
            lock.confirm()
            write_json(workdir / RESULT_FILE, result)
            state.remove_unfinished()
        return result


class _Program(NamedTuple):
    """Step functions of a shape, and the seeds whose batches they are large enough for."""

    step_functions: ParallelStepFunctions
    teacher: PretrainedModel | None
    seeds: set[tuple[int, int | None]]


class SweepRunner:
    """Trains the runs of a sweep, those of one shape by one program.

    Args:
      base_config: see `sweep`.
      state: results so far.
      lock: lock of the workdir.
      runs_per_device: parallel runs of a device.
      num_runs: runs of the whole sweep.
      prunes: whether runs end that are worse than the median of earlier ones.

    Attributes:
      num_parallel: runs that are trained at once.
      primary_metric: score that runs are compared by; without a name before the first training.
    """

    def __init__(
        self,
        base_config: Config,
        state: SweepState,
        lock: WorkdirLock,
        runs_per_device: int,
        num_runs: int,
        prunes: bool = False,
    ) -> None:
        self._base_config, self._state, self._lock = base_config, state, lock
        self._num_runs, self._prunes = num_runs, prunes
        self.num_parallel = runs_per_device * jax.device_count()
        self.primary_metric = NO_METRIC
        # The last shape, which the next runs of a search may have, with its program.
        self._task: tuple[str, Task] | None = None
        self._program: _Program | None = None

    def check_data(self, trials: Sequence[Trial]) -> None:
        """Raise InputError if finished ones of the runs were trained on other data."""
        finished = [trial for trial in trials if trial.name in self._state.results]
        by_data = collections.defaultdict[str, list[Trial]](list)  # which several shapes may read
        for trial in finished:
            config, distill = trial.config, trial.config.distill
            of_task = (config.task, config.data, config.init, config.max_seq_length)
            by_data[repr((of_task, distill.unlabeled, distill.logits))].append(trial)
        for group in by_data.values():
            (shape,) = group_by_shape(group[:1])
            self._state.check_data(group, self._load_task(shape, group))

    def train(self, trials: Sequence[Trial]) -> None:
        """Train and evaluate the runs that have not ended yet, in the order as if none had."""
        for trial in trials:
            if trial.config.budget_seconds is not None:
                raise InputError(
                    f"steps={trial.config.steps!r}: a sweep has no time budget. Use steps or "
                    "epochs."
                )
        results = self._state.results
        for shape, group in group_by_shape(trials).items():
            remaining = [trial for trial in group if trial.name not in results]
            if remaining:
                self._train_shape(self._load_task(shape, group), group, remaining)

    def _load_task(self, shape: str, group: Sequence[Trial]) -> Task:
        if self._task is None or self._task[0] != shape:
            self._task = self._program = None  # frees them first
            task = _load_task(group[0].config)
            task.open_logits()
            self._task = shape, task
            note_progress()
            if not self.primary_metric.name:
                self.primary_metric = _choose_primary_metric(task, group[0].config)
        return self._task[1]

    def _train_shape(self, task: Task, group: Sequence[Trial], remaining: Sequence[Trial]) -> None:
        seeds = {(trial.config.seed, trial.config.data_seed) for trial in group}
        if self._program is None or not seeds <= self._program.seeds:
            teacher = open_teacher(group[0].config, task, self._state.workdir)
            step_functions = _make_step_functions(group, task, self.num_parallel, teacher)
            self._program = _Program(step_functions, teacher, seeds)
        step_functions, teacher, _ = self._program
        config = dataclasses.replace(group[0].config, best_metric=self.primary_metric.name)
        check_best_metric(config, task, step_functions.state_shapes.metric_sums)
        for first in range(0, len(remaining), self.num_parallel):
            self._lock.confirm()
            selected = remaining[first : first + self.num_parallel]
            names = "; ".join(trial.name for trial in selected)
            done = len(self._state.results)
            _log.info("%d of %d runs done; now %s.", done, self._num_runs, names)
            directory = self._state.parallel_dir(selected, self.num_parallel)
            pruning = self._make_pruning() if self._prunes else None
            trainer, runs = make_parallel_trainer(
                selected, task, step_functions, directory, self._state.workdir, teacher, pruning
            )
            trainer.train()
            _record(
                trainer,
                runs,
                selected,
                self.primary_metric,
                self._state,
                self._base_config,
                self._prunes,
            )

    def _make_pruning(self) -> Pruning:
        """Return the function that decides from the scores of runs whether they end."""
        median = MedianPruning(self._state.curves)

        def pruning(scores: Mapping[str, ScoresByStep], total: int) -> bool:
            curves = [
                _comparable_curve(by_step, self.primary_metric, total)
                for by_step in scores.values()
            ]
            return all(curve and median.is_pruned(curve) for curve in curves)

        return pruning

    def comparable_scores(self) -> dict[str, float]:
        """Return run -> its primary metric, the larger the better; -inf for a failed run."""
        return {
            name: -math.inf if run["failed"] else comparable(self.primary_metric, run["scores"])
            for name, run in self._state.results.items()
        }


def _load_task(config: Config) -> Task:
    """Return the task of the runs of one shape, with its data."""
    share_commits(config.init, config.distill.teacher)
    task = registry.find_task(config.task)(config)
    check_processes(task.config, task)
    if not task.eval_sets():
        raise InputError(
            f"data.dir={config.data['dir']}: there is no eval split to compare runs by. Prepare "
            "the data with one."
        )
    check_no_generation(task, "parallel runs are evaluated in one program, which generates none")
    return task


def _make_step_functions(
    group: Sequence[Trial], task: Task, num_parallel: int, teacher: PretrainedModel | None
) -> ParallelStepFunctions:
    """Return the step functions of runs of one shape; all have the largest of the batch sizes."""
    first = group[0].config
    config = dataclasses.replace(task.config, init=first.init).resolve(task.examples_per_epoch)
    prepared = [prepare_task(task, resolve_like(trial.config, config)) for trial in group]
    task.objective.batch_size = max(task.objective.batch_size for task in prepared)
    objective = add_teacher(config, task.objective, teacher)
    return ParallelStepFunctions([config] * num_parallel, objective)


def _comparable_curve(by_step: ScoresByStep, metric: BestMetric, total: int) -> dict[float, float]:
    """Return fraction of the steps -> the metric of a run, the larger the better."""
    return {step / total: metric.comparable(scores) for step, scores in by_step.items()}


def _record(
    trainer: Trainer,
    runs: ParallelRuns,
    trials: Sequence[Trial],
    primary_metric: BestMetric,
    state: SweepState,
    base_config: Config,
    prunes: bool,
) -> None:
    """Record the scores of parallel runs, and keep the best run so far."""
    names, total = [trial.name for trial in trials], int(trainer.config.steps)
    by_step = runs.scores(total)
    last = max(by_step[names[0]])  # parallel runs end together
    scores = [by_step[name][last] for name in names]
    if primary_metric.name not in scores[0]:
        raise InputError(
            f"best_metric={primary_metric.name!r}: is not a score of this task. Use one of "
            f"{', '.join(sorted(scores[0]))}."
        )
    results: dict[str, dict[str, Any]] = {
        name: {
            # JSON has no number that is not finite.
            "scores": {k: v if math.isfinite(v) else None for k, v in run_scores.items()},
            "failed": comparable(primary_metric, run_scores) == -math.inf
            or trainer.task.is_degenerate(run_scores, primary_metric.name),
        }
        for name, run_scores in zip(names, scores, strict=True)
    }
    if prunes:
        for name in names:
            curve = _comparable_curve(by_step[name], primary_metric, total)
            finite = {str(k): v if math.isfinite(v) else None for k, v in curve.items()}
            results[name] |= {"curve": finite} | ({"pruned_at": last} if last < total else {})
    ranks = [rank(primary_metric, results[name]) for name in names]
    best = max(range(len(ranks)), key=ranks.__getitem__)
    earlier = [
        rank(primary_metric, run) for run in state.results.values() if "pruned_at" not in run
    ]
    if last == total and ranks[best] > max(earlier, default=(False, -math.inf)):
        path = state.workdir / BEST_DIR
        write_run(trainer, best, trials[best], scores[best], base_config, path, state.confirm)
    state.record(trainer.workdir, trials, trainer.task, results)
    if distributed.is_process_0():
        state.confirm()
        trainer.checkpointer.directory.rmtree()
    distributed.sync_processes("parallel runs")


def _choose_primary_metric(task: Task, config: Config) -> BestMetric:
    """Return the score that runs are compared by."""
    name = config.best_metric or next(iter(task.primary_metrics), "")
    if not name:
        raise InputError(
            f"task={config.task}: there is no score to compare runs by. Set best_metric."
        )
    return BestMetric(name, config.greater_is_better)
