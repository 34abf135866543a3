"""Durations of all units: resolution to steps, rounding and validation."""

from fractions import Fraction

import pytest
from config_loading import parse
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config import durations
from bertjax.config.config import MIN_INTERVAL_STEPS
from data_pipelines.errors import InputError


@given(steps=st.integers(1, 10**9))
def test_resolve_keeps_steps(steps: int) -> None:
    assert parse(steps=steps, optimizer={"warmup": 0}).resolve().steps == steps


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (7, 7),
        ("7 steps", 7),
        ("1 step", 1),
        ("10%", 20),
        ("5.25 percent", 11),
        ("100 examples", 10),
        ("101 examples", 11),
        ("1 epoch", 50),
        ("0.5 epochs", 25),
    ],
)
def test_resolve_converts_durations_of_all_units(duration: int | str, steps: int) -> None:
    config = parse(steps=200, batch_size=10, log_every=duration, optimizer={"warmup": 0})
    assert config.resolve(examples_per_epoch=500).log_every == steps


INTERVALS = ["log_every", "checkpoint_every", "eval_every", "keep_period"]


@given(steps=st.integers(1, 10**6), percent=st.integers(1, 100), name=st.sampled_from(INTERVALS))
def test_resolve_rounds_percentages_up_to_the_shortest_interval(
    steps: int, percent: int, name: str
) -> None:
    config = parse(steps=steps, optimizer={"warmup": 0}, **{name: f"{percent}%"}).resolve()
    assert getattr(config, name) == max(MIN_INTERVAL_STEPS, -(-percent * steps // 100)) >= 10


@pytest.mark.parametrize("name", INTERVALS)
@pytest.mark.parametrize(("duration", "steps"), [(1, 1), ("3 steps", 3), ("20 examples", 2)])
def test_resolve_keeps_intervals_in_steps(name: str, duration: int | str, steps: int) -> None:
    config = parse(steps=20, batch_size=10, optimizer={"warmup": 0}, **{name: duration}).resolve()
    assert getattr(config, name) == steps


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 1), (20, 2), (21, 3)])
def test_resolve_leaves_a_step_after_a_warmup_in_percent(steps: int, warmup: int) -> None:
    config = parse(steps=steps, optimizer={"warmup": "10%"}).resolve()
    assert config.optimizer.warmup == warmup
    with pytest.raises(InputError, match=r"optimizer\.warmup"):
        parse(steps=steps, optimizer={"warmup": "100%"}).resolve()


def test_resolve_keeps_a_keep_period_of_zero_percent() -> None:
    assert parse(steps=20, keep_period="0%").resolve().keep_period == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": "soon"}, "steps='soon': not a duration"),
        (
            {"steps": "10%"},
            "steps='10%': the number of steps of the run is unknown. Use steps or epochs",
        ),
        ({"steps": 0}, "steps=0: is 0 steps. Use at least 1"),
        ({"steps": 10, "log_every": 0}, "log_every=0: is 0 steps"),
        ({"log_every": "5 minutes"}, "log_every='5 minutes': only steps, eval_every and"),
        (
            {"keep_period": "2 hours"},
            "keep_period='2 hours': is a time, which needs a run with a time budget",
        ),
        ({"checkpoint_every": "0 hours"}, "checkpoint_every='0 hours': is 0. Use more"),
        ({"steps": 10, "log_every": "0%"}, "log_every='0%': is 0 steps"),
        ({"steps": 10, "optimizer": {"warmup": 11}}, "optimizer.warmup=11: is not from 0"),
        ({"steps": 10, "optimizer": {"decay_steps": 9}}, "decay_steps=9"),
        ({"steps": "0 hours"}, "steps='0 hours': is a time budget of 0"),
        (
            {"steps": "0 hours", "optimizer": {"warmup": 9}},
            "steps='0 hours': is a time budget of 0",
        ),
        (
            {"steps": "2h", "optimizer": {"warmup": 100}},
            "warmup=100: not a part of a run with a time budget",
        ),
        (
            {"steps": "2h", "optimizer": {"decay_steps": "50%"}},
            "decay_steps='50%': ends before the",
        ),
        (
            {"steps": "2h", "log_every": "1%"},
            "log_every='1%': the number of steps of the run is unknown",
        ),
        (
            {"steps": "2h", "batch_size_rampup": 4},
            "batch_size_rampup=4: needs a number of steps, and steps='2h' is a time",
        ),
        ({"steps": 10, "batch_size_rampup": 3}, "batch_size_rampup=3: is not a power of 2"),
    ],
)
def test_resolve_rejects_invalid_durations(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw).resolve(examples_per_epoch=100)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30 minutes", 1800), ("1 hour", 3600), ("0.5 hours", 1800), (5, None)]
)
def test_resolve_keeps_times_of_checkpoints_and_evaluations(
    every: int | str, seconds: float | None
) -> None:
    config = parse(checkpoint_every=every, eval_every=every).resolve()
    assert config.checkpoint_every == config.eval_every == every
    for name in ("checkpoint_every", "eval_every"):
        assert config.interval_seconds(name) == seconds
    assert config.resolve() == config


