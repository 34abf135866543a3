"""The GPU kernels equal plain attention, with dropout and gradients."""

import functools
import re

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
from conftest import in_test_all

from bertjax.mesh.device_mesh import AXES, make_mesh
from bertjax.model.attention import dispatch
from bertjax.model.attention import gpu as gpu_attention
from bertjax.model.attention.plain import attention as plain

kernels = functools.partial(gpu_attention.attention, interpret=True)


def check_against_plain(length: int, size: int, causal: bool, rate: float) -> None:
    arrays, ids = inputs(2, length=length, heads=2, size=size), example_ids(2, length)
    ours, theirs = (
        run(attend, arrays, ids, **options(causal, rate)) for attend in (kernels, plain)
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_kernels_and_gradients_equal_plain(causal: bool, rate: float) -> None:
    check_against_plain(LENGTH, SIZE, causal, rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "size"),
    [(1, 64), (100, 32), *in_test_all((16, 32), (37, 128), (256, 128), (512, 64))],
)
def test_kernels_take_any_length_and_three_head_sizes(length: int, size: int) -> None:
    check_against_plain(length, size, causal=length % 2 == 1, rate=0.1)


@pytest.mark.slow
def test_kernels_in_bfloat16_are_as_accurate_as_plain() -> None:
    check_bfloat16_accuracy(kernels)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(2, 2, 2), *in_test_all(((8, 1, 1),), ((1, 2, 4),))])
def test_kernels_do_not_depend_on_the_mesh(axes: tuple[int, int, int]) -> None:
    check_same_on_mesh(kernels, axes)


@pytest.mark.slow
def test_kernels_of_padding_and_huge_scores_are_finite() -> None:
    query, key, value, weights = inputs(1, length=100)
    arrays = [1e4 * query, 1e4 * key, value, weights]
    for ids in (example_ids(1, 100), np.zeros((1, 100))):
        assert all(np.isfinite(x).all() for x in run(kernels, arrays, ids, **options(False, 0.1)))


def unsupported_reason(names=AXES, shape=(8, LENGTH, HEADS, SIZE)) -> str:
    """Return the reason for a query of this shape on a data-parallel mesh."""
    mesh = jax.sharding.Mesh(make_mesh(-1, 1, 1).devices, names)
    with jax.set_mesh(mesh):
        return gpu_attention.unsupported_reason(jax.ShapeDtypeStruct(shape, jnp.float32))


def test_unsupported_reason_names_other_devices(monkeypatch) -> None:
    assert unsupported_reason().startswith("no GPU: the kernels are for NVIDIA GPUs since A100")
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "NVIDIA H100 80GB HBM3")
    assert not unsupported_reason()
    assert not unsupported_reason(shape=(8, 37, 3, 32))
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "Tesla V100-SXM2-16GB")
    assert unsupported_reason().startswith(
        "Tesla V100-SXM2-16GB: the kernels are for NVIDIA GPUs since A100"
    )


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        ({"shape": (8, LENGTH, HEADS, 80)}, "head size 80: the kernels take 32, 64, 128"),
        ({"shape": (9, LENGTH, HEADS, SIZE)}, "9 sequences: the mesh has 8 batch shards"),
        ({"names": ("rows", "columns", "depth")}, "there is no mesh with axes data, fsdp, tensor"),
    ],
    ids=str,
)
def test_unsupported_reason_names_shape_or_mesh(unfit: dict, reason: str, monkeypatch) -> None:
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "NVIDIA A100-SXM4-80GB")
    assert re.match(reason, unsupported_reason(**unfit))


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        ("NVIDIA L4", 64, "gpu kernels"),
        ("NVIDIA L4", 80, "plain (head size 80: the kernels take 32, 64, 128)"),
        ("Tesla T4", 64, "plain (Tesla T4: the kernels are for NVIDIA GPUs since A100)"),
    ],
)
def test_choose_implementation_for_gpus(kind, size, name, monkeypatch) -> None:
    for module in (dispatch, gpu_attention):
        monkeypatch.setattr(module, "gpu_kind", lambda: kind)
    with jax.set_mesh(make_mesh(-1, 1, 1)):
        assert (
            str(
                dispatch.choose_implementation(jax.ShapeDtypeStruct((8, 128, 2, size), jnp.float32))
            )
            == name
        )
