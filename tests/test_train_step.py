"""The train step: losses, gradient accumulation, the metric sums, dropout keys."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.steps.train_step import (
    TrainState,
    init_state,
    make_train_step,
    means,
    sums_and_gradient,
    total_loss,
)

ROWS, WIDTH = 16, 5


def loss(params, batch, key):
    """Return two terms of different weights and a metric; `key` adds noise, as dropout does."""
    noise = 0.0 if key is None else jax.random.normal(key, batch["x"].shape[:1])
    error = (batch["x"] @ params["w"] - batch["y"] + noise) ** 2
    size = jnp.sum(jnp.abs(batch["x"] @ params["w"]) * batch["other"])
    return {
        "fit_loss": (jnp.sum(error * batch["weight"]), jnp.sum(batch["weight"])),
        "size_loss": (size, jnp.sum(batch["other"])),
        "sign": (jnp.sum((batch["y"] > 0) * batch["weight"]), jnp.sum(batch["weight"])),
    }


@pytest.fixture
def params():
    return {"w": jnp.linspace(-1.0, 1.0, WIDTH)}


@pytest.fixture
def batch():
    draw = np.random.Generator(np.random.Philox(key=3))
    return {
        "x": draw.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "y": draw.normal(size=ROWS).astype(np.float32),
        "weight": draw.integers(0, 4, ROWS).astype(np.float32),
        "other": (draw.random(ROWS) < 0.3).astype(np.float32),
    }


def state_of(params, batch, optimizer):
    return init_state(params, loss(params, batch, None), optimizer)


def test_total_loss_is_the_sum_of_the_means_of_terms(params, batch) -> None:
    sums = loss(params, batch, None)
    expected = sum(np.divide(*sums[name]) for name in ("fit_loss", "size_loss"))
    assert total_loss(sums) == pytest.approx(expected, rel=1e-6)


@pytest.mark.seconds
def test_total_loss_counts_a_term_of_weight_zero_as_zero(params, batch) -> None:
    batch["other"] = np.zeros_like(batch["other"])
    _, grads = sums_and_gradient(loss, params, batch, None)
    assert np.isfinite(grads["w"]).all()
    sums = loss(params, batch, None)
    assert total_loss(sums) == pytest.approx(float(np.divide(*sums["fit_loss"])), rel=1e-6)


@pytest.mark.parametrize("gradient_accumulation_steps", [2, 4, 16])
def test_gradient_accumulation_changes_neither_sums_nor_gradient(
    params, batch, gradient_accumulation_steps
) -> None:
    sums, grads = sums_and_gradient(loss, params, batch, None)
    parts, accumulated = sums_and_gradient(loss, params, batch, None, gradient_accumulation_steps)
    np.testing.assert_allclose(accumulated["w"], grads["w"], rtol=1e-5)
    for name, pair in sums.items():
        np.testing.assert_allclose(parts[name], pair, rtol=1e-5)


def test_microbatches_have_different_dropout_keys(params, batch) -> None:
    same = {name: np.repeat(array[:1], 2, axis=0) for name, array in batch.items()}
    same["weight"] = np.ones(2, np.float32)

    def noise(params, rows, key):
        drawn = jnp.float32(0) if key is None else jax.random.normal(key)
        return {"noise_loss": (drawn + 0 * params["w"][0], jnp.float32(1))}

    sums, _ = sums_and_gradient(noise, params, same, jax.random.key(0), 2)
    keys = [jax.random.fold_in(jax.random.key(0), part) for part in (0, 1)]
    first, second = (float(jax.random.normal(key)) for key in keys)
    assert float(sums["noise_loss"][0]) == pytest.approx(first + second)
    assert first != second


def test_metric_sums_start_again_at_a_multiple_of_log_every(params, batch) -> None:
    optimizer = optax.sgd(0.0)
    step = make_train_step(loss, optimizer, seed_key=jax.random.key(0), log_every=3)
    state = state_of(params, batch, optimizer)
    weights = []
    for _ in range(7):
        state, metric_sums = step(state, batch)
        weights.append(float(metric_sums["loss"][1]))
    assert weights == [1, 2, 3, 1, 2, 3, 1]
    assert int(state.step) == 7


def test_dropout_key_depends_on_step_and_seed_only(params, batch) -> None:
    optimizer = optax.sgd(0.0)

    def loss_at(step: int, seed: int) -> float:
        train_step = make_train_step(loss, optimizer, seed_key=jax.random.key(seed))
        state = state_of(params, batch, optimizer)._replace(step=jnp.int32(step))
        return means(train_step(state, batch)[1])["loss"]

    assert loss_at(5, 0) == loss_at(5, 0)
    assert len({loss_at(5, 0), loss_at(6, 0), loss_at(5, 1)}) == 3


def test_train_step_applies_the_gradient_and_logs_its_norm(params, batch) -> None:
    optimizer = optax.sgd(0.1)
    step = make_train_step(
        lambda params, rows, _: loss(params, rows, None), optimizer, seed_key=jax.random.key(0)
    )
    state: TrainState = state_of(params, batch, optimizer)
    after, metric_sums = step(state, batch)
    _, grads = sums_and_gradient(loss, params, batch, None)
    np.testing.assert_allclose(after.params["w"], params["w"] - 0.1 * grads["w"], rtol=1e-5)
    norm = np.linalg.norm(np.asarray(grads["w"]))
    assert means(metric_sums)["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
