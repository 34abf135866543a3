"""Losses are sums with weights: they add up over any division of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.model import losses
from bertjax.model.heads import head_sums

ROWS, SLOTS, CLASSES = 6, 5, 11
cross_entropy, accuracy = jax.jit(losses.cross_entropy), jax.jit(losses.accuracy)


def draw(seed: int = 0):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (ROWS, SLOTS, CLASSES)).astype(np.float32)
    targets = random.integers(0, CLASSES, (ROWS, SLOTS)).astype(np.int32)
    weights = (random.random((ROWS, SLOTS)) < 0.7).astype(np.float32)
    return logits, targets, weights


def test_cross_entropy_is_its_formula():
    logits, targets, weights = draw()
    exact = logits.astype(np.float64)
    probabilities = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, targets[..., None], -1)[..., 0]
    total, weight = cross_entropy(logits, targets, weights)
    np.testing.assert_allclose(total, -(np.log(chosen) * weights).sum(), rtol=1e-6)
    assert weight == weights.sum()


def test_its_gradient_is_probability_minus_one_hot():
    logits, targets, weights = draw()
    gradient = jax.grad(lambda logits: cross_entropy(logits, targets, weights)[0])(logits)
    expected = jax.nn.softmax(logits) - jax.nn.one_hot(targets, CLASSES)
    np.testing.assert_allclose(gradient, expected * weights[..., None], atol=1e-6)


def test_equal_logits_cost_the_logarithm_of_the_classes():
    zeros, targets = np.zeros((2, 3, CLASSES), np.float32), np.zeros((2, 3), np.int32)
    total, weight = cross_entropy(zeros, targets, np.ones((2, 3), np.float32))
    np.testing.assert_allclose(total / weight, np.log(CLASSES), rtol=1e-6)


def test_a_target_that_shares_the_largest_logit_counts():
    logits = np.array([[[3, 3, 1]] * 3], np.float32)
    assert accuracy(logits, np.array([[0, 1, 2]]), np.ones((1, 3), np.float32)) == (2, 3)


def test_huge_logits_stay_finite():
    logits = np.array([[[1e4, -1e4]], [[-1e4, 1e4]]], np.float32)
    total, _ = cross_entropy(logits, np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))
    np.testing.assert_allclose(total, 2e4)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_accuracy_counts_what_an_argmax_would(seed):
    logits, targets, weights = draw(seed)
    expected = ((logits.argmax(-1) == targets) * weights).sum()
    assert accuracy(logits, targets, weights) == (expected, weights.sum())


def test_a_model_gone_to_nan_is_never_right():
    logits, targets, weights = draw()
    assert accuracy(np.full_like(logits, np.nan), targets, weights)[0] == 0


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 4]))
def test_sums_add_up_over_parts(seed, cut):
    whole = draw(seed)
    for function in (cross_entropy, accuracy):
        parts = [function(*(x[part] for x in whole)) for part in (slice(cut), slice(cut, None))]
        np.testing.assert_allclose(np.sum(parts, axis=0), function(*whole), rtol=1e-5)


def test_empty_slots_count_for_nothing():
    logits, targets, weights = draw()
    empty = weights == 0
    other = np.where(empty[..., None], 7, logits), np.where(empty, 3, targets)
    assert cross_entropy(logits, targets, weights) == cross_entropy(*other, weights)
    assert accuracy(logits, targets, weights) == accuracy(*other, weights)


def test_a_batch_without_weight_sums_to_zero():
    logits, targets, _ = draw()
    none = np.zeros((ROWS, SLOTS), np.float32)
    assert cross_entropy(logits, targets, none) == accuracy(logits, targets, none) == (0, 0)


def test_bfloat16_logits_are_summed_in_float32():
    logits, targets, weights = draw()
    half = jnp.asarray(logits, jnp.bfloat16)
    total, _ = cross_entropy(half, targets, weights)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(
        total, cross_entropy(half.astype(jnp.float32), targets, weights)[0], rtol=1e-6
    )


@pytest.mark.slow
def test_pretraining_reports_the_heads_that_there_are():
    logits, targets, weights = draw()
    batch = {"mlm_targets": targets, "mlm_weights": weights}
    sums = head_sums({"mlm_logits": logits}, batch)
    np.testing.assert_allclose(sums["mlm_loss"], cross_entropy(logits, targets, weights), rtol=1e-6)
    assert sums["mlm_accuracy"] == accuracy(logits, targets, weights)
    assert set(sums) == {"mlm_loss", "mlm_accuracy"}

    pairs = logits[:, :2, :2], targets[:, :2] % 2, weights[:, :2]
    batch |= {"nsp_labels": pairs[1], "nsp_weights": pairs[2]}
    sums = head_sums({"mlm_logits": logits, "nsp_logits": pairs[0]}, batch)
    np.testing.assert_allclose(sums["nsp_loss"], cross_entropy(*pairs), rtol=1e-6)
    assert set(sums) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
