"""Beam search, as in `transformers`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.decoder.cache import Cache, Step
from bertjax.model.decoder.constraints import LOWEST, allowed_tokens
from bertjax.model.decoder.options import Decoding, SourceOptions


class Generated(NamedTuple):
    """Generated targets of B sources, R for each, best first.

    Attributes:
      tokens: int32 [B, R, G], zero after the end.
      lengths: int32 [B, R], number of tokens, with a last [SEP].
      scores: float32 [B, R], log-probability, in a beam search over the length to the power of
        `length_penalty`; `LOWEST` of a hypothesis without tokens, which was not found.
    """

    tokens: Array
    lengths: Array
    scores: Array


class _Beams(NamedTuple):
    """State of the search; open hypotheses have K rows, complete ones too.

    Attributes:
      length: int32 [], number of tokens of an open hypothesis.
      cache: keys and values of their tokens but the last.
      tokens: int32 [B, K, G], those of the open hypotheses.
      scores: float32 [B, K], their log-probabilities, descending.
      complete: complete hypotheses, scores descending; those not found yet have score -inf.
      improves: bool [B, 1], whether an open hypothesis may still improve the complete ones.
    """

    length: Array
    cache: Cache
    tokens: Array
    scores: Array
    complete: Generated
    improves: Array


def beam_search(
    first_logits: Array,
    cache: Cache,
    step: Step,
    of_sources: SourceOptions,
    decoding: Decoding,
) -> Generated:
    """Return the best complete hypotheses of each source.

    At each step the 2K best continuations of the K open hypotheses are candidates: at most K of
    them end, so that K remain open. Those that end among the best K are complete.

    Args:
      first_logits: float32 [B, 1, V], logits of the first token.
      cache: cache of one hypothesis of each source.
      step: computes further tokens.
      of_sources: options of each source.
      decoding: constants of the program; G is `max_new_tokens`.
    """
    options, limits = decoding.options, of_sources.limits
    num_beams, max_length = options.num_beams, options.max_new_tokens
    batch_size, _, size = first_logits.shape

    def normalize(scores: Array, count: Array) -> Array:
        # Above -inf, by which a hypothesis is not found.
        lengths = count.astype(jnp.float32)
        return jnp.maximum(scores / lengths ** of_sources.length_penalty[:, None], -1e37)

    def extend(beams: _Beams, logits: Array) -> tuple[_Beams, Array]:
        """Return the hypotheses with another token, and which beams they continue."""
        minimum = of_sources.min_new_tokens
        allowed = allowed_tokens(decoding, minimum, beams.tokens, beams.length, size)
        is_token = jnp.arange(size) < decoding.num_tokens
        log_probs = jax.nn.log_softmax(jnp.where(is_token, logits, -jnp.inf))
        log_probs = jnp.where(allowed, log_probs, LOWEST)
        totals = (beams.scores[:, :, None] + log_probs).reshape(batch_size, -1)
        scores, choices = jax.lax.top_k(totals, 2 * num_beams)
        parents, ids = choices // size, choices % size
        count = beams.length + 1
        tokens = select(beams.tokens, parents).at[:, :, beams.length].set(ids)
        ends = (ids == decoding.sep_id) | (count >= limits[:, None])
        open_scores, order = jax.lax.top_k(scores + ends * LOWEST, num_beams)

        is_full = jnp.all(beams.complete.lengths > 0, axis=1, keepdims=True)
        is_new = ends & (jnp.arange(2 * num_beams) < num_beams) & beams.improves
        if options.early_stopping is True:
            is_new &= ~is_full
        found = Generated(
            tokens,
            jnp.where(is_new, count, 0),
            jnp.where(is_new, normalize(scores, count), -jnp.inf),
        )
        merged = jax.tree.map(lambda *pair: jnp.concatenate(pair, 1), beams.complete, found)
        best = jax.lax.top_k(merged.scores, num_beams)[1]
        complete = jax.tree.map(lambda x: select(x, best), merged)

        is_open = open_scores[:, :1] > LOWEST / 2
        longest = limits[:, None] if options.early_stopping == "never" else count
        if options.length_penalty <= 0:
            longest = count
        hope = normalize(open_scores[:, :1], jnp.broadcast_to(longest, (batch_size, 1)))
        is_full = jnp.all(complete.lengths > 0, axis=1, keepdims=True)
        worst = jnp.where(is_full, complete.scores[:, -1:], -jnp.inf)
        improves = beams.improves & is_open & (hope > worst)
        if options.early_stopping is True:
            improves &= ~is_full
        extended = _Beams(
            count, beams.cache, select(tokens, order), open_scores, complete, improves
        )
        return extended, select(parents, order)

    def search_step(beams: _Beams) -> _Beams:
        last = jax.lax.dynamic_index_in_dim(beams.tokens, beams.length - 1, 2, keepdims=False)
        logits, cache = step(beams.cache, last, beams.length - 1)
        beams, parents = extend(beams._replace(cache=cache), logits)
        target = jax.tree.map(lambda x: select(x, parents), beams.cache.target)
        return beams._replace(cache=beams.cache._replace(target=target))

    def continues(beams: _Beams) -> Array:
        return (beams.length < max_length) & jnp.any(beams.improves)

    tokens = jnp.zeros((batch_size, num_beams, max_length), jnp.int32)
    empty = Generated(
        tokens,
        jnp.zeros((batch_size, num_beams), jnp.int32),
        jnp.full((batch_size, num_beams), -jnp.inf),
    )
    # One hypothesis for now: its copies would yield the same candidates.
    scores = jnp.where(jnp.arange(num_beams) == 0, 0.0, LOWEST) * jnp.ones((batch_size, 1))
    beams = _Beams(jnp.int32(0), cache, tokens, scores, empty, jnp.ones((batch_size, 1), bool))
    logits = jnp.broadcast_to(first_logits, (batch_size, num_beams, size))
    beams, _ = extend(beams, logits)
    target = jax.tree.map(lambda x: jnp.repeat(x, num_beams, axis=1), cache.target)
    beams = beams._replace(cache=cache._replace(target=target))
    complete = jax.lax.while_loop(continues, search_step, beams).complete
    best = jax.tree.map(lambda x: x[:, : options.num_return_sequences], complete)
    is_token = jnp.arange(max_length) < best.lengths[..., None]
    scores = jnp.where(best.lengths > 0, best.scores, LOWEST)
    return best._replace(tokens=jnp.where(is_token, best.tokens, 0), scores=scores)


def select(x: Array, beams: Array) -> Array:
    """Return the rows `beams` int32 [B, N] of x [B, K, ...], [B, N, ...]."""
    index = beams.reshape(*beams.shape, *[1] * (x.ndim - 2))
    result: Any = jnp.take_along_axis(x, index, axis=1)
    return result
