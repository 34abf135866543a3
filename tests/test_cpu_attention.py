"""CPU attention equals plain attention, with dropout and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    HEADS,
    LENGTH,
    RATES,
    SIZE,
    check_bfloat16_accuracy,
    check_same_on_mesh,
    example_ids,
    inputs,
    options,
    run,
)

from bertjax.mesh.device_mesh import AXES, make_mesh
from bertjax.model.attention import cpu
from bertjax.model.attention.cpu import attention, unsupported_reason
from bertjax.model.attention.plain import attention as plain


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", [(2, 32, 2, 8), (3, 13, 3, 5), (1, 1, 1, 1)], ids=str)
def test_attention_and_gradients_equal_plain(shape, rate, causal) -> None:
    rows, length, heads, size = shape
    arrays = inputs(rows, length=length, heads=heads, size=size)
    ours, theirs = (
        run(attend, arrays, example_ids(rows, length), **options(causal, rate))
        for attend in (attention, plain)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("scores", [1, 2 * 32**2, 3 * 32**2])
def test_attention_by_groups_of_heads_equals_all_at_once(scores: int, monkeypatch) -> None:
    arrays, ids = inputs(2, length=32, heads=4, size=8), example_ids(2, 32)
    whole = run(attention, arrays, ids, **options(True, 0.1))
    monkeypatch.setattr(cpu, "_MAX_SCORES", scores)
    in_groups = run(attention, arrays, ids, **options(True, 0.1))
    for a, b in zip(in_groups, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_attention_in_bfloat16_is_as_accurate_as_plain() -> None:
    check_bfloat16_accuracy(attention)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_keeps_the_dtype(dtype: str) -> None:
    *qkv, _ = inputs(2, dtype)
    out, pull = jax.vjp(
        lambda *qkv: attention(*qkv, jnp.asarray(example_ids(2)), dropout_rate=0.1), *qkv
    )
    assert {x.dtype for x in (out, *pull(out))} == {jnp.dtype(dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
def test_attention_does_not_depend_on_the_mesh(axes: tuple[int, int, int]) -> None:
    check_same_on_mesh(attention, axes)


@pytest.mark.slow
def test_attention_of_padding_and_huge_scores_has_finite_gradients() -> None:
    query, key, value, weights = inputs(1)
    arrays = [1e4 * query, 1e4 * key, value, weights]
    for ids in (example_ids(1), np.zeros((1, LENGTH))):
        assert all(np.isfinite(x).all() for x in run(attention, arrays, ids, **options(True, 0.1)))


def test_attention_keeps_only_the_dropout_mask_for_backward() -> None:
    *qkv, _ = inputs(2)
    ids, attention_options = jnp.asarray(example_ids(2)), options(False, 0.1)
    _, pull = jax.vjp(lambda *qkv: attention(*qkv, ids, **attention_options), *qkv)
    wide = [leaf for leaf in jax.tree.leaves(pull) if leaf.size >= 2 * HEADS * LENGTH**2]
    assert [leaf.dtype for leaf in wide] == [jnp.bool]


def test_unsupported_reason_names_an_uneven_split() -> None:
    query = jax.ShapeDtypeStruct((8, LENGTH, HEADS, SIZE), "float32")
    odd = jax.ShapeDtypeStruct((9, LENGTH, HEADS, SIZE), "float32")
    assert not unsupported_reason(query) and not unsupported_reason(odd)
    with jax.set_mesh(make_mesh(2, 1, 4)):
        assert not unsupported_reason(query)
        assert unsupported_reason(odd) == "9 sequences: the mesh has 2 batch shards"
    with jax.set_mesh(make_mesh(1, 1, 8)):
        assert unsupported_reason(query) == "4 heads: mesh.tensor=8 does not divide them"
    other = jax.sharding.Mesh(make_mesh(-1, 1, 1).devices, ("rows", *AXES[1:]))
    with jax.set_mesh(other):
        assert unsupported_reason(query) == "there is no mesh with axes data, fsdp, tensor"
