"""Pooling of token vectors into one vector per text, and a linear layer after it."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

POOLING_MODES = ("mean", "cls", "max")


def pool(vectors: Array, example_ids: Array, num_examples: int, pooling_mode: str) -> Array:
    """Return pooled vectors float32 [B, K, H], 0 for examples that a sequence does not have.

    Args:
      vectors: [B, T, H].
      example_ids: int32 [B, T].
      num_examples: K.
      pooling_mode: "mean" of all tokens with [CLS] and [SEP], the vector of "cls", or the "max" of
        each component.
    """
    slots = jnp.arange(1, num_examples + 1)
    is_own = example_ids[:, None, :] == slots[:, None]  # [B, K, T]
    exists = jnp.any(is_own, axis=-1, keepdims=True)
    vectors = vectors.astype(jnp.float32)
    if pooling_mode == "cls":
        first = jnp.argmax(is_own, axis=-1)
        pooled = jnp.take_along_axis(vectors, first[..., None], axis=1)
    elif pooling_mode == "mean":
        weights = is_own / jnp.maximum(jnp.sum(is_own, axis=-1, keepdims=True), 1)
        # In full precision: an accelerator's default would round the summands.
        pooled = jnp.einsum("bkt,bth->bkh", weights, vectors, precision=jax.lax.Precision.HIGHEST)
    else:

        def maximum(mask: Array) -> Array:
            return jnp.max(jnp.where(mask[..., None], vectors, -jnp.inf), axis=1)

        pooled = jax.lax.map(maximum, is_own.swapaxes(0, 1)).swapaxes(0, 1)
    return jnp.where(exists, pooled, 0.0)


def init_projection(key: Array, input_size: int, size: int) -> dict[str, Array]:
    """Return random parameters of `project`: kernel float32 [H, D] and bias float32 [D]."""
    kernel = jax.nn.initializers.lecun_normal()(key, (input_size, size))
    return {"kernel": kernel, "bias": jnp.zeros(size)}


def project(vectors: Array, params: Mapping[str, Array]) -> Array:
    """Return pooled vectors [..., H] times a kernel [H, D] plus a bias, float32 [..., D].

    This is Dense of sentence-transformers without an activation function.
    """
    kernel, bias = (params[name].astype(jnp.float32) for name in ("kernel", "bias"))
    # In full precision: an accelerator's default would round the summands.
    return jnp.matmul(vectors, kernel, precision=jax.lax.Precision.HIGHEST) + bias


def l2_normalize(vectors: Array) -> Array:
    """Return vectors scaled to length 1; those of length 0 stay 0, with a gradient of 0."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors / jnp.sqrt(jnp.maximum(squares, 1e-24))
