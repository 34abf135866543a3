"""The GPU kernels: lengths, head sizes, what they do not support."""

import functools
import re
from types import SimpleNamespace

import jax
import pytest
from attention_cases import HEADS, LENGTH, SIZE, assert_equals_plain, unsupported_reason
from config_loading import PRETRAIN
from conftest import in_test_all, run_python

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention import dispatch
from bertjax.model.attention import gpu as gpu_attention


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "size"),
    [(1, 64), (100, 32), *in_test_all((16, 32), (37, 128), (256, 128), (512, 64), (1024, 64))],
)
def test_kernels_take_any_length_and_three_head_sizes(length: int, size: int) -> None:
    kernels = functools.partial(gpu_attention.attention, interpret=True)
    mask_kind = "left_to_right" if length % 2 else "prefix" if size == 32 else "bidirectional"
    assert_equals_plain(kernels, (2, length, 2, size), mask_kind)


def test_unsupported_reason_names_other_devices(monkeypatch) -> None:
    others = "the kernels are for NVIDIA GPUs since A100"
    assert unsupported_reason(gpu_attention) == f"no GPU: {others}"
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "NVIDIA H100 80GB HBM3")
    assert not unsupported_reason(gpu_attention)
    assert not unsupported_reason(gpu_attention, shape=(8, 37, 3, 32))
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: "Tesla V100-SXM2-16GB")
    assert unsupported_reason(gpu_attention) == f"Tesla V100-SXM2-16GB: {others}"


def test_unsupported_reason_names_an_nvidia_gpu_without_triton(monkeypatch) -> None:
    kind = "NVIDIA TITAN RTX"
    gpu = SimpleNamespace(device_kind=kind, platform="gpu", compute_capability="7.5")
    monkeypatch.setattr(gpu_attention, "gpu_kind", lambda: kind)
    assert not unsupported_reason(gpu_attention)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert (
        unsupported_reason(gpu_attention) == f"{kind}: the kernels are for NVIDIA GPUs since A100"
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
    assert re.match(reason, unsupported_reason(gpu_attention, **unfit))


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        ("NVIDIA L4", 64, "gpu kernels"),
        ("NVIDIA L4", 80, "plain, recomputed (head size 80: the kernels take 32, 64, 128)"),
        (
            "Tesla T4",
            64,
            "plain, recomputed (Tesla T4: the kernels are for NVIDIA GPUs since A100)",
        ),
    ],
)
def test_choose_implementation_for_gpus(kind, size, name, monkeypatch) -> None:
    for module in (dispatch, gpu_attention):
        monkeypatch.setattr(module, "gpu_kind", lambda: kind)
    query = jax.ShapeDtypeStruct((8, 128, 2, size), "float32")
    with jax.set_mesh(make_mesh(-1, 1, 1)):
        assert str(dispatch.choose_implementation(query)) == name


WITHOUT_TRITON = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None

import logging
import jax, numpy as np
from bertjax.config.loading import load_config
from bertjax.model.attention import dispatch, gpu
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means
from bertjax.tasks import registry

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
fields = {"model.vocab_size": "128", "batch_size": "8", "max_seq_length": "32", "steps": "3"}
fields |= {"log_every": "1", "model.attention_probs_dropout_prob": "0.1"}
config = load_config(f"{sys.argv[1]}:smoke", fields, registry.data_fields()).resolve(None)

def train():
    objective = registry.make_objective(config)
    functions = StepFunctions(config, objective)
    draw, batch = np.random.default_rng(0), {}
    for name, x in objective.batch_shapes(config.batch_size).items():
        batch[name] = draw.integers(0, 2, x.shape).astype(x.dtype)
    state, step, losses = functions.init(), functions.compile_train_step(), []
    for _ in range(3):
        state, sums = step(state, batch, functions.constants())
        losses.append(means(jax.device_get(sums))["loss"])
    return losses

expected = train()
for module in dispatch, gpu:
    module.gpu_kind = lambda: "NVIDIA H100 80GB HBM3"
jax.clear_caches()
np.testing.assert_allclose(train(), expected, rtol=1e-5)
"""


@pytest.mark.slow
def test_training_without_the_triton_backend_has_the_same_losses() -> None:
    log = run_python(WITHOUT_TRITON, str(PRETRAIN))
    reason = f"jax {jax.__version__} has no Triton backend for Pallas"
    assert log == f"attention: plain, recomputed ({reason})\n"
