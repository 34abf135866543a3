"""Dropout whose mask is a hash of each element's place: neither mesh nor kernel changes it."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import threefry2x32_p


def threshold(rate: float) -> int:
    """The 16 random bits of an element, as a number, below which it is dropped."""
    return round(rate * 2**16)


def limit_and_seeds(rate: float, key: Array | None) -> tuple[int, Array]:
    """`threshold`, 0 without a key, and the key's two words of uint32."""
    if key is None:
        return 0, jnp.zeros(2, jnp.uint32)
    return threshold(rate), jax.random.key_data(key)


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
    limit, seeds = limit_and_seeds(rate, key)
    if limit == 0:
        return x
    keep = survivors(seeds, limit, x.shape)
    return jnp.where(keep, x * scale(limit), jnp.zeros_like(x))


def survivors(
    seeds: Array, limit: int, shape: tuple[int, ...], start: tuple[Array, ...] = ()
) -> Array:
    """Which elements are kept, bool `shape` [B, ..., N, D].

    Args:
      seeds: uint32 [2].
      start: on each of the first axes the number of the first element, 0 where nothing is said.
    """
    # Two words of 32 bits serve four elements, a quarter of the last axis but one apart: the last
    # one fills a TPU's lanes, the first may be split over devices.
    axis = len(shape) - 2
    quarter = (*shape[:axis], -(-shape[axis] // 4), shape[-1])
    numbers = [jax.lax.broadcasted_iota(jnp.uint32, quarter, i) for i in range(len(shape))]
    for i, first in enumerate(start):
        numbers[i] += first.astype(jnp.uint32)
    row, *rest = numbers
    place = functools.reduce(
        lambda place, axis: place * quarter[axis[0]] + axis[1], enumerate(rest, 1), jnp.uint32(0)
    )
    words = random_words(seeds, row, place)
    low, high = (jnp.expand_dims(each, axis) for each in words)
    # A broadcast, which fuses with its use where a concatenation would not.
    part = jnp.arange(4, dtype=jnp.uint32)[:, None, None]
    bits = jnp.where(part < 2, low, high) >> 16 * (part % 2) & 0xFFFF
    bits = bits.reshape(*shape[:axis], -1, shape[-1])
    return jax.lax.slice_in_dim(bits, 0, shape[axis], axis=axis) >= limit


def random_words(seeds: Array, row: Array, place: Array) -> tuple[Array, Array]:
    """Two uint32 words for each place in a row: Threefry-2x32 of both (Salmon et al. 2011).

    `jax.random.bits` would give one word for the same work. `seeds` are two uint32, `row` and
    `place` uint32 of one shape.
    """
    first, second = threefry2x32_p.bind(seeds[0], seeds[1], row, place)
    return first, second
