"""Dropout whose mask is a hash of each element's place: neither mesh nor kernel changes it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Of four rounds. Five are usual; tests of ten rounds in all find no flaw in what a step draws, of
# nine they do.
_ROUND_GROUPS = 3

NUM_PARTS = 8  # of an axis: an element of each has a byte of the two words that are drawn for all


def threshold(rate: float) -> int:
    """The random byte of an element, as a number, below which it is dropped."""
    return round(rate * 256)


def threshold_and_seeds(rate: float, key: Array | None) -> tuple[int, Array]:
    """`threshold`, 0 without a key, and the key's two words of uint32."""
    if key is None:
        return 0, jnp.zeros(2, jnp.uint32)
    return threshold(rate), jax.random.key_data(key)


def scale(drop_threshold: int) -> float:
    """What survives a threshold is multiplied with this, so that expectations stay."""
    return 256 / (256 - drop_threshold)


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zeroes elements of `x` [B, ..., N, D] with probability `rate` and scales up the rest.

    Without a key the input comes back. The rate is rounded to a multiple of 1/256, and the scale
    follows the rounded rate, so the expectation is exact. Whether an element is dropped follows
    from the key and its place alone, so it does not depend on the mesh, and each device draws the
    bits of its own elements and no others.
    """
    drop_threshold, seeds = threshold_and_seeds(rate, key)
    if drop_threshold == 0:
        return x
    keep = keep_mask(seeds, drop_threshold, x.shape)
    return jnp.where(keep, x * scale(drop_threshold), jnp.zeros_like(x))


def keep_mask(
    seeds: Array,
    drop_threshold: int,
    shape: tuple[int, ...],
    start: tuple[Array, ...] = (),
    transposed: bool = False,
) -> Array:
    """Which elements are kept, bool `shape` [B, ..., N, D].

    Args:
      seeds: uint32 [2].
      start: on each of the first axes the number of the first element, 0 where nothing is said.
      swapped: gives [B, ..., D, N], without the cost of a transposition.
    """
    # Two words of 32 bits serve eight elements, an eighth of the last axis but one apart: the last
    # one fills a TPU's lanes, the first may be split over devices.
    axis = len(shape) - 2
    part = (*shape[:axis], -(-shape[axis] // NUM_PARTS), shape[-1])
    axes = (*range(axis), axis + 1, axis) if transposed else range(len(shape))
    laid_out = tuple(part[i] for i in axes)
    numbers = [jax.lax.broadcasted_iota(jnp.uint32, laid_out, i) for i in axes]
    for i, first in enumerate(start):
        numbers[i] += first.astype(jnp.uint32)
    row, *rest = numbers
    place = functools.reduce(
        lambda place, axis: place * part[axis[0]] + axis[1], enumerate(rest, 1), jnp.uint32(0)
    )
    parted = axis + transposed
    words = threefry_words(seeds, row, place)
    low, high = (jnp.expand_dims(each, parted) for each in words)
    # A broadcast, which fuses with its use where a concatenation would not.
    number = jnp.expand_dims(jnp.arange(NUM_PARTS, dtype=jnp.uint32), range(1, low.ndim - parted))
    word = jnp.where(number < NUM_PARTS // 2, low, high)
    keep = keep_bit(word << byte_shift(number), drop_threshold)
    keep = keep.reshape(*laid_out[:parted], -1, *laid_out[parted + 1 :])
    return jax.lax.slice_in_dim(keep, 0, shape[axis], axis=parted)


def byte_shift(part: Any) -> Any:
    """By how many bits a part's word is shifted up for its byte to be the first of it."""
    return part % 4 * 8


def keep_bit(word: Array, drop_threshold: int) -> Array:
    """Whether elements survive, by the first byte of a uint32 each."""
    # Read with a sign, bytes are as evenly drawn, and nothing needs to be masked.
    return jax.lax.bitcast_convert_type(word, jnp.int32) >= (drop_threshold - 128) * 2**24


def threefry_words(
    seeds: Array | tuple[Array, Array], row: Array, place: Array
) -> tuple[Array, Array]:
    """Two uint32 words for each place in a row: Threefry-2x32 of both (Salmon et al. 2011).

    `jax.random.bits` would give one word for the same work, and on CPUs its rounds go through
    memory: here all of them fuse. `seeds` are two uint32, `row` and `place` uint32 of one shape.
    """
    keys = (seeds[0], seeds[1], seeds[0] ^ seeds[1] ^ 0x1BD11BDA)
    left, right = row + keys[0], place + keys[1]
    for group in range(_ROUND_GROUPS):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            left += right
            right = left ^ (right << turn | right >> 32 - turn)
        left += keys[(group + 1) % 3]
        right += keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right
