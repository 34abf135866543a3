"""What attention is given and gives, for the tests of each way to compute it."""

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
    """Query, key, value, and weights of the output in a scalar loss."""
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (rows, length, heads, size), dtype) for key in keys]


def packs(rows: int, length: int = LENGTH) -> np.ndarray:
    """Pairs of uneven lengths, and padding behind them; another cut in every row."""
    places = np.arange(length)
    return np.stack([(places // (9 + 7 * row) + 1) * (places < length - 8) for row in range(rows)])


def run(attend, arrays, example_ids, **options):
    """The output, and the gradients of its weighted sum."""
    *qkv, weights = arrays

    def loss(*qkv):
        out = attend(*qkv, jnp.asarray(example_ids, jnp.int32), **options)
        return (out.astype(jnp.float32) * weights).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
    return [x.astype(jnp.float32) for x in (out, *gradients)]


def options(causal: bool, rate: float) -> dict:
    return {"causal": causal, "dropout_rate": rate, "dropout_key": jax.random.key(3)}


def check_no_mesh_changes(attend, axes: tuple[int, int, int]) -> None:
    """Outputs and gradients on a mesh are those without one."""
    arrays, ids = inputs(8), packs(8)
    alone = run(attend, arrays, ids, **options(False, 0.1))
    with jax.set_mesh(make_mesh(*axes)):
        spread = jax.jit(lambda: run(attend, arrays, ids, **options(False, 0.1)))()
    for a, b in zip(spread, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def check_as_near_as_plain(attend) -> None:
    """In bfloat16 it is as near to float32 as plain attention is."""
    ids, exact = packs(2), run(attend, inputs(2), packs(2), **options(False, 0.1))
    errors = []
    for each in (attend, plain):
        out = run(each, inputs(2, "bfloat16"), ids, **options(False, 0.1))
        errors.append([np.abs(a - b).max() for a, b in zip(out, exact, strict=True)])
    assert (np.array(errors[0]) < 1.5 * np.array(errors[1])).all()
