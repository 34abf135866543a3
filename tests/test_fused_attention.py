"""Attention of each implementation equals plain attention, with dropout and gradients."""

import functools

import jax
import numpy as np
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
)
from conftest import in_test_all

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention import cpu, gpu, tpu
from bertjax.model.attention.mask import MaskKind
from bertjax.model.attention.plain import attention as plain
from bertjax.model.attention.plain import recomputed_attention

IMPLEMENTATIONS = {
    "cpu": cpu.attention,
    "tpu": functools.partial(tpu.attention, interpret=True),
    "gpu": functools.partial(gpu.attention, interpret=True),
    "recomputed": recomputed_attention,
}
pytestmark = pytest.mark.slow


@pytest.fixture(params=IMPLEMENTATIONS)
def attention(request):
    return IMPLEMENTATIONS[request.param]


@pytest.mark.parametrize("mask_kind", MASK_KINDS)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_attention_and_gradients_equal_plain(attention, mask_kind: MaskKind, rate: float) -> None:
    assert_equals_plain(attention, (2, LENGTH, HEADS, SIZE), mask_kind, rate)


def test_attention_without_a_key_drops_nothing(attention) -> None:
    arrays, ids = inputs(1), example_ids(1)
    without_rate = run(attention, arrays, ids, rate=0.0, seed=None)
    assert_close(run(attention, arrays, ids, rate=0.5, seed=None), without_rate, atol=0)


def test_attention_in_bfloat16_is_as_accurate_as_plain(attention) -> None:
    ids, exact = example_ids(2), run(attention, inputs(2), example_ids(2))
    errors = []
    for implementation in (attention, plain):
        out = run(implementation, inputs(2, "bfloat16"), ids)
        errors.append([np.abs(a - b).max() for a, b in zip(out, exact, strict=True)])
    assert (np.array(errors[0]) < 1.5 * np.array(errors[1])).all()


@pytest.mark.parametrize("axes", [(2, 2, 2), *in_test_all(((8, 1, 1),), ((1, 2, 4),))])
def test_attention_does_not_depend_on_the_mesh(attention, axes: tuple[int, int, int]) -> None:
    arrays, ids = inputs(8), example_ids(8)
    alone = run(attention, arrays, ids)
    with jax.set_mesh(make_mesh(*axes)):
        spread = jax.jit(lambda: run(attention, arrays, ids))()
    assert_close(spread, alone, atol=1e-6)


@pytest.mark.parametrize(("name", "length"), [("cpu", LENGTH), ("tpu", LENGTH), ("gpu", 100)])
def test_attention_of_padding_and_huge_scores_is_finite(name: str, length: int) -> None:
    query, key, value, weights = inputs(1, length=length)
    arrays = [1e4 * query, 1e4 * key, value, weights]
    cases = [(example_ids(1, length, kind), kind) for kind in MASK_KINDS[1:]]
    for ids, mask_kind in (*cases, (np.zeros((1, length)), "left_to_right")):
        results = run(IMPLEMENTATIONS[name], arrays, ids, mask_kind)
        assert all(np.isfinite(x).all() for x in results)