def test_resolve_converts_durations_to_fractions_of_a_time_budget() -> None:
    optimizer = {"warmup": "10%", "schedule": "wsd", "cooldown": "30 minutes"}
    config = parse(steps="2h", eval_every="5%", checkpoint_every="10 minutes", optimizer=optimizer)
    config = config.resolve()
    assert (config.budget_seconds, config.total_steps) == (7200, None)
    assert config.interval_seconds("eval_every") == 360
    assert config.interval_seconds("checkpoint_every") == 600
    optimizer_config = config.optimizer_config()
    assert (optimizer_config.warmup_steps, optimizer_config.cooldown_steps) == (0.1, 0.25)
    assert optimizer_config.total_steps == 1
    assert config.resolve() == config


@pytest.mark.parametrize(
    "optimizer",
    [{"warmup": "100%"}, {"warmup": "50%", "schedule": "wsd", "cooldown": "90 minutes"}],
)
def test_resolve_rejects_a_schedule_longer_than_the_time_budget(optimizer) -> None:
    with pytest.raises(
        InputError, match=r"optimizer\.warmup='.*', optimizer\.cooldown=.*: do not fit steps='2h'"
    ):
        parse(steps="2h", optimizer=optimizer).resolve()


@given(st.integers(0, 10_000), st.integers(1, 10**6))
def test_percentages_are_rounded_up_exactly(hundredths: int, total: int) -> None:
    share = f"{hundredths // 100}.{hundredths % 100:02d}%"
    expected = -(-hundredths * total // 10_000)
    assert durations.to_steps("warmup", share, Fraction(8), None, total) == expected


@given(st.integers(0, 4), st.integers(1, 40), st.integers(1, 10**6))
def test_resolve_counts_examples_by_the_mean_batch_size_of_a_rampup(
    power: int, smallest: int, examples: int
) -> None:
    sizes = [smallest << i for i in range(power + 1)]
    config = parse(
        batch_size=sizes[-1],
        batch_size_rampup=1 << power,
        steps=f"{examples} examples",
        optimizer={"warmup": 0},
    ).resolve()
    assert config.steps == -(-examples * len(sizes) // sum(sizes))


def test_resolve_rejects_epochs_without_data() -> None:
    with pytest.raises(ValueError, match="the length of an epoch is unknown"):
        parse(steps="2 epochs").resolve()


def test_resolve_ends_the_schedule_with_the_run_by_default() -> None:
    assert parse(steps=100).resolve().optimizer_config().total_steps == 100
    later = parse(steps=100, optimizer={"decay_steps": 250}).resolve()
    assert later.optimizer_config().total_steps == 250
