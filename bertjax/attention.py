"""Scaled dot-product attention inside packed rows, and the dropout that goes with it."""

import jax
import jax.numpy as jnp
from jax import Array


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes elements of `x` [..., N, D] with probability `rate` and scales up the rest.

    Without a key the input comes back. The rate is rounded to a multiple of 2**-16 and the scale
    follows the rounded rate, so the expectation is exact. Drawing random bits is what dropout
    costs: a 32-bit word serves two elements here. Which generator draws it follows from the key
    (`jax.random.key(seed, impl=...)`).
    """
    threshold = round(rate * 2**16)
    if key is None or threshold == 0:
        return x
    # The last axis but one is halved: the last one fills a TPU's lanes, the first may be sharded.
    axis = x.ndim - 2
    half = (*x.shape[:axis], (x.shape[axis] + 1) // 2, *x.shape[axis + 1 :])
    words = jax.random.bits(key, half, jnp.uint32)
    # Not a concatenation, which compilers do not fuse with what uses it.
    shifts = jnp.array([[[0]], [[16]]], jnp.uint32)
    bits = jnp.expand_dims(words, axis) >> shifts & 0xFFFF
    bits = bits.reshape(*x.shape[:axis], -1, x.shape[-1])
    keep = jax.lax.slice_in_dim(bits, 0, x.shape[axis], axis=axis) >= threshold
    return jnp.where(keep, x * (2**16 / (2**16 - threshold)), jnp.zeros_like(x))


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
    """
    # Heads before pieces, in the open: a CPU multiplies matrices a quarter faster so.
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = jnp.einsum("bnqd,bnkd->bnqk", query * query.shape[-1] ** -0.5, key)
    scores = jnp.where(
        visible(pack_ids, causal), scores.astype(jnp.float32), jnp.finfo(jnp.float32).min
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    weights = dropout(weights, dropout_rate, dropout_key)
    return jnp.einsum("bnqk,bnkd->bnqd", weights, value).swapaxes(1, 2)
