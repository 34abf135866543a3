"""One vector for each text of a row, from those of its pieces."""

import jax
import jax.numpy as jnp
from jax import Array

POOLING_MODES = ("mean", "cls", "max")


def pool(vectors: Array, example_ids: Array, num_examples: int, pooling_mode: str) -> Array:
    """float32 [B, K, H] from vectors [B, T, H] and int32 [B, T].

    Args:
      count: texts of a row, K; one that a row has not gets 0.
      how: "mean" of all pieces, [CLS] and [SEP] among them, the vector of "cls", or the "max" of
        each component.
    """
    slots = jnp.arange(1, num_examples + 1)
    own = example_ids[:, None, :] == slots[:, None]  # [B, K, T]
    there = jnp.any(own, axis=-1, keepdims=True)
    vectors = vectors.astype(jnp.float32)
    if pooling_mode == "cls":
        first = jnp.argmax(own, axis=-1)
        found = jnp.take_along_axis(vectors, first[..., None], axis=1)
    elif pooling_mode == "mean":
        share = own / jnp.maximum(jnp.sum(own, axis=-1, keepdims=True), 1)
        # In full precision: an accelerator's default would round what is added up.
        found = jnp.einsum("bkt,bth->bkh", share, vectors, precision=jax.lax.Precision.HIGHEST)
    else:

        def largest(mine: Array) -> Array:
            return jnp.max(jnp.where(mine[..., None], vectors, -jnp.inf), axis=1)

        found = jax.lax.map(largest, own.swapaxes(0, 1)).swapaxes(0, 1)
    return jnp.where(there, found, 0.0)


def normalize(vectors: Array) -> Array:
    """Vectors of length 1, but for those of length 0."""
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
