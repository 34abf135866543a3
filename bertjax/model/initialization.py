"""What parameters begin as.

Masked language models linger for long before they learn who stands beside whom, and hardly use
their attention until then. With `neighbours` they begin with it, in the spirit of the convolutional
initialization of d'Ascoli et al. (2021): positions are waves, and each head looks a few pieces to
one side. All of it learns as other parameters do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Initializer = Callable[..., Array]  # of a key, a shape and a dtype, as flax takes it

ATTENTION_INITS = ("normal", "neighbours")
_SHORTEST_WAVELENGTH = 4  # pieces of the shortest wave


def normal(std: float) -> Initializer:
    """A normal of standard deviation `std` cut at two deviations, as the original draws it.

    The deviation is that of the uncut normal; what is drawn has 0.88 of it.
    """
    return jax.nn.initializers.truncated_normal(std)


def sinusoids(std: float) -> Initializer:
    """Vectors of positions [P, H]: sines, then cosines, of deviation `std`.

    Wavelengths go geometrically from 4 pieces to twice as many as there are positions.
    """

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        count, size = shape
        angles = np.arange(count)[:, None] * _frequencies(count, size // 2)
        table = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, size % 2))], 1)
        return jnp.asarray(2**0.5 * std * table, dtype)

    return init


def neighbours(std: float, heads: int, positions: int, query: bool) -> Initializer:
    """Matrices [H, H] of queries, or of keys unless `query`, besides the usual random numbers.

    The score of two pieces in head h is the greater the nearer the one is to the place -1, 1,
    -2, 2, ... of the other, counted from it: queries are the waves of that place, by the sums of
    angles, and keys those of the piece's own.
    """

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        size = shape[0]
        width, count = size // heads, size // 2
        table = np.zeros((size, heads, width))
        # Of the shorter half or more of the waves, each head has some of every length.
        stride = max(1, heads // 2)
        for head in range(heads):
            own = np.arange(head % stride, count, stride)[: width // 2]
            offset = (head // 2 + 1) * (1 if head % 2 else -1)
            turn = _frequencies(positions, count)[own] * offset * query
            sine, cosine = np.arange(len(own)), width // 2 + np.arange(len(own))
            table[own, head, sine] = table[count + own, head, cosine] = np.cos(turn)
            table[count + own, head, sine] = np.sin(turn)
            table[own, head, cosine] = -np.sin(turn)
        return normal(std)(key, shape, dtype) + jnp.asarray(table.reshape(shape), dtype)

    return init


def _frequencies(positions: int, count: int) -> np.ndarray:
    """Of so many waves, in radians a piece, falling."""
    longest = 2 * positions
    return (
        2
        * np.pi
        / _SHORTEST_WAVELENGTH
        * (_SHORTEST_WAVELENGTH / longest) ** (np.arange(count) / max(count - 1, 1))
    )


def merge_pretrained(random: Any, given: Any, reinit_layers: int) -> Any:
    """Random parameters with those that are given in their place, but for the highest layers.

    Args:
      reinit_layers: how many of these stay random.
    """
    merged = dict(random) | dict(given)
    if reinit_layers and "encoder" in given:
        blocks = jax.tree.map(
            lambda ours, theirs: jnp.concatenate([theirs[:-reinit_layers], ours[-reinit_layers:]]),
            random["encoder"]["blocks"],
            given["encoder"]["blocks"],
        )
        merged["encoder"] = {**given["encoder"], "blocks": blocks}
    return merged
