"""Constraints on the next token of a target."""

import jax.numpy as jnp
from jax import Array

from bertjax.model.decoder.options import Decoding

LOWEST = -1e9  # log-probability of what cannot happen; finite, so that sums of it compare


def allowed_tokens(
    decoding: Decoding, min_new_tokens: Array, tokens: Array, index: Array, size: int
) -> Array:
    """Return the tokens that may come next.

    Args:
      decoding: constants of the program.
      min_new_tokens: minimal tokens of a target without its [SEP], int32 [B].
      tokens: target tokens so far, int32 [B, K, G]; those from `index` on are ignored.
      index: int32 [], index of the next token.
      size: size V of the logits.

    Returns:
      bool, of a shape that broadcasts to [B, K, V].
    """
    ids, options = jnp.arange(size), decoding.options
    allowed = (ids < decoding.num_tokens)[None, None]
    if options.min_new_tokens:
        allowed &= (ids != decoding.sep_id) | (index >= min_new_tokens[:, None, None])
    if n := options.no_repeat_ngram_size:
        allowed = allowed & ~_ends_of_known_ngrams(n, tokens, index, size)
    return allowed


def _ends_of_known_ngrams(n: int, tokens: Array, index: Array, size: int) -> Array:
    """Return the tokens [B, K, V] with which the next token would repeat an n-gram."""
    length = tokens.shape[-1]
    if n > length:
        return jnp.zeros((1, 1, 1), bool)
    # The last n - 1 tokens, and the n - 1 tokens before each token that an n-gram may end with.
    ends = jnp.arange(n - 1, length)
    is_match = (ends < index) & jnp.ones((*tokens.shape[:2], 1), bool)
    for back in range(1, n):
        last = jnp.take(tokens, jnp.maximum(index - back, 0), axis=-1)
        is_match &= tokens[..., n - 1 - back : length - back] == last[..., None]
    is_match &= index >= n - 1
    is_end = jnp.zeros((*tokens.shape[:2], size), jnp.int32)
    batch, beam = (jnp.arange(count) for count in tokens.shape[:2])
    is_end = is_end.at[batch[:, None, None], beam[:, None], tokens[..., n - 1 :]].max(
        is_match.astype(jnp.int32)
    )
    return is_end > 0
