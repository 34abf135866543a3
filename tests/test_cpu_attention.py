"""CPU attention: shapes, groups of heads, what is kept for the backward pass."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import (
    HEADS,
    LENGTH,
    MASK_KINDS,
    SIZE,
    assert_close,
    assert_equals_plain,
    example_ids,
    inputs,
    run,
    unsupported_reason,
)

from bertjax.mesh.device_mesh import AXES
from bertjax.model.attention import cpu
from bertjax.model.attention.cpu import attention
from bertjax.model.attention.mask import MaskKind


@pytest.mark.slow
@pytest.mark.parametrize("mask_kind", MASK_KINDS)
@pytest.mark.parametrize(
    "shape", [(2, 32, 2, 8), (3, 13, 3, 5), (1, 1, 1, 1), (1, 1024, 2, 8)], ids=str
)
def test_attention_takes_any_shape(shape: tuple[int, ...], mask_kind: MaskKind) -> None:
    assert_equals_plain(attention, shape, mask_kind, atol=5e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("scores", [1, 2 * 32**2, 3 * 32**2])
def test_attention_by_groups_of_heads_equals_all_at_once(scores: int, monkeypatch) -> None:
    arrays, ids = inputs(2, length=32, heads=4, size=8), example_ids(2, 32)
    whole = run(attention, arrays, ids, mask_kind="left_to_right")
    monkeypatch.setattr(cpu, "_MAX_SCORES", scores)
    assert_close(run(attention, arrays, ids, mask_kind="left_to_right"), whole, atol=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_keeps_the_dtype(dtype: str) -> None:
    *qkv, _ = inputs(2, dtype)
    out, pull = jax.vjp(
        lambda *qkv: attention(*qkv, jnp.asarray(example_ids(2)), dropout_rate=0.1), *qkv
    )
    assert {x.dtype for x in (out, *pull(out))} == {jnp.dtype(dtype)}


@pytest.mark.seconds
def test_attention_keeps_only_the_dropout_mask_for_backward() -> None:
    *qkv, _ = inputs(2)
    ids, dropout = jnp.asarray(example_ids(2)), {"dropout_rate": 0.1}
    dropout["dropout_key"] = jax.random.key(3)
    _, pull = jax.vjp(lambda *qkv: attention(*qkv, ids, **dropout), *qkv)
    wide = [leaf for leaf in jax.tree.leaves(pull) if leaf.size >= 2 * HEADS * LENGTH**2]
    assert [leaf.dtype for leaf in wide] == [jnp.bool]


def test_unsupported_reason_names_an_uneven_split() -> None:
    odd = (9, LENGTH, HEADS, SIZE)
    assert not cpu.unsupported_reason(jax.ShapeDtypeStruct(odd, "float32"))  # without a mesh
    assert not unsupported_reason(cpu, (2, 1, 4))
    reason = unsupported_reason(cpu, (2, 1, 4), shape=odd)
    assert reason == "9 sequences: the mesh has 2 batch shards"
    assert unsupported_reason(cpu, (1, 1, 8)) == "4 heads: mesh.tensor=8 does not divide them"
    reason = unsupported_reason(cpu, names=("rows", *AXES[1:]))
    assert reason == "there is no mesh with axes data, fsdp, tensor"
