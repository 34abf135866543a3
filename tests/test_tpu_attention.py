"""The TPU kernel: blocks of heads, what it does not support, a train step with it."""

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
from attention_cases import HEADS, LENGTH, SIZE, assert_equals_plain, unsupported_reason
from config_loading import load

from bertjax.config.config import Config
from bertjax.model.attention import dispatch
from bertjax.model.attention import tpu as tpu_attention
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry


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
@pytest.mark.parametrize(
    ("length", "heads", "size", "heads_per_block"),
    [(256, 4, 64, 2), (128, 2, 128, 1), (128, 3, 64, 3), (1024, 2, 64, 2)],
)
def test_kernel_by_groups_of_heads_equals_plain(
    length: int, heads: int, size: int, heads_per_block: int, monkeypatch
) -> None:
    monkeypatch.setattr(tpu_attention, "_MAX_BLOCK_BYTES", 4 * length * size * heads_per_block)
    assert tpu_attention._heads_per_block(length, heads * size, size, 4) == heads_per_block
    kernel = functools.partial(tpu_attention.attention, interpret=True)
    assert_equals_plain(kernel, (2, length, heads, size), atol=2e-5)


def test_unsupported_reason_names_other_devices(monkeypatch) -> None:
    assert unsupported_reason(tpu_attention).startswith("no TPU: the kernel is for TPU v4")
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v5 lite")
    for fit in ({}, {"axes": (2, 1, 4)}, {"shape": (8, 512, 16, 64)}):
        assert not unsupported_reason(tpu_attention, **fit)
    long = {"shape": (8, 1024, 16, 64), "dtype": "bfloat16"}
    assert not unsupported_reason(tpu_attention, **long)
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v4")
    reason = "1024 tokens: the kernel takes multiples of 128 up to 512"
    assert unsupported_reason(tpu_attention, **long) == reason
    monkeypatch.setattr(tpu_attention, "tpu_kind", lambda: "TPU v2")
    assert unsupported_reason(tpu_attention).startswith("TPU v2: the kernel is for TPU v4")


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        ({"shape": (8, 96, HEADS, SIZE)}, "96 tokens: the kernel takes multiples of 128"),
        ({"shape": (8, 1152, HEADS, SIZE)}, "1152 tokens: .* up to 1024"),
        ({"shape": (8, 1024, 16, 64)}, "16 heads of 64 and 1024 tokens: no block fits"),
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
    assert re.match(reason, unsupported_reason(tpu_attention, **unfit))


@pytest.mark.minutes
def test_train_step_with_the_kernel_equals_plain(monkeypatch) -> None:
    fields = {"model.hidden_size": 128, "model.num_attention_heads": 2, "model.vocab_size": 100}
    fields |= {"model.num_hidden_layers": 2, "model.remat": True, "model.scan_layers": True}
    fields |= {"batch_size": 8, "gradient_accumulation_steps": 2, "max_seq_length": 128}
    fields |= {"mesh.data": 2, "mesh.tensor": 2, "mesh.fsdp": 1}
    config = load("smoke", **fields).resolve(100)
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
