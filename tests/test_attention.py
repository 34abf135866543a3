"""Attention equals its formula in float64, within examples and for padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import MASK_KINDS
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import dispatch
from bertjax.model.attention import tpu as tpu_attention
from bertjax.model.attention.dispatch import choose_implementation
from bertjax.model.attention.plain import attention as plain
from bertjax.model.attention.plain import attention_mask, recomputed_attention

ROWS, LENGTH, HEADS, SIZE = 2, 12, 3, 8
EXAMPLE_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0], [1] * 12], np.int32)
# Of the mask "prefix": targets of two tokens, one, and none; no source, as at the end of a window.
PREFIX_IDS = np.array([[1, 1, -1, -1, 2, 2, -2, 3, 3, 0, 0, 0], [-1] * 12], np.int32)


@pytest.fixture(
    params=[plain, recomputed_attention, cpu_attention.attention],
    ids=["plain", "recomputed", "cpu"],
)
def attention(request):
    return jax.jit(request.param, static_argnames=("mask_kind", "dropout_rate"))


def draw(seed: int = 0) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (ROWS, LENGTH, HEADS, SIZE)) for key in keys]


def reference(query, key, value, example_ids, mask_kind):
    """Compute attention by loops over sequences, queries and heads, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros_like(value)
    for row, position, head in np.ndindex(ROWS, LENGTH, HEADS):
        seen = np.flatnonzero(np.abs(example_ids[row]) == abs(example_ids[row, position]))
        if mask_kind == "right_to_left":
            seen = seen[seen >= position]
        elif mask_kind != "bidirectional":
            is_source = (example_ids[row, seen] > 0) & (mask_kind == "prefix")
            seen = seen[is_source | (seen <= position)]
        scores = key[row, seen, head] @ query[row, position, head] / np.sqrt(SIZE)
        weights = np.exp(scores - scores.max())
        out[row, position, head] = weights / weights.sum() @ value[row, seen, head]
    return out


@pytest.mark.parametrize("mask_kind", MASK_KINDS)
def test_attention_equals_its_formula(attention, mask_kind):
    ids = PREFIX_IDS if mask_kind == "prefix" else EXAMPLE_IDS
    out = attention(*draw(), ids, mask_kind=mask_kind)
    np.testing.assert_allclose(out, reference(*draw(), ids, mask_kind), atol=1e-6)


def test_attention_mask_separates_examples_and_padding():
    ids = np.array([[1, 1, 2, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(attention_mask(ids)[0], np.array(expected, bool))
    lower = np.tril(np.array(expected, bool))
    np.testing.assert_array_equal(attention_mask(ids, "left_to_right")[0], lower)
    np.testing.assert_array_equal(attention_mask(ids, "right_to_left")[0], lower.T)


def test_attention_mask_of_a_prefix_separates_source_and_target():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    mask = attention_mask(np.array([[1, -1, -1, 2]]), "prefix")[0]
    np.testing.assert_array_equal(mask, np.array(expected, bool))


@pytest.mark.seconds
@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=9, max_size=9), st.sampled_from(MASK_KINDS))
def test_attention_mask_includes_the_query_itself(ids, mask_kind):
    assert np.diagonal(attention_mask(np.array([ids]), mask_kind)[0]).all()


def test_attention_of_padding_is_finite_with_its_gradient(attention):
    padding = np.zeros((ROWS, LENGTH), np.int32)

    def total(inputs):
        return attention(*inputs, padding).sum()

    value, gradient = jax.value_and_grad(total)(draw())
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


def test_attention_of_huge_scores_is_finite(attention):
    query, key, value = draw()
    assert np.isfinite(attention(1e4 * query, 1e4 * key, value, EXAMPLE_IDS)).all()


def test_attention_computes_bfloat16_softmax_in_float32(attention):
    query, key, value = (x.astype(jnp.bfloat16) for x in draw())
    half = attention(query, key, value, EXAMPLE_IDS)
    assert half.dtype == jnp.bfloat16
    full = attention(*(x.astype(jnp.float32) for x in (query, key, value)), EXAMPLE_IDS)
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.03)


def test_attention_drops_probabilities(attention):
    # With values of one, an output is the sum of its kept probabilities over the keep probability.
    query, key, _ = draw()
    ones = jnp.ones((ROWS, LENGTH, HEADS, SIZE))
    out = attention(query, key, ones, EXAMPLE_IDS, dropout_rate=0.5, dropout_key=jax.random.key(0))
    assert np.asarray(out).std() > 0.1
    np.testing.assert_allclose(out, np.broadcast_to(out[..., :1], out.shape), rtol=1e-6)
    np.testing.assert_allclose(attention(query, key, ones, EXAMPLE_IDS), 1, rtol=1e-6)


@pytest.mark.seconds
def test_attention_does_not_round_scores(attention):
    # They differ by less than bfloat16 tells apart at their size, and weights by a third.
    query = jnp.zeros((1, 2, 1, 2), jnp.bfloat16).at[..., 0].set(16).at[..., 1].set(1)
    key = jnp.asarray([[16, 0.5], [16, 0]], jnp.bfloat16)[None, :, None]
    value = jnp.asarray([[1, 1], [0, 0]], jnp.bfloat16)[None, :, None]
    out = attention(query * jnp.bfloat16(2**0.5), key, value, np.ones((1, 2), np.int32))
    np.testing.assert_allclose(out.astype(jnp.float32), 1 / (1 + np.exp(-0.5)), rtol=0.02)


def test_attention_multiplies_bfloat16_inputs_in_bfloat16(attention):
    query, key, value = (x.astype(jnp.bfloat16) for x in draw())
    gradient = jax.grad(
        lambda *qkv: attention(*qkv, EXAMPLE_IDS).sum().astype("float32"), (0, 1, 2)
    )
    text = jax.jit(gradient).lower(query, key, value).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and not any("xf32>, " in line for line in products)


@pytest.mark.seconds
@pytest.mark.parametrize(("attend", "keeps"), [(plain, True), (recomputed_attention, False)])
def test_recomputed_attention_keeps_no_weights(attend, keeps: bool) -> None:
    _, backward = jax.vjp(lambda *qkv: attend(*qkv, EXAMPLE_IDS), *draw())
    shapes = {leaf.shape[-2:] for leaf in jax.tree.leaves(backward)}
    assert ((LENGTH, LENGTH) in shapes) == keeps


def test_choose_implementation_follows_the_devices(monkeypatch) -> None:
    query = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, SIZE), "float32")
    assert str(choose_implementation(query)) == "cpu, one sequence at a time"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert str(choose_implementation(query)) == "plain"
    with jax.set_mesh(make_mesh(2, 1, 1, jax.devices()[:2])):  # what a program is for counts
        assert choose_implementation(query).attend is cpu_attention.attention
    monkeypatch.setattr(dispatch, "tpu_kind", lambda: "TPU v5 lite")
    monkeypatch.setattr(tpu_attention, "unsupported_reason", lambda query: "")
    assert choose_implementation(query).attend is tpu_attention.attention


def test_choose_implementation_gives_the_reason_for_plain(monkeypatch) -> None:
    query = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, SIZE), "float32")
    for module in (dispatch, tpu_attention):
        monkeypatch.setattr(module, "tpu_kind", lambda: "TPU v5 lite")
    with jax.set_mesh(make_mesh(2, 1, 1, jax.devices()[:2])):
        implementation = choose_implementation(query)
    assert implementation.attend is plain
    assert str(implementation) == "plain (12 tokens: the kernel takes multiples of 128 up to 1024)"
