"""Histograms of the values of parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bertjax.mesh.sharding import named_leaves

BINS = 32
_STACKED = "/blocks/"  # in the name of an array that holds all layers


class Histogram(NamedTuple):
    """Counts of values in bins of equal width, from the minimum to the maximum.

    Attributes:
      edges: float32 [BINS + 1].
      counts: int32 [BINS].
    """

    edges: np.ndarray
    counts: np.ndarray


def compute_histograms(params: Any) -> dict[str, Histogram]:
    """Return the histogram of each array, and of each layer of a stacked array, by name.

    All processes call it, and all get the result.
    """
    histograms: dict[str, Histogram] = {}
    sharding = jax.tree.leaves(params)[0].sharding
    replicated = jax.NamedSharding(sharding.mesh, jax.P())
    arrays = jax.jit(_tree_histograms, out_shardings=replicated)(params)
    for name, (edges, counts) in jax.device_get(arrays).items():
        if _STACKED not in name:
            histograms[name] = Histogram(edges, counts)
            continue
        prefix, suffix = name.split(_STACKED)
        for layer in range(len(edges)):
            histogram = Histogram(edges[layer], counts[layer])
            histograms[f"{prefix}{_STACKED}{layer}/{suffix}"] = histogram
    return histograms


def _tree_histograms(params: Any) -> dict[str, tuple[Array, Array]]:
    return {
        name: (jax.vmap(_array_histogram) if _STACKED in name else _array_histogram)(leaf)
        for name, leaf in named_leaves(params)
    }


def _array_histogram(array: Array) -> tuple[Array, Array]:
    low, high = array.min(), array.max()
    edges = jnp.linspace(low, high, BINS + 1, dtype=jnp.float32)
    # One sum per edge: each device sums its shard. Sorting would gather the array.
    below = (array[..., None] < edges[1:-1]).sum(axis=tuple(range(array.ndim)), dtype=jnp.int32)
    return edges, jnp.diff(below, prepend=0, append=array.size)
