"""Dropout whose mask is a hash of each element's index: neither mesh nor kernel changes it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Groups of four rounds. Five are usual. Our statistical tests find no flaw in the bits of a step
# with ten rounds in all, and flaws with nine.
_ROUND_GROUPS = 3

NUM_PARTS = 8  # of an axis; one element of each takes a byte of the two words that all share


def byte_threshold(rate: float) -> int:
    """Return the random byte below which an element is dropped."""
    return round(rate * 256)


def threshold_and_seeds(rate: float, key: Array | None) -> tuple[int, Array]:
    """Return `byte_threshold`, 0 without a key, and the key's data as uint32 [2]."""
    if key is None:
        return 0, jnp.zeros(2, jnp.uint32)
    return byte_threshold(rate), jax.random.key_data(key)


def inverse_keep_prob(drop_threshold: int) -> float:
    """Return the factor of kept elements that preserves their expectation."""
    return 256 / (256 - drop_threshold)


@jax.named_scope("dropout")
def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zero elements of `x` [B, ..., N, D] with probability `rate` and scale up the others.

    Without a key the input is returned. The rate is rounded to a multiple of 1/256. The scale uses
    the rounded rate, so the expectation is exact. An element's fate depends on the key and the
    element's index alone, not on the mesh, and each device draws only the bits of its elements.
    """
    drop_threshold, seeds = threshold_and_seeds(rate, key)
    if drop_threshold == 0:
        return x
    keep = keep_mask(seeds, drop_threshold, x.shape)
    return jnp.where(keep, x * inverse_keep_prob(drop_threshold), jnp.zeros_like(x))


def keep_mask(
    seeds: Array,
    drop_threshold: int,
    shape: tuple[int, ...],
    start: tuple[Array, ...] = (),
    transposed: bool = False,
) -> Array:
    """Return the mask of kept elements, bool `shape` [B, ..., N, D].

    Args:
      seeds: uint32 [2].
      drop_threshold: elements whose random byte is below it are dropped.
      shape: shape of the mask.
      start: index of the first element along each of the first axes, 0 for the other axes.
      transposed: return [B, ..., D, N] instead, without the cost of a transposition.
    """
    # Two words of 32 bits serve eight elements, an eighth of the second-to-last axis apart: the
    # last axis fills a TPU's lanes, and the first may be split over devices.
    axis = len(shape) - 2
    part = (*shape[:axis], -(-shape[axis] // NUM_PARTS), shape[-1])
    axes = (*range(axis), axis + 1, axis) if transposed else range(len(shape))
    layout = tuple(part[i] for i in axes)
    indices = [jax.lax.broadcasted_iota(jnp.uint32, layout, i) for i in axes]
    for i, first in enumerate(start):
        indices[i] += first.astype(jnp.uint32)
    sequence_index, *others = indices
    element_index = functools.reduce(
        lambda index, axis: index * part[axis[0]] + axis[1], enumerate(others, 1), jnp.uint32(0)
    )
    part_axis = axis + transposed
    words = threefry_words(seeds, sequence_index, element_index)
    low, high = (jnp.expand_dims(word, part_axis) for word in words)
    # A broadcast fuses with its use; a concatenation would not.
    number = jnp.arange(NUM_PARTS, dtype=jnp.uint32)
    number = jnp.expand_dims(number, range(1, low.ndim - part_axis))
    word = jnp.where(number < NUM_PARTS // 2, low, high)
    keep = keep_bit(word << byte_shift(number), drop_threshold)
    keep = keep.reshape(*layout[:part_axis], -1, *layout[part_axis + 1 :])
    return jax.lax.slice_in_dim(keep, 0, shape[axis], axis=part_axis)


def byte_shift(part: Any) -> Any:
    """Return the left shift that moves a part's byte to the top of its word."""
    return part % 4 * 8


def keep_bit(word: Array, drop_threshold: int) -> Array:
    """Return True for elements to keep, by the top byte of their uint32."""
    # Signed bytes are as uniform as unsigned ones, and the comparison needs no mask.
    return jax.lax.bitcast_convert_type(word, jnp.int32) >= (drop_threshold - 128) * 2**24


def threefry_words(
    seeds: Array | tuple[Array, Array], sequence_index: Array, element_index: Array
) -> tuple[Array, Array]:
    """Return two uint32 words per element: Threefry-2x32 of both indices (Salmon et al. 2011).

    `jax.random.bits` would return one word for the same work, and on CPUs its rounds would pass
    through memory. Here all of them fuse.

    Args:
      seeds: two uint32.
      sequence_index: uint32, index along the batch.
      element_index: uint32 of the same shape, index within the sequence.
    """
    keys = (seeds[0], seeds[1], seeds[0] ^ seeds[1] ^ 0x1BD11BDA)
    left, right = sequence_index + keys[0], element_index + keys[1]
    for group in range(_ROUND_GROUPS):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            left += right
            right = left ^ (right << rotation | right >> 32 - rotation)
        left += keys[(group + 1) % 3]
        right += keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right
