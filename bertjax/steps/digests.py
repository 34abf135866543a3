"""Digests of arrays on their devices."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def digest(tree: Any) -> Array:
    """Return a digest of the bits of a tree's arrays, uint32 []; any flipped bit changes it.

    Sums of integers do not depend on their order.
    """
    total = jnp.zeros((), jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
        positions = jnp.arange(math.prod(leaf.shape), dtype=jnp.uint32).reshape(leaf.shape)
        # Odd factors: no power of 2 is lost modulo 2^32. Knuth's, for positions and arrays.
        factors = ((positions + jnp.uint32(97 * number)) * jnp.uint32(2654435761)) | jnp.uint32(1)
        total += jnp.sum(bits.astype(jnp.uint32) * factors, dtype=jnp.uint32)
    return total
