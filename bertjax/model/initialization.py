"""Initial values of parameters.

Masked language models learn slowly to attend to nearby tokens and hardly use their attention until
then. `local_attention_init` starts with such attention, in the spirit of the convolutional
initialization of d'Ascoli et al. (2021). Position embeddings are waves, and each head attends to
tokens a few positions away. All of these parameters are trained like the others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data_pipelines.errors import InputError

Initializer = Callable[..., Array]  # of a key, a shape and a dtype, as in Flax

ATTENTION_INITS = ("normal", "local")
POSITION_INITS = ("copy", "interpolate")
_SHORTEST_WAVELENGTH = 4  # tokens


def truncated_normal(std: float) -> Initializer:
    """Return the initializer of google-research/bert, a normal truncated at two deviations.

    `std` is the standard deviation of the whole normal; the truncated one has 0.88 of it.
    """
    return jax.nn.initializers.truncated_normal(std)


def sinusoids(std: float) -> Initializer:
    """Return an initializer of position embeddings [P, H]: sines, then cosines, of deviation `std`.

    Wavelengths grow geometrically from 4 tokens to twice the number of positions.
    """

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        num_positions, size = shape
        angles = np.arange(num_positions)[:, None] * _frequencies(num_positions, size // 2)
        padding = np.zeros((num_positions, size % 2))
        table = np.concatenate([np.sin(angles), np.cos(angles), padding], 1)
        return jnp.asarray(2**0.5 * std * table, dtype)

    return init


def local_attention_init(
    std: float, num_heads: int, num_positions: int, query: bool, is_reverse: bool = False
) -> Initializer:
    """Return an initializer of the matrices [H, H] of queries, or of keys unless `query`.

    Head h scores a key higher, the nearer it is to an offset of -1, 1, -2, 2, ... from the query,
    or of 1, -1, 2, -2, ... in an encoder that reads in reverse, from right to left. The queries are
    waves at the offset position, by the angle addition formulas. The keys are waves at their own
    position. `truncated_normal(std)` is added to both.
    """

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        size = shape[0]
        head_size, num_waves = size // num_heads, size // 2
        table = np.zeros((size, num_heads, head_size))
        # Each head gets waves of all lengths, every `stride`-th of the list.
        stride = max(1, num_heads // 2)
        for head in range(num_heads):
            waves = np.arange(head % stride, num_waves, stride)[: head_size // 2]
            offset = (head // 2 + 1) * (1 if head % 2 != is_reverse else -1)
            angle = _frequencies(num_positions, num_waves)[waves] * offset * query
            sine, cosine = np.arange(len(waves)), head_size // 2 + np.arange(len(waves))
            table[waves, head, sine] = table[num_waves + waves, head, cosine] = np.cos(angle)
            table[num_waves + waves, head, sine] = np.sin(angle)
            table[waves, head, cosine] = -np.sin(angle)
        return truncated_normal(std)(key, shape, dtype) + jnp.asarray(table.reshape(shape), dtype)

    return init


def _frequencies(num_positions: int, num_waves: int) -> np.ndarray:
    """Return the waves' frequencies in radians per token, highest first."""
    ratio = _SHORTEST_WAVELENGTH / (2 * num_positions)
    exponents = np.arange(num_waves) / max(num_waves - 1, 1)
    return 2 * np.pi / _SHORTEST_WAVELENGTH * ratio**exponents


def check_extension(name: str, count: int, num_positions: int, method: str) -> None:
    """Check that `extend_positions` can extend the positions of a model.

    Args:
      name: name of the model in the error.
      count: its positions.
      num_positions: those of the new model.
      method: see `extend_positions`; "" for none.

    Raises:
      InputError: the new model has fewer, or has more without a method.
    """
    problem = f"model.max_position_embeddings={num_positions}: {name} has {count}."
    if num_positions < count:
        raise InputError(f"{problem} Use at least {count}.")
    if num_positions > count and not method:
        choices = " or ".join(POSITION_INITS)
        raise InputError(f"{problem} Set init_positions={choices}, or remove the field.")


def extend_positions(table: np.ndarray, num_positions: int, method: str) -> np.ndarray:
    """Return position embeddings [num_positions, H] from those of fewer positions [P, H].

    Args:
      table: embeddings of the positions 0 to P - 1.
      num_positions: at least P.
      method: one of `POSITION_INITS`. "copy" repeats the table (Beltagy et al. 2020, Longformer,
        section 5): texts up to P tokens have the same vectors as before. "interpolate" is linear
        and keeps the ends: row i is that at i (P - 1) / (num_positions - 1), so that all distances
        shrink.
    """
    if method == "copy":
        return table[np.arange(num_positions) % len(table)]
    places = np.linspace(0, len(table) - 1, num_positions)
    below = np.minimum(places.astype(np.int64), max(len(table) - 2, 0))
    above = np.minimum(below + 1, len(table) - 1)
    weights = (places - below)[:, None]
    return ((1 - weights) * table[below] + weights * table[above]).astype(table.dtype)


def merge_pretrained(random_params: Any, pretrained_params: Any, reinit_layers: int) -> Any:
    """Return the pretrained parameters, with random ones for modules that they lack.

    A decoder that they lack is initialized from the encoder; its cross-attention is random.

    Args:
      random_params: parameters of the whole model.
      pretrained_params: parameters of some of its modules.
      reinit_layers: number of the highest blocks that stay random.
    """
    pretrained_params = dict(pretrained_params)
    if "decoder" in random_params and "encoder" in pretrained_params:
        random, encoder = random_params["decoder"], pretrained_params["encoder"]
        decoder = {**encoder, "blocks": {**random["blocks"], **encoder["blocks"]}}
        pretrained_params.setdefault("decoder", decoder)
    merged = dict(random_params) | pretrained_params
    for part in ("encoder", "decoder") if reinit_layers else ():
        if part in pretrained_params:
            merged[part] = jax.tree_util.tree_map_with_path(
                lambda path, random, pretrained: (
                    jnp.concatenate([pretrained[:-reinit_layers], random[-reinit_layers:]])
                    if any(key.key == "blocks" for key in path)
                    else pretrained
                ),
                random_params[part],
                pretrained_params[part],
            )
    return merged
