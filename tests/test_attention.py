"""Attention stays within a pair, divides by no zero, and dropout keeps expectations."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertjax.attention
from bertjax.attention import dropout, visible

attention = jax.jit(bertjax.attention.attention, static_argnames=("causal", "dropout_rate"))
ROWS, LENGTH, HEADS, SIZE = 2, 12, 3, 8
PACK_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0], [1] * 12], np.int32)


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
def test_attention_is_its_formula(causal):
    out = attention(*draw(), PACK_IDS, causal=causal)
    np.testing.assert_allclose(out, by_hand(*draw(), PACK_IDS, causal), atol=1e-6)


def test_visible_is_one_block_a_pair_and_one_for_padding():
    ids = np.array([[1, 1, 2, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(visible(ids)[0, 0], np.array(expected, bool))
    np.testing.assert_array_equal(visible(ids, True)[0, 0], np.tril(np.array(expected, bool)))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=9), st.booleans())
def test_every_query_sees_itself(ids, causal):
    assert np.diagonal(visible(np.array([ids]), causal)[0, 0]).all()


def test_a_row_of_padding_is_finite_and_so_is_its_gradient():
    padding = np.zeros((ROWS, LENGTH), np.int32)

    def total(inputs):
        return attention(*inputs, padding).sum()

    value, gradient = jax.value_and_grad(total)(draw())
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


def test_huge_scores_do_not_overflow():
    query, key, value = draw()
    assert np.isfinite(attention(1e4 * query, 1e4 * key, value, PACK_IDS)).all()


def test_the_softmax_of_bfloat16_inputs_is_taken_in_float32():
    query, key, value = (x.astype(jnp.bfloat16) for x in draw())
    half = attention(query, key, value, PACK_IDS)
    assert half.dtype == jnp.bfloat16
    full = attention(*(x.astype(jnp.float32) for x in (query, key, value)), PACK_IDS)
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.03)


def test_dropout_falls_on_the_probabilities():
    # With values of one, an output is the sum of its surviving probabilities over what survives.
    query, key, _ = draw()
    ones = jnp.ones((ROWS, LENGTH, HEADS, SIZE))
    out = attention(query, key, ones, PACK_IDS, dropout_rate=0.5, dropout_key=jax.random.key(0))
    assert np.asarray(out).std() > 0.1
    np.testing.assert_allclose(out, np.broadcast_to(out[..., :1], out.shape), rtol=1e-6)
    np.testing.assert_allclose(attention(query, key, ones, PACK_IDS), 1, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate):
    dropped = np.asarray(dropout(jnp.ones((64, 128, 64)), rate, jax.random.key(1)))
    share = 5 * np.sqrt(rate * (1 - rate) / dropped.size)  # five standard deviations
    assert abs((dropped == 0).mean() - rate) < share
    assert abs(dropped.mean() - 1) < share / (1 - rate)
    assert len(np.unique(dropped)) == 2


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_are_dropped_independently(axis, step):
    kept = np.asarray(dropout(jnp.ones((64, 64, 64)), 0.5, jax.random.key(2))) > 0
    apart = np.moveaxis(kept, axis, 0)
    correlation = np.corrcoef(apart[step:].ravel(), apart[:-step].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(apart[step:].size)


def test_keys_drop_independently():
    x = jnp.ones((512, 256))
    one, other = (np.asarray(dropout(x, 0.5, jax.random.key(seed))) for seed in (0, 1))
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(x.size)


@pytest.mark.parametrize("axes", [("rows",), (None, "rows"), (None, None, "rows")])
def test_what_is_dropped_does_not_depend_on_the_mesh(axes):
    x = jnp.ones((16, 8, 24))
    mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    spread = jax.jit(
        lambda x: dropout(x, 0.5, jax.random.key(7)), in_shardings=sharding, out_shardings=sharding
    )
    np.testing.assert_array_equal(spread(x), dropout(x, 0.5, jax.random.key(7)))
    # No device draws the bits of others.
    words = re.findall(r"u32\[([\d,]+)\]", spread.lower(x).compile().as_text())
    assert max(math.prod(map(int, shape.split(","))) for shape in words) <= x.size // mesh.size


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (1, 4, 3), (2, 7, 2), (2, 1, 3, 4)])
def test_dropout_takes_any_shape(shape):
    x = jnp.ones(shape)
    dropped = dropout(x, 0.5, jax.random.key(0))
    assert dropped.shape == x.shape and set(np.unique(dropped)) <= {0, 2}


def test_dropout_follows_its_key_and_rests_without_one():
    x = jnp.ones((8, 8))
    one, same, other = (dropout(x, 0.5, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (np.asarray(one) != np.asarray(other)).any()
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_dropout_lets_the_gradient_through_where_the_value_went():
    def total(x):
        return (dropout(x, 0.25, jax.random.key(3)) * 2).sum()

    gradient = np.asarray(jax.grad(total)(jnp.ones((16, 16))))
    kept = np.asarray(dropout(jnp.ones((16, 16)), 0.25, jax.random.key(3)))
    np.testing.assert_allclose(gradient, 2 * kept)


def test_dropout_keeps_the_dtype():
    assert dropout(jnp.ones((4, 4), jnp.bfloat16), 0.1, jax.random.key(0)).dtype == jnp.bfloat16
