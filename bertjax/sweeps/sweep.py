"""Many short runs: trained several at once, told apart by their scores, the best one kept."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.checkpointing.lookup import write_params
from bertjax.checkpointing.retention import comparable_score
from bertjax.config.config import Config
from bertjax.errors import RunError
from bertjax.mesh import distributed
from bertjax.steps.parallel_runs import ParallelStepFunctions
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.train_step import Sums, TrainState, means
from bertjax.sweeps.grid import Trial, group_by_shape
from bertjax.sweeps.ledger import SweepState, write
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, HostBatch, Task
from bertjax.training.evaluator import make_parallel_evaluator
from bertjax.training.metric_writers import Metrics, MetricWriters, read_metrics
from bertjax.training.trainer import Trainer
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.run_record import write_checkpoint_metadata
from data_pipelines.errors import InputError

RESULT_FILE = "sweep.json"
BEST_DIR = "best"  # the directory of the best run's checkpoint

_log = logging.getLogger("bertjax")


class ParallelTrainer(Trainer):
    """Runs of one shape, one on each device, as one run: its state has a leading axis of runs.

    Args:
      trials: the runs; fewer than `runs` are filled up with copies of the last, which are not told.
      task: their data, prepared once for all.
      programs: compiled once for all waves of the shape.
      rows: of each run's batches.
      origin: where it is noted what all runs of the sweep begin with.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        task: Task,
        programs: ParallelStepFunctions,
        rows: int,
        workdir: epath.Path,
        sweep_dir: epath.Path,
    ) -> None:
        self.trials, self._task, self._shared_step_functions = trials, task, programs
        self._sweep_dir = sweep_dir
        self.runs, self._rows = len(programs.configs), rows
        self._run_metrics: list[dict[str, float]] = []
        super().__init__(trials[0].config, workdir)

    def _init_record_dir(self) -> epath.Path:
        return self._sweep_dir

    def _load_task(self, config: Config) -> Task:
        return self._task.with_config(_resolve_like(self.trials[0].config, self._task.config))

    def _plan(self) -> ParallelStepFunctions:
        filled = [*self.trials, *[self.trials[-1]] * (self.runs - len(self.trials))]
        configs = [_resolve_like(trial.config, self.config) for trial in filled]
        own = len(configs) // jax.process_count()
        first = own * jax.process_index()
        self._tasks = [
            _prepare_task(self._task, runs_per_device)
            for runs_per_device in configs[first : first + own]
        ]
        return self._shared_step_functions.with_configs(configs)

    def _batches(self, start: int) -> Iterable[HostBatch]:
        runs_per_device = [task.train_batches(start, self.steps) for task in self._tasks]
        for batches in zip(*runs_per_device, strict=True):
            yield {
                name: np.stack([_pad_rows(batch[name], self._rows) for batch in batches])
                for name in batches[0]
            }

    def _means(self, window: Sums) -> dict[str, float]:
        """Those over the runs that have not diverged; each one's are kept for `_write`."""
        gathered = jax.device_get(self._gather(window))
        self._run_metrics = [
            means(jax.tree.map(lambda array, at=number: array[at], gathered))
            for number in range(len(self.trials))
        ]
        return _finite_means(self._run_metrics)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        """A run that diverges is told in the end, and stops no other."""

    def _log_result(self) -> None:
        """The end of a wave is not that of the sweep."""

    def _evaluator(self) -> Callable[[list[Any]], Evaluation | None]:
        assert isinstance(self.programs, ParallelStepFunctions)
        evaluate = make_parallel_evaluator(self.task, self.programs)

        def evaluator(members: list[Any]) -> Evaluation:
            found = evaluate(members[0])[: len(self.trials)]
            self._run_metrics = [runs_per_device.scores for runs_per_device in found]
            return Evaluation(_finite_means(self._run_metrics))

        return evaluator

    def _progress(self, step: int) -> dict[str, float]:
        """The rate is told of each run, in `_write`."""
        found = super()._progress(step)
        return {name: value for name, value in found.items() if name != "learning_rate"}

    def _write(self, writers: MetricWriters, step: int, split: str, values: Metrics) -> None:
        super()._write(writers, step, split, values)
        for trial, own in zip(self.trials, self._run_metrics, strict=True):
            if split == "train":
                config = _resolve_like(trial.config, self.config).optimizer_config()
                own = own | {"learning_rate": float(learning_rate_schedule(config)(step - 1))}
            writers.write(step, f"{trial.name}/{split}", own)

    def _checkpoint_state(self, state: TrainState) -> TrainState:
        return state._replace(window=self._gather(state.window))

    def _gather(self, tree: Any) -> Any:
        assert isinstance(self.programs, ParallelStepFunctions)
        return self.programs.gather(tree)

    def results(self) -> list[dict[str, float]]:
        """The last scores of each run, in the order of the trials."""
        found: dict[str, dict[str, float]] = {}
        for line in read_metrics(self.workdir):
            if line["split"].endswith("/heldout") and line["step"] == self.steps:
                scores = {k: v for k, v in line.items() if k not in ("step", "split")}
                found[line["split"]] = scores
        return [found[f"{trial.name}/heldout"] for trial in self.trials]

    def write_best(self, number: int, base_config: Config, path: epath.Path) -> None:
        """Writes the parameters of one run as a checkpoint that opens with nothing else.

        Args:
          original: the configuration that it would have alone.
        """
        state = self.checkpoints.restore(self.programs.state_shapes)
        assert state is not None
        params = self._gather(jax.tree.map(lambda array: array[number], state.params))
        config = _resolve_like(self.trials[number].config, self.config)
        config = dataclasses.replace(config, mesh=base_config.mesh)
        scores = Evaluation(self.results()[number])
        draft = path.with_name(f"{path.name}.partial")
        if distributed.is_process_0():
            if draft.exists():
                draft.rmtree()
            draft.mkdir(parents=True)
        distributed.sync_processes("best")

        def write_metadata(directory: epath.Path) -> None:
            write_checkpoint_metadata(directory, config, self.task, int(self.config.steps), scores)

        write_params(draft, params, write_metadata)
        if distributed.is_process_0():
            if path.exists():
                path.rmtree()
            draft.rename(path)


