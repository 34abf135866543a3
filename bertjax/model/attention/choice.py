"""Scaled dot-product attention inside packed rows, by what suits the devices."""

from collections.abc import Callable

from jax import Array

from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import plain as plain_attention
from bertjax.model.attention import tpu as fused_attention


def attention(
    query: Array,
    key: Array,
    value: Array,
    pack_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """softmax(query key^T / sqrt(D)) value within each pair (Vaswani et al. 2017, section 3.2.1).

    `query`, `key` and `value` are [B, T, N, D] (N heads of size D), `pack_ids` int32 [B, T]; the
    result is [B, T, N, D] in the dtype of `value`. The softmax is taken in float32 whatever the
    inputs, and dropout falls on the probabilities.

    On the TPUs of the mesh in whose context it is traced (`jax.set_mesh`), one kernel does it all;
    CPUs take a row at a time.
    """
    attend: Callable[..., Array] = plain_attention.attention
    if fused_attention.serves(query):
        attend = fused_attention.attention
    elif cpu_attention.serves(query):
        attend = cpu_attention.attention
    return attend(
        query,
        key,
        value,
        pack_ids,
        causal=causal,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
    )
