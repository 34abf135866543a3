"""Many short runs: trained several at once, told apart by their scores, the best one kept."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.checkpointing.best import merit
from bertjax.checkpointing.checkpointer import write_params
from bertjax.config.config import Config
from bertjax.errors import RunError
from bertjax.mesh import hosts
from bertjax.steps.parallel_runs import Together
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.train_step import Sums, TrainState, means
from bertjax.sweeps.grid import Trial, of_one_shape
from bertjax.sweeps.ledger import Ledger, write
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, HostBatch, Task
from bertjax.training.evaluator import make_evaluators
from bertjax.training.metric_writers import Metrics, Writers, read_metrics
from bertjax.training.trainer import Run
from bertjax.workdir.lock import Lease
from bertjax.workdir.run_record import write_description
from data_pipelines.errors import InputError

RESULT_FILE = "sweep.json"
BEST = "best"  # the directory of the best run's checkpoint

_log = logging.getLogger("bertjax")


class Wave(Run):
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
        programs: Together,
        rows: int,
        workdir: epath.Path,
        origin: epath.Path,
    ) -> None:
        self.trials, self._task, self._together = trials, task, programs
        self._of_all = origin
        self.runs, self._rows = len(programs.configs), rows
        self._own: list[dict[str, float]] = []
        super().__init__(trials[0].config, workdir)

    def _origin(self) -> epath.Path:
        return self._of_all

    def _open(self, config: Config) -> Task:
        return self._task.reseeded(_resolved(self.trials[0].config, self._task.config))

    def _plan(self) -> Together:
        filled = [*self.trials, *[self.trials[-1]] * (self.runs - len(self.trials))]
        configs = [_resolved(trial.config, self.config) for trial in filled]
        own = len(configs) // jax.process_count()
        first = own * jax.process_index()
        self._tasks = [_prepared(self._task, each) for each in configs[first : first + own]]
        return self._together.of_others(configs)

    def _batches(self, start: int) -> Iterable[HostBatch]:
        each = [task.train_batches(start, self.steps) for task in self._tasks]
        for batches in zip(*each, strict=True):
            yield {
                name: np.stack([_filled(batch[name], self._rows) for batch in batches])
                for name in batches[0]
            }

    def _means(self, window: Sums) -> dict[str, float]:
        """Those over the runs that have not diverged; each one's are kept for `_write`."""
        gathered = jax.device_get(self._gather(window))
        self._own = [
            means(jax.tree.map(lambda array, at=number: array[at], gathered))
            for number in range(len(self.trials))
        ]
        return _mean(self._own)

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        """A run that diverges is told in the end, and stops no other."""

    def _end(self) -> None:
        """The end of a wave is not that of the sweep."""

    def _evaluator(self) -> Callable[[list[Any]], Evaluation | None]:
        assert isinstance(self.programs, Together)
        evaluate = make_evaluators(self.task, self.programs)

        def evaluator(members: list[Any]) -> Evaluation:
            found = evaluate(members[0])[: len(self.trials)]
            self._own = [each.scores for each in found]
            return Evaluation(_mean(self._own))

        return evaluator

    def _progress(self, step: int) -> dict[str, float]:
        """The rate is told of each run, in `_write`."""
        found = super()._progress(step)
        return {name: value for name, value in found.items() if name != "learning_rate"}

    def _write(self, writers: Writers, step: int, split: str, values: Metrics) -> None:
        super()._write(writers, step, split, values)
        for trial, own in zip(self.trials, self._own, strict=True):
            if split == "train":
                config = _resolved(trial.config, self.config).optimizer_config()
                own = own | {"learning_rate": float(learning_rate_schedule(config)(step - 1))}
            writers.write(step, f"{trial.name}/{split}", own)

    def _kept(self, state: TrainState) -> TrainState:
        return state._replace(window=self._gather(state.window))

    def _gather(self, tree: Any) -> Any:
        assert isinstance(self.programs, Together)
        return self.programs.gather(tree)

    def results(self) -> list[dict[str, float]]:
        """The last scores of each run, in the order of the trials."""
        found: dict[str, dict[str, float]] = {}
        for line in read_metrics(self.workdir):
            if line["split"].endswith("/heldout") and line["step"] == self.steps:
                scores = {k: v for k, v in line.items() if k not in ("step", "split")}
                found[line["split"]] = scores
        return [found[f"{trial.name}/heldout"] for trial in self.trials]

    def write_best(self, number: int, original: Config, path: epath.Path) -> None:
        """Writes the parameters of one run as a checkpoint that opens with nothing else.

        Args:
          original: the configuration that it would have alone.
        """
        state = self.checkpoints.restore(self.programs.state)
        assert state is not None
        params = self._gather(jax.tree.map(lambda array: array[number], state.params))
        config = _resolved(self.trials[number].config, self.config)
        config = dataclasses.replace(config, mesh=original.mesh)
        scores = Evaluation(self.results()[number])
        draft = path.with_name(f"{path.name}.partial")
        if hosts.is_first():
            if draft.exists():
                draft.rmtree()
            draft.mkdir(parents=True)
        hosts.wait_for_all("best")

        def describe(directory: epath.Path) -> None:
            write_description(directory, config, self.task, int(self.config.steps), scores)

        write_params(draft, params, describe)
        if hosts.is_first():
            if path.exists():
                path.rmtree()
            draft.rename(path)


