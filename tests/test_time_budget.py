"""A run that ends by the clock."""

import itertools
import json
import shutil
import time
from types import SimpleNamespace

import pytest
from etils import epath
from test_train import losses, make_run_config, metrics

from bertjax.config.config import load_config
from bertjax.config.durations import TICKS
from bertjax.tasks import registry
from bertjax.training import cadence, time_budget
from bertjax.training.time_budget import BUDGET_FILE, TimeBudget
from bertjax.training.trainer import Trainer
from data_pipelines.errors import InputError
from experiments import pretraining

SECONDS = 1000.0


class Clock:
    """Seconds that pass as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 5.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def follow(
    budget: TimeBudget, clock: Clock, first: int = 0, stop: int = 10**6, pace: float = 1.0
) -> list[float]:
    """The tick of each step from `first` to the last, or to `stop`; steps take `pace` seconds."""
    ticks, step = [], first
    budget.begin(first)
    while step < stop and not (step and budget.is_over(step)):
        ticks.append(budget.plan(step).at(step))
        step += 1
        clock.now += pace
        if step % 10 == 0:
            budget.update(step)
    return ticks


@pytest.mark.parametrize("pace", [0.1, 1.0, 7.0])
def test_a_run_ends_when_its_time_does(tmp_path, clock, pace) -> None:
    ticks = follow(TimeBudget(epath.Path(tmp_path), SECONDS), clock, pace=pace)
    assert len(ticks) * pace == pytest.approx(SECONDS, rel=0.01, abs=pace)
    assert ticks == sorted(ticks) and ticks[0] == 0
    assert ticks[-1] == pytest.approx(TICKS, rel=0.01 + 2 * pace / SECONDS)


def test_a_machine_that_grows_slow_ends_in_time_all_the_same(tmp_path, clock) -> None:
    budget = TimeBudget(epath.Path(tmp_path), SECONDS)
    follow(budget, clock, stop=400, pace=1.0)
    before = budget.plan(399).at(399)
    ticks = follow(budget, clock, first=400, pace=6.0)
    assert [before, *ticks] == sorted([before, *ticks])  # and no rate goes back
    assert 400 + len(ticks) * 6 == pytest.approx(SECONDS, abs=15)


def test_until_the_first_look_no_time_is_known(tmp_path, clock) -> None:
    budget = TimeBudget(epath.Path(tmp_path), SECONDS)
    assert follow(budget, clock, stop=9) == [0.0] * 9
    assert not budget.is_over(10**9)


def test_time_that_is_over_before_a_rate_is_known_is_told(tmp_path, clock, caplog) -> None:
    follow(TimeBudget(epath.Path(tmp_path), SECONDS), clock, pace=200.0)
    assert "was over after 20 steps, before it had a rate to learn at" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "first", "each"), [(600, 2.0, 0.005), (3600, 5.0, 0.05), (72_000, 10.0, 0.25)]
)
def test_a_slow_first_step_is_not_taken_for_the_others(
    tmp_path, clock, seconds, first, each
) -> None:
    budget = TimeBudget(epath.Path(tmp_path), seconds)
    budget.begin(0)
    clock.now += first
    done = 1
    while clock.now - 5 < seconds / 50:
        if done in (1, 2, 11) or done % 100 == 0:  # as the train loop has it
            budget.update(done + 1)
        clock.now += each
        done += 1
        passed = (clock.now - 5) / seconds
        assert budget.share(done) == pytest.approx(passed, abs=max(0.005, 1.2 * first / seconds))


def test_a_second_look_at_a_step_changes_nothing(tmp_path, clock) -> None:
    budget = TimeBudget(epath.Path(tmp_path), SECONDS)
    budget.begin(0)
    for step in range(1, 400):
        clock.now += 1.0
        for _ in range(2):
            budget.update(step)
    assert budget.share(399) == pytest.approx(0.4, abs=0.01)


def test_what_was_planned_is_followed_again_to_the_same_ticks(tmp_path, clock) -> None:
    budget = TimeBudget(epath.Path(tmp_path), SECONDS)
    ticks = follow(budget, clock, stop=600, pace=1.0)
    clock.now += 10_000  # while the run is stopped
    again = TimeBudget(epath.Path(tmp_path), SECONDS)
    assert follow(again, clock, first=400, stop=600, pace=0.3) == ticks[400:]
    rest = follow(again, clock, first=600, pace=1.0)
    assert len(rest) == pytest.approx(400, rel=0.05)


def test_plans_are_few(tmp_path, clock) -> None:
    budget = TimeBudget(epath.Path(tmp_path), SECONDS)
    follow(budget, clock, pace=0.01)
    assert len((tmp_path / BUDGET_FILE).read_text().split("], [")) <= 202


def test_a_file_that_no_run_wrote_is_refused(tmp_path) -> None:
    (tmp_path / BUDGET_FILE).write_text('{"step": 1}')
    with pytest.raises(InputError, match=r"budget\.json is not what a run wrote"):
        TimeBudget(epath.Path(tmp_path), SECONDS)


@pytest.fixture
def ticking(monkeypatch) -> None:
    """A quarter of a second passes whenever a run looks at the clock."""
    asked = itertools.count()
    for module in (time_budget, cadence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(asked) / 4))


@pytest.mark.slow
def test_a_run_by_the_clock_ends_and_goes_on_as_planned(corpus, tmp_path, ticking) -> None:
    """Its rate rises and falls, and from its first checkpoint it is trained to the same bytes."""
    config = make_run_config(
        corpus,
        steps="15 seconds",
        log_every=1,
        checkpoint_every="25%",
        eval_every="50%",
        max_to_keep=99,
        optimizer__warmup="20%",
    )
    whole, again = tmp_path / "whole", tmp_path / "again"
    Trainer(config, whole).train()
    train = [m for m in metrics(whole) if m["split"] == "train"]
    rates = [m["learning_rate"] for m in train]
    top = rates.index(max(rates))
    assert 0 < top < len(rates) - 1
    assert rates[1:top] == sorted(rates[1:top]) and rates[top:] == sorted(rates[top:])[::-1]
    assert rates[-1] < 0.2 * max(rates) and train[-1]["budget"] == pytest.approx(1, abs=0.01)
    assert len([m for m in metrics(whole) if m["split"] == "eval"]) >= 2

    shutil.copytree(whole, again)
    for path in sorted((again / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    Trainer(config, again).train()
    plans, followed = (json.loads((path / BUDGET_FILE).read_text()) for path in (whole, again))
    assert followed[: len(plans)] == plans
    planned = plans[-1][0]
    same = [entry for entry in losses(whole) if entry[1] == "train" and entry[0] <= planned]
    assert same == [e for e in losses(again) if e[1] == "train" and e[0] <= planned]
    Trainer(config, again).train()  # which is over


@pytest.mark.slow
def test_a_short_run_learns_before_it_logs(corpus, tmp_path, ticking) -> None:
    """And keeps the first checkpoint after each half of its time."""
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
    run = Trainer(config, tmp_path)
    run.train()
    plans = json.loads((tmp_path / BUDGET_FILE).read_text())
    assert plans[1][0] <= 3 and plans[1][2] > 0
    half, end = run.checkpoints.all_steps()
    shares = [TimeBudget(epath.Path(tmp_path), 3.0).share(step) for step in (half - 10, half, end)]
    assert shares[0] < 0.5 <= shares[1] < shares[2]


@pytest.mark.parametrize("recipe", pretraining.RECIPES)
def test_the_clock_may_end_every_recipe(recipe) -> None:
    config = load_config(
        f"pretraining:recipe={recipe},data=x", {"steps": "20 hours"}, registry.data_fields()
    ).resolve()
    assert config.budget_seconds == 72_000 and config.interval_seconds("checkpoint_every")
