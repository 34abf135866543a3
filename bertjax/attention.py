"""Scaled dot-product attention inside packed rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from bertjax import cpu_attention, fused_attention
from bertjax.dropout import dropout


def visible(pack_ids: Array, causal: bool = False) -> Array:
    """Which keys each query may see: bool [B, 1, T, T] from `pack_ids` int32 [B, T].

    A piece sees the pieces of its own pair; padding (id 0) sees padding, so that no query is left
    without a key and no softmax divides by zero. With `causal`, only itself and what stands before.
    """
    mask = pack_ids[:, None, :, None] == pack_ids[:, None, None, :]
    if causal:
        length = pack_ids.shape[-1]
        mask &= jnp.tri(length, dtype=bool)
    return mask


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
    attend: Callable[..., Array] = plain
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


def plain(
    query: Array,
    key: Array,
    value: Array,
    pack_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """`attention` of the whole batch at once, for any device and shape."""
    # Keys before queries, as the kernel has them, so that dropout falls on the same places.
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = jnp.einsum("bnkd,bnqd->bnkq", key, query * query.shape[-1] ** -0.5)
    seen = visible(pack_ids, causal).swapaxes(2, 3)
    scores = jnp.where(seen, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=2).astype(value.dtype)
    weights = dropout(weights, dropout_rate, dropout_key)
    return jnp.einsum("bnkq,bnkd->bnqd", weights, value).swapaxes(1, 2)