def sweep(
    trials: Sequence[Trial], original: Config, workdir: epath.PathLike, each: int = 1
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
    if original.pictures:
        raise InputError(
            f"tensorboard={original.tensorboard!r} is for one run, and a sweep trains several at "
            "once: leave it out, or train one of them alone."
        )
    for trial in trials:
        if trial.config.budget is not None:
            raise InputError(
                f"steps={trial.config.steps!r} is a time, and a sweep trains several runs at once: "
                "count steps or epochs."
            )
    with Lease(workdir) as lease:
        return _sweep(trials, original, workdir, each * jax.device_count(), lease)


def _sweep(
    trials: Sequence[Trial], original: Config, workdir: epath.Path, together: int, lease: Lease
) -> dict[str, Any]:
    ledger, headline = Ledger(workdir, trials), ""
    for group in of_one_shape(trials):
        task = _opened(group[0].config)
        ledger.check_data(group, task)
        headline = headline or _headline(task, group[0].config)
        done = ledger.results
        left = [trial for trial in group if trial.name not in done]
        if not left:
            continue
        programs, rows = _compiled(group, task, together)
        for first in range(0, len(left), together):
            lease.check()
            some = left[first : first + together]
            _log.info(
                "%d of %d runs done; now %s.",
                len(ledger.results),
                len(trials),
                "; ".join(trial.name for trial in some),
            )
            wave = Wave(some, task, programs, rows, ledger.wave(some, together), workdir)
            wave.train()
            _finish(wave, headline, ledger, original, workdir)
    found = summary(trials, ledger.results, headline)
    if hosts.is_first():
        write(workdir / RESULT_FILE, found)
        ledger.clear()
    return found


def _opened(config: Config) -> Task:
    """The data of runs of one shape."""
    task = registry.find(config.task)(config)
    if not task.evaluation_sets():
        raise InputError(f"{config.data['dir']} has no held-out data, and runs are told by scores.")
    return task


def _compiled(group: Sequence[Trial], task: Task, together: int) -> tuple[Together, int]:
    """The programs of runs of one shape, and the rows of a batch that suit all."""
    first = group[0].config
    config = dataclasses.replace(task.config, init=first.init).resolve(task.examples_per_epoch)
    prepared = [_prepared(task, _resolved(trial.config, config)) for trial in group]
    rows = max(each.objective.rows for each in prepared)
    task.objective.rows = rows
    programs = Together([config] * together, task.objective)
    return programs, rows


def _prepared(task: Task, config: Config) -> Task:
    own = task.reseeded(config)
    own.prepare(config.total_steps)
    return own


def _resolved(config: Config, like: Config) -> Config:
    """A configuration with the numbers of steps of another one, and what data told of it."""
    optimizer = dataclasses.replace(like.optimizer, learning_rate=config.optimizer.learning_rate)
    return dataclasses.replace(
        like, seed=config.seed, data_seed=config.data_seed, optimizer=optimizer
    )


def _filled(array: np.ndarray, rows: int) -> np.ndarray:
    """With empty rows at the end."""
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))


def _mean(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over those that are finite; of one name that is nowhere, NaN."""
    found = {}
    for name in values[0]:
        finite = [each[name] for each in values if math.isfinite(each.get(name, math.nan))]
        found[name] = float(np.mean(finite)) if finite else math.nan
    return found


def _finish(
    wave: Wave,
    headline: str,
    ledger: Ledger,
    original: Config,
    workdir: epath.Path,
) -> None:
    """Notes what became of a wave's runs, and keeps the best of all so far."""
    scores = wave.results()
    results = {
        trial.name: {
            # JSON knows no number that is not finite.
            "scores": {k: v if math.isfinite(v) else None for k, v in own.items()},
            "failed": _failed(wave.task, own),
        }
        for trial, own in zip(wave.trials, scores, strict=True)
    }
    merits = [merit(headline, own) for own in scores]
    number = int(np.argmax(merits))
    earlier = [_merit(headline, each["scores"]) for each in ledger.results.values()]
    if merits[number] > max(earlier, default=-math.inf):
        wave.write_best(number, original, workdir / BEST)
    ledger.note(wave.workdir, wave.trials, wave.task, results)
    if hosts.is_first():
        wave.checkpoints.directory.rmtree()
    hosts.wait_for_all("wave")


def _failed(task: Task, scores: Mapping[str, float]) -> bool:
    return not math.isfinite(scores.get("loss", math.nan)) or task.failed(scores)


def _merit(name: str, scores: Mapping[str, float | None]) -> float:
    return merit(name, {key: value for key, value in scores.items() if value is not None})


def _headline(task: Task, config: Config) -> str:
    """The score by which runs are told apart."""
    name = config.keep_best or next(iter(task.headline), "")
    if not name:
        raise InputError(f"task={config.task} names no score to tell runs apart: set keep_best.")
    return name


def summary(
    trials: Sequence[Trial], results: Mapping[str, Mapping[str, Any]], headline: str
) -> dict[str, Any]:
    """What `sweep.json` holds. Means are over the runs that did not fail, which are counted."""
    merits = {name: _merit(headline, each["scores"]) for name, each in results.items()}
    points = []
    for at in dict.fromkeys(trial.at for trial in trials):
        own = [results[trial.name] for trial in trials if trial.at == at]
        good = [each["scores"][headline] for each in own if not each["failed"]]
        points.append(
            {
                "point": at,
                "n": len(own),
                "failed": sum(each["failed"] for each in own),
                "mean": float(np.mean(good)) if good else None,
                "deviation": float(np.std(good, ddof=1)) if len(good) > 1 else None,
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
        raise RunError(f"no run has a finite {headline}: lower optimizer.learning_rate.")
    return {"score": headline, "points": points, "best": best, "runs": runs}
