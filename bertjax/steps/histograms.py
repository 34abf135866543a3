"""How the values of parameters are spread."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bertjax.mesh.sharding import named_leaves

BINS = 32
_STACKED = "/blocks/"  # in the name of an array that holds those of all layers


class Histogram(NamedTuple):
    """Values in bins of one width, from the least to the greatest.

    Attributes:
      edges: float32 [BINS + 1].
      counts: int32 [BINS].
    """

    edges: np.ndarray
    counts: np.ndarray


def compute_histograms(params: Any) -> dict[str, Histogram]:
    """That of each array of a tree by its name, and by that of its layer where it holds all.

    To be called on all hosts, which each have all of it then.
    """
    found: dict[str, Histogram] = {}
    sharding = jax.tree.leaves(params)[0].sharding
    whole = jax.NamedSharding(sharding.mesh, jax.P())
    computed = jax.jit(_tree_histograms, out_shardings=whole)(params)
    for name, (edges, counts) in jax.device_get(computed).items():
        if _STACKED not in name:
            found[name] = Histogram(edges, counts)
            continue
        before, after = name.split(_STACKED)
        for layer in range(len(edges)):
            own = Histogram(edges[layer], counts[layer])
            found[f"{before}{_STACKED}{layer}/{after}"] = own
    return found


def _tree_histograms(params: Any) -> dict[str, tuple[Array, Array]]:
    return {
        name: (jax.vmap(_array_histogram) if _STACKED in name else _array_histogram)(leaf)
        for name, leaf in named_leaves(params)
    }


def _array_histogram(array: Array) -> tuple[Array, Array]:
    low, high = array.min(), array.max()
    edges = jnp.linspace(low, high, BINS + 1, dtype=jnp.float32)
    # A sum for each edge, which stays on the device that holds a part, where sorting would not.
    below = (array[..., None] < edges[1:-1]).sum(axis=tuple(range(array.ndim)), dtype=jnp.int32)
    return edges, jnp.diff(below, prepend=0, append=array.size)
