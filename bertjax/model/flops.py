"""Floating-point operations of a forward pass, and the peaks they are measured against.

Utilisation is operations / (seconds * peak * devices) (Chowdhery et al. 2022, appendix B).
"""

from bertjax.model.encoder import BertConfig, computes_only_head_positions

# Dense bfloat16 peak in FLOP/s of one JAX device, by the beginning of its `device_kind`; the first
# that matches counts. On TPU v2, v3 and 7 a device is one core, half a chip. V100: float16.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("TPU v2", 22.5e12),
    ("TPU v3", 61.5e12),
    ("TPU v4 lite", 138e12),
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v6", 918e12),
    ("TPU7", 1155e12),
    ("Tesla V100", 125e12),
    ("NVIDIA A100", 312e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA H100", 989e12),
    ("NVIDIA H200 NVL", 835e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA B200", 2250e12),
    ("NVIDIA L4", 121e12),
)


def forward_flops(
    config: BertConfig,
    num_sequences: int,
    max_seq_length: int,
    max_predictions_per_seq: int = 0,
    examples_per_seq: int = 0,
    read: int = 0,
) -> int:
    """Operations of the matrix products in a forward pass of the pre-training model.

    A multiplication and an addition count as two. What the shapes make the hardware compute
    counts, with padding, empty slots and scores that the mask hides.

    Args:
      rows, max_seq_length: of the batch.
      max_predictions_per_seq: slots a row for masked pieces; 0 for a model without that head.
      pairs: slots a row for pooled vectors with two logits each; 0 for a model without.
      read: slots a row whose vectors heads read, see `bertjax.model.heads.num_head_positions`.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    before = 3 * hidden**2  # in a block, the products before attention, and after
    after = hidden**2 + 2 * hidden * config.feed_forward_size
    block = max_seq_length * (before + after) + 2 * max_seq_length**2 * hidden
    unread = (
        max_seq_length - read
        if read and computes_only_head_positions(config, read, max_seq_length)
        else 0
    )
    mlm = max_predictions_per_seq * hidden * (hidden + config.vocab_size)
    nsp = examples_per_seq * hidden * (hidden + 2)
    return 2 * num_sequences * (layers * block - unread * after + mlm + nsp)


def peak_flops(device_kind: str) -> float | None:
    """bfloat16 peak in FLOP/s of one device by its `jax.Device.device_kind`; None if unknown."""
    return next((peak for kind, peak in PEAK_FLOPS if device_kind.startswith(kind)), None)
