"""The GPU kernels: lengths, head sizes, what they do not support."""

import functools
import re

import jax
import pytest
from attention_cases import HEADS, LENGTH, SIZE, assert_equals_plain, unsupported_reason
from conftest import in_test_all

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention import dispatch
from bertjax.model.attention import gpu as gpu_attention


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "size"),
    [(1, 64), (100, 32), *in_test_all((16, 32), (37, 128), (256, 128), (512, 64))],
)
def test_kernels_take_any_length_and_three_head_sizes(length: int, size: int) -> None:
    kernels = functools.partial(gpu_attention.attention, interpret=True)
    assert_equals_plain(kernels, (2, length, 2, size), causal=length % 2 == 1)


def test_unsupported_reason_names_other_devices(monkeypatch) -> None:
    others = "the kernels are for NVIDIA GPUs since A100"
    assert unsupported_reason(gpu_attention) == f"no GPU: {others}"
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "NVIDIA H100 80GB HBM3")
    assert not unsupported_reason(gpu_attention)
    assert not unsupported_reason(gpu_attention, shape=(8, 37, 3, 32))
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "Tesla V100-SXM2-16GB")
    assert unsupported_reason(gpu_attention) == f"Tesla V100-SXM2-16GB: {others}"


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
    assert re.match(reason, unsupported_reason(gpu_attention, **unfit))


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
    query = jax.ShapeDtypeStruct((8, 128, 2, size), "float32")
    with jax.set_mesh(make_mesh(-1, 1, 1)):
        assert str(dispatch.choose_implementation(query)) == name
