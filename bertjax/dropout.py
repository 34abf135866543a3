"""Dropout whose mask is a hash of each element's place: neither mesh nor kernel changes it."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import threefry2x32_p


def threshold(rate: float) -> int:
    """The 16 random bits of an element, as a number, below which it is dropped."""
    return round(rate * 2**16)


def scale(limit: int) -> float:
    """What survives a threshold is multiplied with this, so that expectations stay."""
    return 2**16 / (2**16 - limit)


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes elements of `x` [B, ..., N, D] with probability `rate` and scales up the rest.

    Without a key the input comes back. The rate is rounded to a multiple of 2**-16 and the scale
    follows the rounded rate, so the expectation is exact. Whether an element is dropped follows
    from the key and its place alone, so it does not depend on the mesh, and each device draws the
    bits of its own elements and no others.
    """
    limit = threshold(rate)
    if key is None or limit == 0:
        return x
    # Two words of 32 bits serve four elements, a quarter of the last axis but one apart: the last
    # one fills a TPU's lanes, the first may be split over devices.
    axis = x.ndim - 2
    quarter = (*x.shape[:axis], -(-x.shape[axis] // 4), x.shape[-1])
    row, *rest = (jax.lax.broadcasted_iota(jnp.uint32, quarter, i) for i in range(x.ndim))
    place = functools.reduce(
        lambda place, axis: place * quarter[axis[0]] + axis[1], enumerate(rest, 1), jnp.uint32(0)
    )
    words = random_words(jax.random.key_data(key), row, place)
    first, second = (jnp.expand_dims(each, axis) for each in words)
    # A broadcast, which fuses with its use where a concatenation would not.
    part = jnp.arange(4, dtype=jnp.uint32)[:, None, None]
    bits = jnp.where(part < 2, first, second) >> 16 * (part % 2) & 0xFFFF
    bits = bits.reshape(*x.shape[:axis], -1, x.shape[-1])
    keep = jax.lax.slice_in_dim(bits, 0, x.shape[axis], axis=axis) >= limit
    return jnp.where(keep, x * scale(limit), jnp.zeros_like(x))


def random_words(seeds: Array, row: Array, place: Array) -> tuple[Array, Array]:
    """Two uint32 words for each place in a row: Threefry-2x32 of both (Salmon et al. 2011).

    `jax.random.bits` would give one word for the same work. `seeds` are two uint32, `row` and
    `place` uint32 of one shape.
    """
    first, second = threefry2x32_p.bind(seeds[0], seeds[1], row, place)
    return first, second
