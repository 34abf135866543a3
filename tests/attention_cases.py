"""Inputs and checks shared by the tests of the attention implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention.plain import attention as plain

LENGTH, HEADS, SIZE = 128, 4, 64
RATES = [0.1, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (0.0, 0.5))]  # of dropout


def inputs(
    rows: int, dtype: str = "float32", length: int = LENGTH, heads: int = HEADS, size: int = SIZE
) -> list[jax.Array]:
    """Return query, key, value, and weights of the output in a scalar loss."""
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (rows, length, heads, size), dtype) for key in keys]


def example_ids(rows: int, length: int = LENGTH) -> np.ndarray:
    """Return example_ids: pairs of uneven lengths, then padding; different in every sequence."""
    positions = np.arange(length)
    return np.stack(
        [(positions // (9 + 7 * row) + 1) * (positions < length - 8) for row in range(rows)]
    )


def run(attend, arrays, ids, **options):
    """Return the output and the gradients of its weighted sum."""
    *qkv, weights = arrays

    def loss(*qkv):
        out = attend(*qkv, jnp.asarray(ids, jnp.int32), **options)
        return (out.astype(jnp.float32) * weights).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
    return [x.astype(jnp.float32) for x in (out, *gradients)]


def options(causal: bool, rate: float) -> dict:
    return {"causal": causal, "dropout_rate": rate, "dropout_key": jax.random.key(3)}


def check_same_on_mesh(attend, axes: tuple[int, int, int]) -> None:
    """Check that outputs and gradients on a mesh equal those without one."""
    arrays, ids = inputs(8), example_ids(8)
    alone = run(attend, arrays, ids, **options(False, 0.1))
    with jax.set_mesh(make_mesh(*axes)):
        spread = jax.jit(lambda: run(attend, arrays, ids, **options(False, 0.1)))()
    for a, b in zip(spread, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def check_bfloat16_accuracy(attend) -> None:
    """Check that bfloat16 is as close to float32 as in plain attention."""
    ids, exact = example_ids(2), run(attend, inputs(2), example_ids(2), **options(False, 0.1))
    errors = []
    for implementation in (attend, plain):
        out = run(implementation, inputs(2, "bfloat16"), ids, **options(False, 0.1))
        errors.append([np.abs(a - b).max() for a, b in zip(out, exact, strict=True)])
    assert (np.array(errors[0]) < 1.5 * np.array(errors[1])).all()
