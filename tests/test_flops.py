"""FLOPs equal the matrix products of the traced program; peaks are those of data sheets."""

import re

import jax
import numpy as np
import pytest
from traced_programs import matrix_flops

from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.bert import BertWithHeads, param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.flops import PEAK_FLOPS, forward_flops, peak_flops
from bertjax.model.head_positions import num_last_block_positions

CONFIG = BertConfig(
    vocab_size=300,
    num_hidden_layers=3,
    hidden_size=48,
    num_attention_heads=6,
    intermediate_size=100,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ROWS, LENGTH, SLOTS, PAIRS = 3, 40, 7, 2


@pytest.mark.seconds
@pytest.mark.parametrize("next_sentence", [True, False])
@pytest.mark.parametrize("length", [LENGTH, 2 * SLOTS - 1])  # heads read few positions, or many
def test_forward_flops_equal_the_program(next_sentence, length, monkeypatch):
    # CPU attention computes weights twice, which are no model FLOPs.
    monkeypatch.setattr(cpu_attention, "unsupported_reason", lambda query: "counted")
    model = BertWithHeads(CONFIG, ("mlm", "nsp") if next_sentence else ("mlm",))
    tokens, slots, pairs = (np.zeros((ROWS, n), np.int32) for n in (length, SLOTS, PAIRS))
    batch = dict.fromkeys(ENCODER_INPUTS, tokens) | {
        "masked_lm_positions": slots,
        "cls_positions": pairs,
    }
    params = {"params": param_shapes(CONFIG)}

    def total(params):
        return sum(x.sum() for x in model.apply(params, batch, deterministic=True).values())

    counted = matrix_flops(jax.make_jaxpr(jax.grad(total))(params).jaxpr)
    pairs = PAIRS if next_sentence else 0
    positions = num_last_block_positions(CONFIG, model.heads, batch)
    assert counted == 3 * forward_flops(CONFIG, ROWS, length, SLOTS, pairs, positions)


def test_forward_flops_are_near_six_per_parameter_and_token():
    large = BertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16)
    kernels = 24 * 12 * 1024**2
    per_token = 3 * forward_flops(large, 1, 128, 20) / 128
    assert 6 * kernels < per_token < 1.08 * 6 * kernels


def test_forward_flops_scale_with_batch_and_squared_length():
    assert forward_flops(CONFIG, 8, 64, 9, 1) == 8 * forward_flops(CONFIG, 1, 64, 9, 1)
    single, double = (forward_flops(CONFIG, 1, length, 0) for length in (10**6, 2 * 10**6))
    assert 3.99 < double / single < 4


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
        ("Tesla V100-SXM2-32GB", 15.7),
        ("Tesla T4", 8.1),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
    ],
)
def test_peak_flops_of_known_devices(kind, tera):
    assert peak_flops(kind) == tera * 1e12


@pytest.mark.parametrize("kind", ["cpu", "", "NVIDIA GeForce GTX 1080", "TPU"])
def test_peak_flops_is_none_for_unknown_devices(kind):
    assert peak_flops(kind) is None


def test_peak_flops_entries_are_reachable():
    kinds = [kind for kind, _ in PEAK_FLOPS]
    hidden = [b for i, b in enumerate(kinds) for a in kinds[:i] if re.match(re.escape(a), b)]
    assert not hidden
