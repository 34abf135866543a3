"""Floating-point operations of a forward pass, and peak rates of devices.

Model FLOP utilization is operations / (seconds * peak * devices) (Chowdhery et al. 2022, appendix
B).
"""

from bertjax.model.bert_config import BertConfig

# Dense bfloat16 peak in FLOP/s of one JAX device by the prefix of its `device_kind`. The first
# match counts. On TPU v2, v3 and 7 a device is one core, half a chip. V100 and T4 have no bfloat16
# units and multiply in float32, whose peak counts.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("TPU v2", 22.5e12),
    ("TPU v3", 61.5e12),
    ("TPU v4 lite", 138e12),
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v6", 918e12),
    ("TPU7", 1153.5e12),
    ("Tesla V100", 15.7e12),
    ("Tesla T4", 8.1e12),
    ("NVIDIA A100", 312e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA H100", 989e12),
    ("NVIDIA H200 NVL", 835e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA B200", 2250e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA L40", 181e12),
    ("NVIDIA L4", 121e12),
)


def forward_flops(
    config: BertConfig,
    num_sequences: int,
    max_seq_length: int,
    max_predictions_per_seq: int = 0,
    examples_per_seq: int = 0,
    last_block_positions: int | None = None,
) -> int:
    """Return the operations of the matrix products in a forward pass of the pre-training model.

    A multiplication and an addition count as two. Everything that the shapes make the hardware
    compute counts, including padding, unused predictions and masked attention scores.

    Args:
      config: shape of the encoder.
      num_sequences: sequences of the batch.
      max_seq_length: tokens of a sequence.
      max_predictions_per_seq: masked LM predictions of a sequence; 0 without that head.
      examples_per_seq: pooled vectors of a sequence, with two logits each; 0 without that head.
      last_block_positions: result of `bertjax.model.head_positions.num_last_block_positions`; None
        for all positions.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    # Multiply-adds of a block before and after attention, per position; doubled at the end.
    before = 3 * hidden**2
    after = hidden**2 + 2 * hidden * config.feed_forward_size
    block = max_seq_length * (before + after) + 2 * max_seq_length**2 * hidden
    if config.encoder == "lstm":
        block = max_seq_length * (2 * 4 + 1) * hidden * config.feed_forward_size
    if config.direction == "pair":
        block *= 2
    if config.has_cross_attention:  # a block of the decoder: keys and values of the encoder, slots
        block += 2 * max_seq_length * hidden**2
        block += max_predictions_per_seq * (before + after + 2 * hidden**2)
        block += 2 * max_predictions_per_seq * (max_predictions_per_seq + max_seq_length) * hidden
    skipped = 0 if last_block_positions is None else max_seq_length - last_block_positions
    mlm = max_predictions_per_seq * hidden * (hidden + config.vocab_size)
    nsp = examples_per_seq * hidden * (hidden + 2)
    return 2 * num_sequences * (layers * block - skipped * after + mlm + nsp)


def peak_flops(device_kind: str) -> float | None:
    """Return the bfloat16 peak in FLOP/s of a device, None for an unknown `device_kind`."""
    return next((peak for kind, peak in PEAK_FLOPS if device_kind.startswith(kind)), None)
