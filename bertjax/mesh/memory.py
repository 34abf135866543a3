"""Memory of devices: what arrays and programs take of it."""

import math
from typing import Any

import jax

GIB = 2**30


def shard_bytes(tree: Any) -> int:
    """Bytes of a tree of shapes with shardings on the device that holds most of it."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def size(number: float) -> str:
    """Bytes for a person."""
    return f"{number / GIB:,.2f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.1f} MiB"
