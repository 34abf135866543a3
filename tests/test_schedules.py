"""Learning rate schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config.optimizer_config import SCHEDULES, OptimizerConfig
from bertjax.steps.schedules import learning_rate_schedule

TURNS = [(10, 100), (10_000, 1_000_000), (2_000, 7_038)]


def make_schedule(
    name: str, peak: float, warmup: int, total: int, cooldown: int = 0
) -> optax.Schedule:
    durations = {"warmup_steps": warmup, "total_steps": total, "cooldown_steps": cooldown}
    return learning_rate_schedule(OptimizerConfig(schedule=name, learning_rate=peak, **durations))


def rates(name: str, steps: list[int], warmup: int, total: int, cooldown: int = 0) -> np.ndarray:
    rate = make_schedule(name, 6e-3, warmup, total, cooldown)
    return np.array([float(rate(step)) for step in steps]) / np.float32(6e-3)


@pytest.mark.parametrize(("warmup", "total"), TURNS)
def test_linear_schedules_have_exact_rates_at_their_turns(warmup: int, total: int) -> None:
    steps = [0, 1, warmup - 1, warmup, total - 1, total]
    after, last = 1 / (total - warmup), 1 / total
    exact = [0, 1 / warmup, 1 - 1 / warmup, 1, after, 0]
    np.testing.assert_allclose(rates("linear", steps, warmup, total), exact, rtol=2e-7)
    exact = [0, 1 / warmup, 1 - 1 / warmup, 1 - warmup / total, last, 0]
    np.testing.assert_allclose(rates("bert_linear", steps, warmup, total), exact, rtol=2e-7)


@pytest.mark.parametrize(("warmup", "total"), TURNS)
def test_one_cycle_is_half_a_cosine_up_and_down(warmup: int, total: int) -> None:
    down = total - warmup
    steps = [0, 1, warmup // 2, warmup, warmup + down // 2, total - 1, total]
    parts = [0, 1 / warmup, (warmup // 2) / warmup, 1, 1 - (down // 2) / down, 1 / down, 0]
    exact = [(1 - np.cos(np.pi * part)) / 2 for part in parts]
    actual = rates("one_cycle", steps, warmup, total)
    np.testing.assert_allclose(actual, exact, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize(("warmup", "total"), TURNS)
def test_cosine_and_polynomial_have_a_linear_warmup(warmup: int, total: int) -> None:
    down = total - warmup
    steps = [0, 1, warmup, warmup + down // 2, total - 1, total]
    left = np.array([1 - (down // 2) / down, 1 / down, 0])
    exact = [0, 1 / warmup, 1, *(1 - np.cos(np.pi * left)) / 2]
    actual = rates("cosine", steps, warmup, total)
    np.testing.assert_allclose(actual, exact, rtol=2e-6, atol=1e-12)
    fields = {"warmup_steps": warmup, "total_steps": total, "decay_power": 2.0}
    rate = learning_rate_schedule(OptimizerConfig(schedule="polynomial", **fields))
    actual = np.array([float(rate(step)) for step in steps]) / np.float32(1e-4)
    np.testing.assert_allclose(actual, [0, 1 / warmup, 1, *left**2], rtol=2e-6)
    linear = rates("linear", steps, warmup, total)
    np.testing.assert_array_equal(rates("polynomial", steps, warmup, total), linear)


@pytest.mark.parametrize(("warmup", "total"), TURNS)
def test_wsd_has_warmup_constant_rate_and_cooldown(warmup: int, total: int) -> None:
    cooldown = total // 5
    steps = [0, warmup // 2, warmup, total // 2, total - cooldown, total - cooldown // 2, total]
    half = 1 - np.sqrt(1 - (cooldown // 2) / cooldown)
    exact = [0, (warmup // 2) / warmup, 1, 1, 1, half, 0]
    actual = rates("wsd", steps, warmup, total, cooldown)
    np.testing.assert_allclose(actual, exact, rtol=2e-6)


def test_wsd_without_cooldown_keeps_the_peak_rate() -> None:
    assert rates("wsd", [10, 50, 99, 100], 10, 100).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_without_warmup_starts_at_the_peak_rate(name: str) -> None:
    assert rates(name, [0], 0, 100, 20 * (name == "wsd")) == [1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_never_negative_and_zero_after_the_end(name: str) -> None:
    rate = make_schedule(name, 1e-3, 10, 100, 20 * (name == "wsd"))
    actual = np.asarray(jax.jit(jax.vmap(rate))(jnp.arange(300)))
    assert actual.dtype == np.float32
    assert (actual >= 0).all() and (actual <= np.float32(1e-3)).all()
    assert (actual[100:] == 0).all()
    assert (actual[1:100] > 0).all()
