"""A row at a time, attention is what it is as a whole, dropped weights and gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    HEADS,
    LENGTH,
    RATES,
    SIZE,
    check_as_near_as_plain,
    check_no_mesh_changes,
    inputs,
    options,
    packs,
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
def test_outputs_and_gradients_are_those_of_plain_attention(shape, rate, causal) -> None:
    rows, length, heads, size = shape
    arrays = inputs(rows, length=length, heads=heads, size=size)
    ours, theirs = (
        run(attend, arrays, packs(rows, length), **options(causal, rate))
        for attend in (attention, plain)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("scores", [1, 2 * 32**2, 3 * 32**2])
def test_groups_of_heads_are_what_all_heads_at_once_are(scores: int, monkeypatch) -> None:
    arrays, ids = inputs(2, length=32, heads=4, size=8), packs(2, 32)
    whole = run(attention, arrays, ids, **options(True, 0.1))
    monkeypatch.setattr(cpu, "_MAX_SCORES", scores)
    in_groups = run(attention, arrays, ids, **options(True, 0.1))
    for a, b in zip(in_groups, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_comes_as_near_to_float32_as_in_plain_attention() -> None:
    check_as_near_as_plain(attention)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_comes_out_has_the_type_of_what_goes_in(dtype: str) -> None:
    *qkv, _ = inputs(2, dtype)
    out, pull = jax.vjp(lambda *qkv: attention(*qkv, jnp.asarray(packs(2)), dropout_rate=0.1), *qkv)
    assert {x.dtype for x in (out, *pull(out))} == {jnp.dtype(dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
def test_no_mesh_changes_what_it_computes(axes: tuple[int, int, int]) -> None:
    check_no_mesh_changes(attention, axes)


@pytest.mark.slow
def test_a_row_of_padding_and_huge_scores_have_finite_gradients() -> None:
    query, key, value, weights = inputs(1)
    arrays = [1e4 * query, 1e4 * key, value, weights]
    for ids in (packs(1), np.zeros((1, LENGTH))):
        assert all(np.isfinite(x).all() for x in run(attention, arrays, ids, **options(True, 0.1)))


def test_it_keeps_no_weights_but_which_were_dropped() -> None:
    *qkv, _ = inputs(2)
    ids, rest = jnp.asarray(packs(2)), options(False, 0.1)
    _, pull = jax.vjp(lambda *qkv: attention(*qkv, ids, **rest), *qkv)
    wide = [leaf for leaf in jax.tree.leaves(pull) if leaf.size >= 2 * HEADS * LENGTH**2]
    assert [leaf.dtype for leaf in wide] == [jnp.bool]


def test_it_is_not_for_a_mesh_that_cannot_share_rows_and_heads_evenly() -> None:
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