def sweep(
    trials: Sequence[Trial], base_config: Config, workdir: epath.PathLike, runs_per_device: int = 1
) -> dict[str, Any]:
    """Trains and scores all runs; run again, it goes on where it was.

    Args:
      original: a configuration with the mesh that a run alone would have.
      each: runs that a device has at once.
    Returns:
      What `sweep.json` holds: the runs with their scores, a summary of each point of the grid, and
      which run is the best.
    Raises:
      InputError: there are no held-out data, the clock is to end runs, or the workdir is another
        sweep's or one is at work in it.
    """
    workdir = epath.Path(workdir)
    if base_config.tensorboard_summaries:
        raise InputError(
            f"tensorboard={base_config.tensorboard!r} is for one run, and a sweep trains several at "
            "once: leave it out, or train one of them alone."
        )
    for trial in trials:
        if trial.config.budget_seconds is not None:
            raise InputError(
                f"steps={trial.config.steps!r} is a time, and a sweep trains several runs at once: "
                "count steps or epochs."
            )
    with WorkdirLock(workdir) as lock:
        return _sweep(trials, base_config, workdir, runs_per_device * jax.device_count(), lock)


def _sweep(
    trials: Sequence[Trial],
    base_config: Config,
    workdir: epath.Path,
    together: int,
    lock: WorkdirLock,
) -> dict[str, Any]:
    ledger, primary_metrics = SweepState(workdir, trials), ""
    for group in group_by_shape(trials):
        task = _load_shared_task(group[0].config)
        ledger.check_data(group, task)
        primary_metrics = primary_metrics or _choose_primary_metric(task, group[0].config)
        done = ledger.results
        left = [trial for trial in group if trial.name not in done]
        if not left:
            continue
        programs, rows = _compiled(group, task, together)
        for first in range(0, len(left), together):
            lock.check()
            some = left[first : first + together]
            _log.info(
                "%d of %d runs done; now %s.",
                len(ledger.results),
                len(trials),
                "; ".join(trial.name for trial in some),
            )
            wave = ParallelTrainer(some, task, programs, rows, ledger.wave(some, together), workdir)
            wave.train()
            _finish(wave, primary_metrics, ledger, base_config, workdir)
    found = summarize(trials, ledger.results, primary_metrics)
    if distributed.is_process_0():
        write(workdir / RESULT_FILE, found)
        ledger.remove_unfinished()
    return found


def _load_shared_task(config: Config) -> Task:
    """The data of runs of one shape."""
    task = registry.find(config.task)(config)
    if not task.eval_sets():
        raise InputError(f"{config.data['dir']} has no held-out data, and runs are told by scores.")
    return task


