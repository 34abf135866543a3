"""Tests of runs with a time budget."""

import itertools
import json
import pathlib
import shutil
import time
from types import SimpleNamespace

import pytest
from etils import epath
from pretraining_runs import losses, make_run_config, metrics

from bertjax.config.loading import load_config
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training import cadence, time_budget
from bertjax.training.setup import make_trainer
from bertjax.training.time_budget import BUDGET_FILE, TimeBudget
from data_pipelines.errors import InputError
from experiments import pretraining

SECONDS = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Clock that a test sets."""
    clock = SimpleNamespace(now=5.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def budget(tmp_path: pathlib.Path) -> TimeBudget:
    return TimeBudget(epath.Path(tmp_path), SECONDS)


def train(
    budget: TimeBudget, clock, first: int = 0, stop: int = 10**6, step_seconds: float = 1.0
) -> list[float]:
    """Return the progress of each step from `first` to the last step, or to `stop`."""
    progress, step = [], first
    budget.start_clock(first)
    while step < stop and not (step and budget.is_over(step)):
        progress.append(budget.progress(step))
        step += 1
        clock.now += step_seconds
        if step % 10 == 0:
            budget.update(step)
    return progress


@pytest.mark.seconds
@pytest.mark.parametrize("step_seconds", [0.1, 1.0, 7.0])
def test_run_ends_when_its_budget_does(budget, clock, step_seconds) -> None:
    progress = train(budget, clock, step_seconds=step_seconds)
    assert len(progress) * step_seconds == pytest.approx(SECONDS, rel=0.01, abs=step_seconds)
    assert progress == sorted(progress) and progress[0] == 0
    assert progress[-1] == pytest.approx(1, rel=0.01 + 2 * step_seconds / SECONDS)


@pytest.mark.seconds
def test_run_that_slows_down_ends_in_time(budget, clock) -> None:
    train(budget, clock, stop=400)
    before = budget.progress(399)
    progress = train(budget, clock, first=400, step_seconds=6.0)
    assert [before, *progress] == sorted([before, *progress])
    assert 400 + len(progress) * 6 == pytest.approx(SECONDS, abs=15)


def test_progress_is_0_before_the_first_reading(budget, clock) -> None:
    assert train(budget, clock, stop=9) == [0.0] * 9
    assert not budget.is_over(10**9)


def test_budget_that_ends_before_the_first_learning_rate_is_warned_of(
    budget, clock, caplog
) -> None:
    train(budget, clock, step_seconds=200.0)
    assert "ended after 20 steps, before the first learning rate above 0" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "first", "others"), [(600, 2.0, 0.005), (3600, 5.0, 0.05), (72_000, 10.0, 0.25)]
)
def test_duration_of_a_slow_first_step_is_not_that_of_the_others(
    tmp_path, clock, seconds, first, others
) -> None:
    budget = TimeBudget(epath.Path(tmp_path), seconds)
    budget.start_clock(0)
    clock.now += first
    done = 1
    while clock.now - 5 < seconds / 50:
        if done in (1, 2, 11) or done % 100 == 0:  # as the training loop does
            budget.update(done + 1)
        clock.now += others
        done += 1
        elapsed = (clock.now - 5) / seconds
        tolerance = max(0.005, 1.2 * first / seconds)
        assert budget.progress(done) == pytest.approx(elapsed, abs=tolerance)


@pytest.mark.seconds
def test_second_update_at_a_step_changes_nothing(budget, clock) -> None:
    budget.start_clock(0)
    for step in range(1, 400):
        clock.now += 1.0
        for _ in range(2):
            budget.update(step)
    assert budget.progress(399) == pytest.approx(0.4, abs=0.01)


@pytest.mark.seconds
def test_resumed_run_replays_the_recorded_progress(tmp_path, budget, clock) -> None:
    progress = train(budget, clock, stop=600)
    clock.now += 10_000  # while the run is stopped
    resumed = TimeBudget(epath.Path(tmp_path), SECONDS)
    assert train(resumed, clock, first=400, stop=600, step_seconds=0.3) == progress[400:]
    remaining = train(resumed, clock, first=600)
    assert len(remaining) == pytest.approx(400, rel=0.05)


@pytest.mark.seconds
def test_segments_are_few(tmp_path, budget, clock) -> None:
    train(budget, clock, step_seconds=0.01)
    assert len(json.loads((tmp_path / BUDGET_FILE).read_text())) <= 202


def test_damaged_budget_file_is_rejected(tmp_path) -> None:
    (tmp_path / BUDGET_FILE).write_text('{"step": 1}')
    with pytest.raises(InputError, match=r"budget\.json: not a list"):
        TimeBudget(epath.Path(tmp_path), SECONDS)


@pytest.fixture
def ticking(monkeypatch) -> None:
    """Let a quarter of a second pass whenever the clock is read."""
    readings = itertools.count()
    for module in (time_budget, cadence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(readings) / 4))


@pytest.mark.minutes
def test_resumed_run_with_a_time_budget_is_bit_identical(corpus, tmp_path, ticking) -> None:
    """Trains a whole run, then again from its first checkpoint with its budget file."""
    config = make_run_config(
        corpus,
        steps="15 seconds",
        log_every=1,
        checkpoint_every="25%",
        eval_every="50%",
        max_to_keep=99,
        optimizer__warmup="20%",
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    make_trainer(config, whole).train()
    train_lines = [line for line in metrics(whole) if line["split"] == "train"]
    rates = [line["learning_rate"] for line in train_lines]
    peak = rates.index(max(rates))
    assert 0 < peak < len(rates) - 1
    assert rates[1:peak] == sorted(rates[1:peak]) and rates[peak:] == sorted(rates[peak:])[::-1]
    assert rates[-1] < 0.2 * max(rates)
    assert train_lines[-1]["progress"] == pytest.approx(1, abs=0.01)
    assert len([line for line in metrics(whole) if line["split"] == "eval"]) >= 2

    shutil.copytree(whole, resumed)
    for path in sorted((resumed / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    make_trainer(config, resumed).train()
    recorded, replayed = (json.loads((path / BUDGET_FILE).read_text()) for path in (whole, resumed))
    assert replayed[: len(recorded)] == recorded

    def replayed_losses(workdir: pathlib.Path) -> list[tuple]:
        last = recorded[-1][0]
        return [line for line in losses(workdir) if line[1] == "train" and line[0] <= last]

    assert replayed_losses(whole) == replayed_losses(resumed) != []
    make_trainer(config, resumed).train()  # it is complete


@pytest.mark.slow
def test_short_run_has_a_learning_rate_before_it_logs(corpus, tmp_path, ticking) -> None:
    """Also keeps the first checkpoint after each half of the budget."""
    config = make_run_config(
        corpus,
        steps="3 seconds",
        log_every=10**6,
        checkpoint_every=10,
        max_to_keep=1,
        eval_every="100%",
        keep_period="50%",
        optimizer__warmup="20%",
    )
    trainer = make_trainer(config, tmp_path)
    trainer.train()
    _, (step, _, per_step), *_ = json.loads((tmp_path / BUDGET_FILE).read_text())
    assert step <= 3 and per_step > 0
    half, end = trainer.checkpointer.all_steps()
    budget = TimeBudget(epath.Path(tmp_path), 3.0)
    progress = [budget.progress(step) for step in (half - 10, half, end)]
    assert progress[0] < 0.5 <= progress[1] < progress[2]


def test_polynomial_schedule_may_have_a_time_budget(corpus) -> None:
    fields = {"optimizer__schedule": "polynomial", "optimizer__decay_power": 2.0}
    config = make_run_config(corpus, steps="2 hours", **fields)
    functions = StepFunctions(config, registry.make_objective(config, 8))
    assert functions.state_shapes.opt_state


@pytest.mark.parametrize("recipe", pretraining.RECIPES)
def test_every_recipe_may_have_a_time_budget(recipe) -> None:
    config = load_config(
        f"pretraining:recipe={recipe},data=x", {"steps": "20 hours"}, registry.data_fields()
    ).resolve()
    assert config.budget_seconds == 72_000 and config.interval_seconds("checkpoint_every")
