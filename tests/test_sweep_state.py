"""Tests of the state of a sweep: interrupted runs resume, in the order of the sweep."""

import json
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import toy_tasks
from etils import epath

from bertjax.checkpointing.retention import BestMetric
from bertjax.config.config import Config
from bertjax.sweeps import sweep as sweep_module
from bertjax.sweeps.grid import Trial, make_trials
from bertjax.sweeps.search import Search
from bertjax.sweeps.sweep import SweepRunner, _comparable_curve, sweep
from bertjax.sweeps.sweep_state import SweepState
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError

FAKE_TASK: Any = types.SimpleNamespace(
    data_fingerprint="same", stored_logits=None, primary_metrics=["accuracy"], open_logits=int
)


def load(fields: Mapping[str, str]) -> Config:
    return toy_tasks.configuration("single_label", pathlib.Path("toys"), **fields)


def outcomes(trials: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    """Return a score for each run, by the last digits of its learning rate."""
    return {
        trial.name: {
            "scores": {"accuracy": trial.config.optimizer.learning_rate % 1e-5 * 1e5},
            "failed": False,
        }
        for trial in trials
    }


class FakeTraining:
    """Parallel runs without training, the last of which is interrupted.

    Attributes:
      trained: directory and names of the runs that were trained together, in order.
      resumed: whether the directory of the runs existed before, for each of `trained`.
      error: what interrupts.
    """

    error: BaseException = KeyboardInterrupt()

    def __init__(self, patch: pytest.MonkeyPatch, interrupted: int | None = None) -> None:
        self.trained: list[tuple[str, list[str]]] = []
        self.resumed: list[bool] = []
        self._interrupted = interrupted
        functions = types.SimpleNamespace(state_shapes=types.SimpleNamespace(metric_sums={}))
        patch.setattr(sweep_module, "_load_task", lambda config: FAKE_TASK)
        patch.setattr(sweep_module, "open_teacher", lambda *args: None)
        patch.setattr(sweep_module, "check_best_metric", lambda *args: None)
        patch.setattr(sweep_module, "_make_step_functions", lambda *args: functions)
        patch.setattr(sweep_module, "make_parallel_trainer", self._make_trainer)
        patch.setattr(sweep_module, "_record", self._record)

    def _make_trainer(
        self, trials: Sequence[Trial], task: object, functions: object, path: epath.Path, *_: object
    ) -> tuple[Any, None]:
        def train() -> None:
            self.resumed.append(path.exists())
            self.trained.append((path.name, [trial.name for trial in trials]))
            path.mkdir(parents=True, exist_ok=True)
            if len(self.trained) - 1 == self._interrupted:
                raise self.error

        return types.SimpleNamespace(train=train, workdir=path), None

    def _record(
        self, trainer: Any, runs: None, trials: Sequence[Trial], metric: object, state: SweepState,
        *_: object,
    ) -> None:  # fmt: skip
        state.record(trainer.workdir, trials, FAKE_TASK, outcomes(trials))


def test_search_forgets_a_point_that_cannot_be_trained(tmp_path, monkeypatch) -> None:
    ranges, grid = ["optimizer.learning_rate=1e-5..1e-3:log"], ["batch_size=8,16,24"]
    monkeypatch.setattr(FakeTraining, "error", InputError("a step takes too much memory"))
    search = Search(load, "random", ranges, grid, 20, 1)
    with pytest.MonkeyPatch.context() as patch:
        training = FakeTraining(patch, 4)
        with pytest.raises(InputError, match="too much memory"):
            sweep(search, load({}), tmp_path)
    trained = {name for _, names in training.trained[:4] for name in names}
    rounds = json.loads((tmp_path / "proposals.json").read_text())
    assert len(rounds) == 2 and {name for names in rounds for name in names} == trained
    with pytest.MonkeyPatch.context() as patch:
        FakeTraining(patch, None)
        assert len(sweep(search, load({}), tmp_path)["runs"]) == 20


def test_a_directory_best_of_no_sweep_is_not_replaced(tmp_path) -> None:
    (tmp_path / "best").mkdir()
    with pytest.raises(InputError, match="has a directory best that is of no sweep"):
        SweepState(epath.Path(tmp_path))


@pytest.mark.seconds
def test_resumed_search_trains_in_the_order_of_one_that_was_not_interrupted(tmp_path) -> None:
    """Rounds of eight points with three shapes each, of which every training is interrupted."""

    def run(workdir: pathlib.Path, interrupted: int | None = None) -> FakeTraining:
        ranges, grid = ["optimizer.learning_rate=1e-5..1e-3:log"], ["batch_size=8,16,24"]
        search = Search(load, "random", ranges, grid, 20, 1)
        with pytest.MonkeyPatch.context() as patch:
            training = FakeTraining(patch, interrupted)
            if interrupted is None:
                sweep(search, load({}), workdir)
            else:
                with pytest.raises(KeyboardInterrupt):
                    sweep(search, load({}), workdir)
        return training

    expected = run(tmp_path / "undisturbed").trained
    assert len(expected) > 6
    result = (tmp_path / "undisturbed" / "sweep.json").read_bytes()
    for interrupted in range(len(expected)):
        workdir = tmp_path / str(interrupted)
        before, after = run(workdir, interrupted), run(workdir)
        assert before.trained + after.trained[1:] == expected
        assert after.resumed[0] and not any(after.resumed[1:])
        assert (workdir / "sweep.json").read_bytes() == result


def test_parallel_dir_finds_interrupted_runs_when_others_have_ended(tmp_path) -> None:
    """New values of a grid come first, and then the runs that were interrupted."""
    trials = make_trials(load, ["optimizer.learning_rate=1e-3,2e-3,3e-3"], 1)
    state = SweepState(epath.Path(tmp_path))
    interrupted = state.parallel_dir(trials[:1], 8)
    interrupted.mkdir(parents=True)
    for trial in trials[1:]:
        path = state.parallel_dir([trial], 8)
        path.mkdir()
        state.record(path, [trial], FAKE_TASK, outcomes([trial]))
    assert state.parallel_dir(trials[:1], 8) == interrupted
    assert state.parallel_dir(trials[:1], 16) != interrupted  # another state
    state.record(interrupted, trials[:1], FAKE_TASK, outcomes(trials[:1]))
    # The order of the results decides which of equal runs is the best.
    again = SweepState(epath.Path(tmp_path))
    assert [*again.results] == [*state.results] == [t.name for t in (*trials[1:], trials[0])]
    assert again.results == state.results


def test_pruning_compares_runs_at_the_same_fraction_of_their_steps(tmp_path) -> None:
    """Runs of 1,000 steps have ended; a batch of eight times the size takes 125 steps."""
    trials = make_trials(load, [], 5)
    state, metric = SweepState(epath.Path(tmp_path)), BestMetric("accuracy")
    steps = range(125, 1001, 125)
    curve = _comparable_curve({n: {"accuracy": n / 1000} for n in steps}, metric, 1000)
    results = outcomes(trials)
    for result in results.values():
        result["curve"] = {str(progress): score for progress, score in curve.items()}
    path = state.parallel_dir(trials, 8)
    path.mkdir(parents=True)
    state.record(path, trials, FAKE_TASK, results)
    state = SweepState(epath.Path(tmp_path))  # from the file
    runner = SweepRunner(load({}), state, WorkdirLock(epath.Path(tmp_path)), 1, 8, prunes=True)
    runner.primary_metric = metric
    pruning = runner._make_pruning()
    for factor in (0.8, 1.0):
        scores = {"short": {n: {"accuracy": factor * n / 125} for n in (16, 32, 48)}}
        assert pruning(scores, 125) == (factor < 1)
