"""Fused attention on a mesh: dropout seeds and sharding, shared by the CPU, TPU and GPU kernels."""

from collections.abc import Callable
from typing import Any

from jax import Array

from bertjax.mesh.device_mesh import shard_map_over_batch_and_heads
from bertjax.model.dropout import threshold_and_seeds


def fused_attention(
    make_kernel: Callable[..., Callable[..., Array]],
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    **options: Any,
) -> Array:
    """Compute `bertjax.model.attention.dispatch.attention` with a kernel on each shard.

    Args:
      make_kernel: called as `make_kernel(query.shape, drop_threshold, causal, **options)`, with the
        threshold of `dropout.byte_threshold`. Returns a function
        `kernel((seeds, sequences, heads, example_ids), query, key, value)`. It takes and returns
        arrays [b, T, n * D] of a shard; `sequences` [b] and `heads` [n] are indices in the whole
        batch and model.
      query: [B, T, N, D].
      key: [B, T, N, D].
      value: [B, T, N, D].
      example_ids: int32 [B, T].
      causal: as in `dispatch.attention`.
      dropout_rate: as in `dispatch.attention`.
      dropout_key: as in `dispatch.attention`.
      **options: passed to `make_kernel`; `interpret=True` runs a Pallas kernel on any device.
    """
    drop_threshold, seeds = threshold_and_seeds(dropout_rate, dropout_key)
    kernel = make_kernel(query.shape, drop_threshold, causal, **options)
    return shard_map_over_batch_and_heads(kernel, seeds, example_ids, (query, key, value))
