"""Attention stays within a pair and divides by no zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertjax.model.attention.choice
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import tpu as fused_attention
from bertjax.model.attention.plain import attention as plain
from bertjax.model.attention.plain import visible

ROWS, LENGTH, HEADS, SIZE = 2, 12, 3, 8
PACK_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0], [1] * 12], np.int32)


@pytest.fixture(params=[plain, cpu_attention.attention], ids=["plain", "cpu"])
def attention(request):
    return jax.jit(request.param, static_argnames=("causal", "dropout_rate"))


def draw(seed: int = 0) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (ROWS, LENGTH, HEADS, SIZE)) for key in keys]


def by_hand(query, key, value, pack_ids, causal):
    """Loops over rows, queries and heads, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros_like(value)
    for row, at, head in np.ndindex(ROWS, LENGTH, HEADS):
        seen = np.flatnonzero(pack_ids[row] == pack_ids[row, at])
        if causal:
            seen = seen[seen <= at]
        scores = key[row, seen, head] @ query[row, at, head] / np.sqrt(SIZE)
        weights = np.exp(scores - scores.max())
        out[row, at, head] = weights / weights.sum() @ value[row, seen, head]
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_its_formula(attention, causal):
    out = attention(*draw(), PACK_IDS, causal=causal)
    np.testing.assert_allclose(out, by_hand(*draw(), PACK_IDS, causal), atol=1e-6)


def test_visible_is_one_block_a_pair_and_one_for_padding():
    ids = np.array([[1, 1, 2, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(visible(ids)[0], np.array(expected, bool))
    np.testing.assert_array_equal(visible(ids, True)[0], np.tril(np.array(expected, bool)))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=9), st.booleans())
def test_every_query_sees_itself(ids, causal):
    assert np.diagonal(visible(np.array([ids]), causal)[0]).all()


def test_a_row_of_padding_is_finite_and_so_is_its_gradient(attention):
    padding = np.zeros((ROWS, LENGTH), np.int32)

    def total(inputs):
        return attention(*inputs, padding).sum()

    value, gradient = jax.value_and_grad(total)(draw())
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


def test_huge_scores_do_not_overflow(attention):
    query, key, value = draw()
    assert np.isfinite(attention(1e4 * query, 1e4 * key, value, PACK_IDS)).all()


def test_the_softmax_of_bfloat16_inputs_is_taken_in_float32(attention):
    query, key, value = (x.astype(jnp.bfloat16) for x in draw())
    half = attention(query, key, value, PACK_IDS)
    assert half.dtype == jnp.bfloat16
    full = attention(*(x.astype(jnp.float32) for x in (query, key, value)), PACK_IDS)
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.03)


def test_dropout_falls_on_the_probabilities(attention):
    # With values of one, an output is the sum of its surviving probabilities over what survives.
    query, key, _ = draw()
    ones = jnp.ones((ROWS, LENGTH, HEADS, SIZE))
    out = attention(query, key, ones, PACK_IDS, dropout_rate=0.5, dropout_key=jax.random.key(0))
    assert np.asarray(out).std() > 0.1
    np.testing.assert_allclose(out, np.broadcast_to(out[..., :1], out.shape), rtol=1e-6)
    np.testing.assert_allclose(attention(query, key, ones, PACK_IDS), 1, rtol=1e-6)


def test_the_first_that_serves_is_taken(monkeypatch) -> None:
    def named(name):
        return lambda *inputs, **options: name

    monkeypatch.setattr(fused_attention, "attention", named("kernel"))
    monkeypatch.setattr(cpu_attention, "attention", named("rows"))
    taken = []
    for kernel, rows in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(fused_attention, "serves", lambda query, kernel=kernel: kernel)
        monkeypatch.setattr(cpu_attention, "serves", lambda query, rows=rows: rows)
        taken.append(bertjax.model.attention.choice.attention(*draw(), PACK_IDS))
    np.testing.assert_array_equal(taken[2], plain(*draw(), PACK_IDS))
    assert taken[:2] == ["kernel", "rows"]
