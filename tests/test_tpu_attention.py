"""The TPU kernel equals plain attention, with dropout and gradients."""

import functools
import pathlib
import re
from typing import Any

import jax
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

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.mesh.device_mesh import AXES, make_mesh
from bertjax.model.attention import dispatch
from bertjax.model.attention import tpu as tpu_attention
from bertjax.model.attention.plain import attention as plain
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
kernel = functools.partial(tpu_attention.attention, interpret=True)


def draw_batch(config: Config) -> dict[str, np.ndarray]:
    """Return sequences of one pair each, with a masked token in every slot."""
    random, batch = np.random.default_rng(0), {}
    highest = {
        "input_ids": 100,
        "masked_lm_ids": 100,
        "masked_lm_positions": config.max_seq_length,
        "token_type_ids": 2,
    }
    for name, leaf in registry.make_objective(config).batch_shapes(config.batch_size).items():
        batch[name] = np.asarray(random.integers(0, highest.get(name, 1), leaf.shape), leaf.dtype)
    batch["example_ids"][:, :100] = 1
    batch["masked_lm_weights"][:] = batch["next_sentence_weights"][:] = 1
    batch["position_ids"][:] = np.arange(config.max_seq_length)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_kernel_and_gradients_equal_plain(causal: bool, rate: float) -> None:
    arrays, ids = inputs(2), example_ids(2)
    ours, theirs = (run(attend, arrays, ids, **options(causal, rate)) for attend in (kernel, plain))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.slow
def test_kernel_without_a_key_drops_nothing() -> None:
    arrays, ids = inputs(1), example_ids(1)
    for a, b in zip(
        run(kernel, arrays, ids, dropout_rate=0.5), run(kernel, arrays, ids), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_kernel_in_bfloat16_is_as_accurate_as_plain() -> None:
    check_bfloat16_accuracy(kernel)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
def test_kernel_does_not_depend_on_the_mesh(axes: tuple[int, int, int]) -> None:
    check_same_on_mesh(kernel, axes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "heads", "size", "heads_per_block"),
    [(256, 4, 64, 2), (128, 2, 128, 1), (128, 3, 64, 3)],
)
def test_kernel_by_groups_of_heads_equals_plain(
    length: int, heads: int, size: int, heads_per_block: int, monkeypatch
) -> None:
    monkeypatch.setattr(tpu_attention, "_MAX_BLOCK_BYTES", 4 * length * size * heads_per_block)
    assert tpu_attention._heads_per_block(length, heads * size, size, 4) == heads_per_block
    arrays, ids = inputs(2, length=length, heads=heads, size=size), example_ids(2, length)
    ours, theirs = (run(attend, arrays, ids, **options(False, 0.1)) for attend in (kernel, plain))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.slow
def test_kernel_of_padding_and_huge_scores_is_finite() -> None:
    query, key, value, weights = inputs(1)
    arrays = [1e4 * query, 1e4 * key, value, weights]
    for ids in (example_ids(1), np.zeros((1, LENGTH))):
        assert all(np.isfinite(x).all() for x in run(kernel, arrays, ids, **options(False, 0.1)))


def unsupported_reason(
    axes=(-1, 1, 1), names=AXES, dtype="float32", shape=(8, LENGTH, HEADS, SIZE)
) -> str:
    """Return the reason for a query of this shape on this mesh."""
    mesh = jax.sharding.Mesh(make_mesh(*axes).devices, names)
    with jax.set_mesh(mesh):
        return tpu_attention.unsupported_reason(jax.ShapeDtypeStruct(shape, dtype))


def test_unsupported_reason_names_other_devices(monkeypatch) -> None:
    assert unsupported_reason().startswith("no TPU: the kernel is for TPU v4")
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v5 lite")
    assert not unsupported_reason()
    assert not unsupported_reason(axes=(2, 1, 4)) and not unsupported_reason(shape=(8, 512, 16, 64))
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v2")
    assert unsupported_reason().startswith("TPU v2: the kernel is for TPU v4")


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        ({"shape": (8, 96, HEADS, SIZE)}, "96 tokens: the kernel takes multiples of 128"),
        ({"shape": (8, 640, HEADS, SIZE)}, "640 tokens: .* up to 512"),
        ({"shape": (8, LENGTH, HEADS, 80)}, "head size 80: the kernel takes multiples of 64"),
        ({"shape": (9, LENGTH, HEADS, SIZE)}, "9 sequences: the mesh has 8 batch shards"),
        ({"shape": (8, LENGTH, 6, SIZE), "axes": (2, 1, 4)}, "6 heads: mesh.tensor=4 does not"),
        ({"shape": (8, 512, 3, 192)}, "3 heads of 192 and 512 tokens: no block fits"),
        ({"names": ("rows", "columns", "depth")}, "there is no mesh with axes data, fsdp, tensor"),
    ],
    ids=str,
)
def test_unsupported_reason_names_shape_or_mesh(unfit: dict, reason: str, monkeypatch) -> None:
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v5 lite")
    assert re.match(reason, unsupported_reason(**unfit))


@pytest.mark.minutes
def test_train_step_with_the_kernel_equals_plain(monkeypatch) -> None:
    model = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    model |= {"remat": True, "scan_layers": True}
    text = {f"model.{name}": str(value) for name, value in model.items()}
    text |= {"batch_size": "8", "gradient_accumulation_steps": "2", "max_seq_length": "128"}
    text |= {"mesh.data": "2", "mesh.tensor": "2", "mesh.fsdp": "1"}
    config = load_config(f"{PRETRAIN}:smoke", text, registry.data_fields()).resolve(100)
    batch = draw_batch(config)

    def after_a_step() -> tuple[Any, Any]:
        program = StepFunctions(config, registry.make_objective(config), jax.devices()[:4])
        state, metric_sums = program.compile_train_step()(
            program.init(), jax.device_put(batch, program.batch_sharding), {}
        )
        return state.params, metric_sums

    usual = after_a_step()
    calls = []
    for module in (dispatch, tpu_attention):
        monkeypatch.setattr(module, "tpu_kind", lambda: "TPU v5 lite")
    real = tpu_attention.attention
    monkeypatch.setattr(
        tpu_attention,
        "attention",
        lambda *args, **options: calls.append(1) or real(*args, **options, interpret=True),
    )
    for a, b in zip(jax.tree.leaves(after_a_step()), jax.tree.leaves(usual), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert calls
