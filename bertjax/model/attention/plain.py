"""Attention of the whole batch at once, for any device and shape."""

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.attention.mask import MaskKind, visible_keys
from bertjax.model.dropout import dropout


def attention_mask(example_ids: Array, mask_kind: MaskKind = "bidirectional") -> Array:
    """Return the keys that each query attends to, bool [B, T queries, T keys].

    Padding (id 0) attends to padding, so that no softmax divides by zero.

    Args:
      example_ids: int32 [B, T], as in `dispatch.attention`.
      mask_kind: as in `dispatch.attention`.
    """
    ids = example_ids[:, :, None], example_ids[:, None, :]
    positions = jnp.arange(example_ids.shape[1])
    return visible_keys(mask_kind, *ids, lambda: (positions[:, None], positions))


def attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    mask_kind: MaskKind = "bidirectional",
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Compute `bertjax.model.attention.dispatch.attention`."""
    mask = attention_mask(example_ids, mask_kind)
    return masked_attention(query, key, value, mask, dropout_rate, dropout_key)


def masked_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Return the attention of queries [B, M, N, D] to keys and values [B, T, N, D], [B, M, N, D].

    Args:
      query: N heads of size D.
      key: the keys.
      value: the values.
      mask: bool [B, M, T], the keys that each query attends to; all alike if there are none.
      dropout_rate: dropout of the attention probabilities.
      dropout_key: key of the dropout; None for no dropout.
    """
    # Keys before queries, as in the TPU kernel, so that dropout hits the same elements.
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    scores = _scores(key, query * query.shape[-1] ** -0.5)
    mask = mask.swapaxes(1, 2)[:, None]
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=2).astype(value.dtype)
    weights = dropout(weights, dropout_rate, dropout_key)
    return jnp.einsum("bnkq,bnkd->bnqd", weights, value).swapaxes(1, 2)


def recomputed_attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    mask_kind: MaskKind = "bidirectional",
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Compute `attention`, and its weights again in the backward pass instead of keeping them."""

    @jax.checkpoint
    def attend(dropout_key: Array | None, *arrays: Array) -> Array:
        return attention(
            *arrays, mask_kind=mask_kind, dropout_rate=dropout_rate, dropout_key=dropout_key
        )

    return attend(dropout_key, query, key, value, example_ids)


@jax.custom_vjp
def _scores(key: Array, query: Array) -> Array:
    """Return float32 [B, N, T keys, T queries]; rounding would lose small differences."""
    return jnp.einsum("bnkd,bnqd->bnkq", key, query, preferred_element_type=jnp.float32)


def _scores_forward(key: Array, query: Array) -> tuple[Array, tuple[Array, Array]]:
    return _scores(key, query), (key, query)


def _scores_backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    key, query = inputs
    # Rounded as other gradients of products are: products of float32 take twice the time.
    gradient = gradient.astype(key.dtype)
    d_key = jnp.einsum("bnkq,bnqd->bnkd", gradient, query)
    return d_key, jnp.einsum("bnkq,bnkd->bnqd", gradient, key)


_scores.defvjp(_scores_forward, _scores_backward)