def _compiled(
    group: Sequence[Trial], task: Task, together: int
) -> tuple[ParallelStepFunctions, int]:
    """The programs of runs of one shape, and the rows of a batch that suit all."""
    first = group[0].config
    config = dataclasses.replace(task.config, init=first.init).resolve(task.examples_per_epoch)
    prepared = [_prepare_task(task, _resolve_like(trial.config, config)) for trial in group]
    rows = max(runs_per_device.objective.batch_size for runs_per_device in prepared)
    task.objective.batch_size = rows
    programs = ParallelStepFunctions([config] * together, task.objective)
    return programs, rows


def _prepare_task(task: Task, config: Config) -> Task:
    own = task.with_config(config)
    own.prepare(config.total_steps)
    return own


def _resolve_like(config: Config, like: Config) -> Config:
    """A configuration with the numbers of steps of another one, and what data told of it."""
    optimizer = dataclasses.replace(like.optimizer, learning_rate=config.optimizer.learning_rate)
    return dataclasses.replace(
        like, seed=config.seed, data_seed=config.data_seed, optimizer=optimizer
    )


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """With empty rows at the end."""
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))


def _finite_means(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over those that are finite; of one name that is nowhere, NaN."""
    found = {}
    for name in values[0]:
        finite = [
            runs_per_device[name]
            for runs_per_device in values
            if math.isfinite(runs_per_device.get(name, math.nan))
        ]
        found[name] = float(np.mean(finite)) if finite else math.nan
    return found


def _finish(
    wave: ParallelTrainer,
    primary_metrics: str,
    ledger: SweepState,
    base_config: Config,
    workdir: epath.Path,
) -> None:
    """Notes what became of a wave's runs, and keeps the best of all so far."""
    scores = wave.results()
    results = {
        trial.name: {
            # JSON knows no number that is not finite.
            "scores": {k: v if math.isfinite(v) else None for k, v in own.items()},
            "failed": _is_failed(wave.task, own),
        }
        for trial, own in zip(wave.trials, scores, strict=True)
    }
    merits = [comparable_score(primary_metrics, own) for own in scores]
    number = int(np.argmax(merits))
    earlier = [
        _comparable_score(primary_metrics, runs_per_device["scores"])
        for runs_per_device in ledger.results.values()
    ]
    if merits[number] > max(earlier, default=-math.inf):
        wave.write_best(number, base_config, workdir / BEST_DIR)
    ledger.record(wave.workdir, wave.trials, wave.task, results)
    if distributed.is_process_0():
        wave.checkpoints.directory.rmtree()
    distributed.sync_processes("wave")


def _is_failed(task: Task, scores: Mapping[str, float]) -> bool:
    return not math.isfinite(scores.get("loss", math.nan)) or task.is_degenerate(scores)


def _comparable_score(name: str, scores: Mapping[str, float | None]) -> float:
    return comparable_score(
        name, {key: value for key, value in scores.items() if value is not None}
    )


def _choose_primary_metric(task: Task, config: Config) -> str:
    """The score by which runs are told apart."""
    name = config.best_metric or next(iter(task.primary_metrics), "")
    if not name:
        raise InputError(f"task={config.task} names no score to tell runs apart: set best_metric.")
    return name


def summarize(
    trials: Sequence[Trial], results: Mapping[str, Mapping[str, Any]], primary_metrics: str
) -> dict[str, Any]:
    """What `sweep.json` holds. Means are over the runs that did not fail, which are counted."""
    merits = {
        name: _comparable_score(primary_metrics, runs_per_device["scores"])
        for name, runs_per_device in results.items()
    }
    points = []
    for at in dict.fromkeys(trial.at for trial in trials):
        own = [results[trial.name] for trial in trials if trial.at == at]
        good = [
            runs_per_device["scores"][primary_metrics]
            for runs_per_device in own
            if not runs_per_device["failed"]
        ]
        points.append(
            {
                "point": at,
                "n": len(own),
                "failed": sum(runs_per_device["failed"] for runs_per_device in own),
                "mean": float(np.mean(good)) if good else None,
                "std": float(np.std(good, ddof=1)) if len(good) > 1 else None,
                "min": min(good, default=None),
                "max": max(good, default=None),
            }
        )
    runs = [
        {"name": trial.name, "point": trial.at, "seed": trial.config.seed, **results[trial.name]}
        for trial in trials
    ]
    best = max(merits, key=lambda name: merits[name])
    if merits[best] == -math.inf:
        raise RunError(f"no run has a finite {primary_metrics}: lower optimizer.learning_rate.")
    return {"score": primary_metrics, "points": points, "best": best, "runs": runs}
