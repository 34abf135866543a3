"""Inputs and checks shared by the tests of the attention implementations."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.mesh.device_mesh import AXES, make_mesh
from bertjax.model.attention.mask import MaskKind
from bertjax.model.attention.plain import attention as plain

LENGTH, HEADS, SIZE = 128, 4, 64
MASK_KINDS = ("bidirectional", "left_to_right", "right_to_left", "prefix")


def inputs(
    rows: int, dtype: str = "float32", length: int = LENGTH, heads: int = HEADS, size: int = SIZE
) -> list[jax.Array]:
    """Return query, key, value, and weights of the output in a scalar loss."""
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (rows, length, heads, size), dtype) for key in keys]


def example_ids(
    rows: int, length: int = LENGTH, mask_kind: MaskKind = "bidirectional"
) -> np.ndarray:
    """Return example_ids: pairs of uneven lengths, then padding; different in every sequence."""
    positions = np.arange(length)
    sizes = 9 + 7 * np.arange(rows)[:, None]
    ids = (positions // sizes + 1) * (positions < length - 8)
    is_target = positions % sizes >= sizes // 2
    return np.where(is_target, -ids, ids) if mask_kind == "prefix" else ids


def run(
    attend,
    arrays,
    ids,
    mask_kind: MaskKind = "bidirectional",
    rate: float = 0.1,
    seed: int | None = 3,
):
    """Return the output and the gradients of its weighted sum; without a seed nothing drops."""
    *qkv, weights = arrays
    key = None if seed is None else jax.random.key(seed)
    options = {"mask_kind": mask_kind, "dropout_rate": rate, "dropout_key": key}

    def loss(*qkv):
        out = attend(*qkv, jnp.asarray(ids, jnp.int32), **options)
        return (out.astype(jnp.float32) * weights).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*qkv)
    return [x.astype(jnp.float32) for x in (out, *gradients)]


def assert_close(results, expected, atol: float) -> None:
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def assert_equals_plain(
    attend,
    shape: tuple[int, ...],
    mask_kind: MaskKind = "bidirectional",
    rate: float = 0.1,
    atol: float = 1e-5,
) -> None:
    """Check output and gradients of an implementation for queries of shape [B, T, N, D]."""
    rows, length, heads, size = shape
    arrays = inputs(rows, length=length, heads=heads, size=size)
    ids = example_ids(rows, length, mask_kind)
    results = (run(function, arrays, ids, mask_kind, rate) for function in (attend, plain))
    assert_close(*results, atol)


def unsupported_reason(
    module: ModuleType,
    axes=(-1, 1, 1),
    names=AXES,
    shape=(8, LENGTH, HEADS, SIZE),
    dtype: str = "float32",
) -> str:
    """Return an implementation's reason against queries of this shape on this mesh."""
    with jax.set_mesh(jax.sharding.Mesh(make_mesh(*axes).devices, names)):
        return module.unsupported_reason(jax.ShapeDtypeStruct(shape, dtype))
