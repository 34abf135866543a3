"""Scaled dot-product attention inside packed rows, and the dropout that goes with it."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import threefry2x32_p


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes elements of `x` [B, ..., N, D] with probability `rate` and scales up the rest.

    Without a key the input comes back. The rate is rounded to a multiple of 2**-16 and the scale
    follows the rounded rate, so the expectation is exact. Whether an element is dropped follows
    from the key and its place alone, so it does not depend on the mesh, and each device draws the
    bits of its own elements and no others.
    """
    threshold = round(rate * 2**16)
    if key is None or threshold == 0:
        return x
    # Two words of 32 bits serve four elements, one behind the other along the last axis but one:
    # the last one fills a TPU's lanes, the first may be split over devices.
    axis = x.ndim - 2
    quarter = (*x.shape[:axis], -(-x.shape[axis] // 4), x.shape[-1])
    first, second = (jnp.expand_dims(words, axis + 1) for words in _random_words(key, quarter))
    place = jnp.arange(4, dtype=jnp.uint32)[:, None]
    bits = jnp.where(place < 2, first, second) >> 16 * (place % 2) & 0xFFFF
    bits = bits.reshape(*x.shape[:axis], -1, x.shape[-1])
    keep = jax.lax.slice_in_dim(bits, 0, x.shape[axis], axis=axis) >= threshold
    return jnp.where(keep, x * (2**16 / (2**16 - threshold)), jnp.zeros_like(x))


def _random_words(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Two uint32 words [shape] for each place: Threefry-2x32 of its index (Salmon et al. 2011).

    `jax.random.bits` would give one word for the same work.
    """
    row, *rest = (jax.lax.broadcasted_iota(jnp.uint32, shape, i) for i in range(len(shape)))
    place = functools.reduce(
        lambda place, axis: place * shape[axis[0]] + axis[1], enumerate(rest, 1), jnp.uint32(0)
    )
    halves = jax.random.key_data(key)
    first, second = threefry2x32_p.bind(halves[0], halves[1], row, place)
    return first, second


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
