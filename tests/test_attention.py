"""Attention stays within a pair and divides by no zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import dispatch
from bertjax.model.attention import tpu as fused_attention
from bertjax.model.attention.dispatch import choose
from bertjax.model.attention.plain import attention as plain
from bertjax.model.attention.plain import attention_mask

ROWS, LENGTH, HEADS, SIZE = 2, 12, 3, 8
PACK_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0], [1] * 12], np.int32)


@pytest.fixture(params=[plain, cpu_attention.attention], ids=["plain", "cpu"])
def attention(request):
    return jax.jit(request.param, static_argnames=("causal", "dropout_rate"))


def draw(seed: int = 0) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (ROWS, LENGTH, HEADS, SIZE)) for key in keys]


def by_hand(query, key, value, example_ids, causal):
    """Loops over rows, queries and heads, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros_like(value)
    for row, at, head in np.ndindex(ROWS, LENGTH, HEADS):
        seen = np.flatnonzero(example_ids[row] == example_ids[row, at])
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
    np.testing.assert_array_equal(attention_mask(ids)[0], np.array(expected, bool))
    np.testing.assert_array_equal(attention_mask(ids, True)[0], np.tril(np.array(expected, bool)))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=9), st.booleans())
def test_every_query_sees_itself(ids, causal):
    assert np.diagonal(attention_mask(np.array([ids]), causal)[0]).all()


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


def test_scores_are_not_rounded_before_the_softmax(attention):
    # They differ by less than bfloat16 tells apart at their size, and weights by a third.
    query = jnp.zeros((1, 2, 1, 2), jnp.bfloat16).at[..., 0].set(16).at[..., 1].set(1)
    key = jnp.asarray([[16, 0.5], [16, 0]], jnp.bfloat16)[None, :, None]
    value = jnp.asarray([[1, 1], [0, 0]], jnp.bfloat16)[None, :, None]
    out = attention(query * jnp.bfloat16(2**0.5), key, value, np.ones((1, 2), np.int32))
    np.testing.assert_allclose(out.astype(jnp.float32), 1 / (1 + np.exp(-0.5)), rtol=0.02)


def test_no_product_of_bfloat16_inputs_takes_float32_ones(attention):
    query, key, value = (x.astype(jnp.bfloat16) for x in draw())
    gradient = jax.grad(lambda *qkv: attention(*qkv, PACK_IDS).sum().astype("float32"), (0, 1, 2))
    text = jax.jit(gradient).lower(query, key, value).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and not any("xf32>, " in line for line in products)


def test_each_device_has_its_way(monkeypatch) -> None:
    query = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, SIZE), "float32")
    assert str(choose(query)) == "cpu, a row at a time"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert str(choose(query)) == "plain"
    with jax.set_mesh(make_mesh(2, 1, 1, jax.devices()[:2])):  # what a program is for counts
        assert choose(query).attend is cpu_attention.attention
    monkeypatch.setattr(dispatch, "tpu_kind", lambda: "TPU v5 lite")
    monkeypatch.setattr(fused_attention, "unsupported_reason", lambda query: "")
    assert choose(query).attend is fused_attention.attention


def test_plain_attention_says_what_stood_against_the_devices_own_way(monkeypatch) -> None:
    query = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, SIZE), "float32")
    for module in (dispatch, fused_attention):
        monkeypatch.setattr(module, "tpu_kind", lambda: "TPU v5 lite")
    with jax.set_mesh(make_mesh(2, 1, 1, jax.devices()[:2])):
        way = choose(query)
    assert way.attend is plain
    assert str(way) == "plain (rows of 12 pieces: the kernel takes multiples of 128 up to 512)"
