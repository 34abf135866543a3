"""The TPU kernel computes what `bertjax.attention` does, dropped weights and gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax.attention
from bertjax import fused_attention
from bertjax.sharding import make_mesh

LENGTH, HEADS, SIZE = 128, 4, 64
kernel = functools.partial(fused_attention.attention, interpret=True)


def inputs(rows: int, dtype: str = "float32") -> list[jax.Array]:
    """Query, key, value, and weights of the output in a scalar loss."""
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (rows, LENGTH, HEADS, SIZE), dtype) for key in keys]


def packs(rows: int) -> np.ndarray:
    """Pairs of uneven lengths, and padding behind them; another cut in every row."""
    places = np.arange(LENGTH)
    return np.stack([(places // (9 + 7 * row) + 1) * (places < 120) for row in range(rows)])


def run(attend, arrays, pack_ids, **options):
    """The output, and the gradients of its weighted sum."""
    *qkv, weights = arrays

    def loss(*qkv):
        out = attend(*qkv, jnp.asarray(pack_ids, jnp.int32), **options)
        return (out.astype(jnp.float32) * weights).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
    return [x.astype(jnp.float32) for x in (out, *gradients)]


def options(causal: bool, rate: float) -> dict:
    return {"causal": causal, "dropout_rate": rate, "dropout_key": jax.random.key(3)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_outputs_and_gradients_are_those_of_attention(causal: bool, rate: float) -> None:
    arrays, ids = inputs(2), packs(2)
    ours, plain = (
        run(attend, arrays, ids, **options(causal, rate))
        for attend in (kernel, bertjax.attention.attention)
    )
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


def test_without_a_key_nothing_is_dropped() -> None:
    arrays, ids = inputs(1), packs(1)
    for a, b in zip(
        run(kernel, arrays, ids, dropout_rate=0.5), run(kernel, arrays, ids), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_bfloat16_comes_as_near_to_float32_as_in_attention() -> None:
    ids, exact = packs(2), run(kernel, inputs(2), packs(2), **options(False, 0.1))
    errors = []
    for attend in (kernel, bertjax.attention.attention):
        out = run(attend, inputs(2, "bfloat16"), ids, **options(False, 0.1))
        errors.append([np.abs(a - b).max() for a, b in zip(out, exact, strict=True)])
    assert (np.array(errors[0]) < 1.5 * np.array(errors[1])).all()


@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
def test_no_mesh_changes_what_it_computes(axes: tuple[int, int, int]) -> None:
    arrays, ids = inputs(8), packs(8)
    alone = run(kernel, arrays, ids, **options(False, 0.1))
    with jax.set_mesh(make_mesh(*axes)):
        spread = jax.jit(lambda: run(kernel, arrays, ids, **options(False, 0.1)))()
    for a, b in zip(spread, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_it_serves_tpus_alone() -> None:
    (query, *_) = inputs(8)
    assert not fused_attention.serves(query)
    with jax.set_mesh(make_mesh(-1, 1, 1)):
        assert not fused_attention.serves(query)
