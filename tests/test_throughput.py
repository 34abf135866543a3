"""Tests of the throughput meter and the profiler."""

import collections
import itertools
import pathlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bertjax.training import throughput
from bertjax.training.throughput import Profiler, ThroughputMeter
from data_pipelines.rampup import BatchSizeRampup


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def feed() -> SimpleNamespace:
    return SimpleNamespace(wait_seconds=7.0)


def make_meter(
    feed, step: int = 10, batch_unit: str = "sequences", **rampup: int
) -> ThroughputMeter:
    """Return the meter of a run resumed from a step, on 2 devices."""
    objective = SimpleNamespace(step_flops=lambda: 40.0, batch_size=8, batch_unit=batch_unit)
    config = SimpleNamespace(batch_size=16, max_seq_length=32, rampup=BatchSizeRampup(16, **rampup))
    mesh = jax.sharding.Mesh(jax.devices()[:2], "data")
    return ThroughputMeter(objective, config, mesh, feed, step, num_runs=1)


@pytest.fixture
def meter(clock, feed, monkeypatch) -> ThroughputMeter:
    """Return the meter of a run on devices of 50 FLOP/s."""
    monkeypatch.setattr(throughput.flops, "peak_flops", lambda kind: 50.0)
    return make_meter(feed)


def test_rates_are_those_of_the_steps_since_the_last_reading(meter, clock, feed) -> None:
    clock.now, feed.wait_seconds = 104.0, 8.0
    assert meter.read(15, {"nonpad_fraction": 0.5}) == {
        "sequences_per_second": 5 * 16 / 4,
        "tokens_per_second": 5 * 8 * 32 * 0.5 / 4,
        "mfu": 5 * 40 / 4 / 100,
        "input_wait_fraction": 0.25,
    }
    clock.now = 105.0
    again = meter.read(16, {"nonpad_fraction": 1.0})
    assert (again["sequences_per_second"], again["input_wait_fraction"]) == (16, 0)


def test_rates_of_the_first_steps_of_a_process_are_left_out(meter, clock) -> None:
    clock.now = 110.0  # the first two steps were over long before
    assert meter.read(11, {"nonpad_fraction": 1.0}) == {}
    clock.now = 110.001
    assert meter.read(12, {"nonpad_fraction": 1.0}) == {}
    clock.now = 111.001
    assert meter.read(13, {"nonpad_fraction": 1.0})["sequences_per_second"] == pytest.approx(16)


def test_mfu_is_left_out_for_an_unknown_peak(clock, feed) -> None:
    meter = make_meter(feed)
    clock.now = 104.0
    assert "mfu" not in meter.read(15, {"nonpad_fraction": 0.5})


def test_rates_count_the_sequences_of_a_batch_size_rampup(clock, feed) -> None:
    meter = make_meter(feed, step=5, rampup=4, steps=30)
    clock.now = 104.0
    assert meter.read(15, {"nonpad_fraction": 1.0})["sequences_per_second"] == (5 * 4 + 5 * 8) / 4


def test_rates_exclude_pauses(meter, clock) -> None:
    clock.now = 101.0
    with meter.pause():
        clock.now = 150.0
    clock.now = 151.0
    assert meter.read(14, {"nonpad_fraction": 1.0})["sequences_per_second"] == 4 * 16 / 2


@pytest.mark.parametrize("unit", ["sequences", "examples"])
def test_a_rate_has_the_unit_of_the_batch_size(feed, clock, unit) -> None:
    meter = make_meter(feed, batch_unit=unit)
    clock.now = 104.0
    rates = meter.read(15, {"nonpad_fraction": 1.0})
    assert rates.pop(f"{unit}_per_second") == 5 * 16 / 4
    assert rates.keys() == {"tokens_per_second", "input_wait_fraction"}


def test_advice_about_long_pauses_is_given_once(meter, clock) -> None:
    for minute in range(1, 5):
        with meter.pause():
            clock.now += 40
        clock.now += 20
        advice = meter.advice()
        assert advice.startswith("evaluations and checkpoints take 67% of") == (minute == 2)


def test_advice_ignores_short_pauses(meter, clock) -> None:
    with meter.pause():
        clock.now += 80
    clock.now += 200
    assert not meter.advice()


def test_advice_ignores_pauses_that_are_not_periodic(meter, clock) -> None:
    with meter.pause(periodic=False):
        clock.now += 200
    assert not meter.advice()


def operations(directory: pathlib.Path) -> collections.Counter[str]:
    """Return how often each tanh of a compiled program ran during the trace."""
    (file,) = directory.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    lines = itertools.chain.from_iterable(plane.lines for plane in planes)
    names = [event.name for line in lines for event in line.events]
    return collections.Counter(name for name in names if name.startswith(("tanh", "wrapped_tanh")))


@pytest.mark.seconds
def test_profiler_traces_its_steps_and_no_others(tmp_path) -> None:
    @jax.jit
    def step(x):
        for _ in range(20):
            x = jnp.tanh(x @ x)
        return x

    x = step(jnp.ones((300, 300)))  # compiled
    with Profiler(range(4, 6), epath.Path(tmp_path)) as profiler:
        for done in range(12):
            profiler.before(done, x)
            x = step(x)  # the host is ahead of the device
            profiler.after(done + 1, x)
    counts = operations(tmp_path)
    assert counts and set(counts.values()) == {2}


def test_profiler_without_steps_writes_nothing(tmp_path) -> None:
    with Profiler(range(0), epath.Path(tmp_path)) as profiler:
        profiler.before(0, None)
        profiler.after(1, None)
    assert not any(tmp_path.iterdir())
