"""Greedy decoding and sampling."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.decoder.cache import Cache, Step
from bertjax.model.decoder.constraints import allowed_tokens
from bertjax.model.decoder.options import Decoding, DecodingOptions, SourceOptions
from bertjax.model.decoder.search import Generated


class _State(NamedTuple):
    """State of the loop.

    Attributes:
      length: int32 [], number of tokens of an unfinished text.
      cache: keys and values of the tokens but the last.
      generated: the texts so far; `lengths` counts the tokens of finished texts too.
      is_open: bool [B, K], whether a text is unfinished.
    """

    length: Array
    cache: Cache
    generated: Generated
    is_open: Array


def sample(
    first_logits: Array,
    cache: Cache,
    step: Step,
    of_sources: SourceOptions,
    keys: Array,
    decoding: Decoding,
) -> Generated:
    """Return one greedy text of each source, or samples.

    Args:
      first_logits: float32 [B, 1, V], logits of the first token.
      cache: cache of one hypothesis of each source.
      step: computes further tokens.
      of_sources: options of each source.
      keys: random keys [B, R], one for each sample; greedy decoding ignores them.
      decoding: constants of the program; G is `max_new_tokens`.
    """
    options = decoding.options
    num_texts, max_length = options.num_return_sequences, options.max_new_tokens
    limits = of_sources.limits[:, None]
    batch_size, _, size = first_logits.shape

    def extend(state: _State, logits: Array) -> _State:
        texts, index = state.generated, state.length
        allowed = allowed_tokens(decoding, of_sources.min_new_tokens, texts.tokens, index, size)
        logits = jnp.where(jnp.arange(size) < decoding.num_tokens, logits, -jnp.inf)
        log_probs = jax.nn.log_softmax(logits)
        masked = jnp.where(allowed, logits, -jnp.inf)
        if options.do_sample:
            masked = truncate(masked / of_sources.temperature[:, None, None], of_sources, options)
            step_keys = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, index)))(keys)
            ids = jax.vmap(jax.vmap(jax.random.categorical))(step_keys, masked)
        else:
            ids = jnp.argmax(masked, axis=-1)
        ids = ids.astype(jnp.int32)
        score = jnp.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]
        generated = Generated(
            texts.tokens.at[:, :, index].set(jnp.where(state.is_open, ids, 0)),
            texts.lengths + state.is_open,
            texts.scores + jnp.where(state.is_open, score, 0),
        )
        is_open = state.is_open & (ids != decoding.sep_id) & (index + 1 < limits)
        return state._replace(length=index + 1, generated=generated, is_open=is_open)

    def sampling_step(state: _State) -> _State:
        tokens, index = state.generated.tokens, state.length
        last = jax.lax.dynamic_index_in_dim(tokens, index - 1, 2, keepdims=False)
        logits, cache = step(state.cache, last, index - 1)
        return extend(state._replace(cache=cache), logits)

    def continues(state: _State) -> Array:
        return (state.length < max_length) & jnp.any(state.is_open)

    shape = batch_size, num_texts
    empty = Generated(
        jnp.zeros((*shape, max_length), jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    )
    target = jax.tree.map(lambda x: jnp.repeat(x, num_texts, axis=1), cache.target)
    state = _State(jnp.int32(0), cache._replace(target=target), empty, jnp.ones(shape, bool))
    state = extend(state, jnp.broadcast_to(first_logits, (*shape, size)))
    return jax.lax.while_loop(continues, sampling_step, state).generated


def truncate(logits: Array, of_sources: SourceOptions, options: DecodingOptions) -> Array:
    """Return logits [B, R, V] with -inf for the tokens that top-k and nucleus sampling exclude.

    Nucleus sampling keeps the fewest most probable tokens whose probabilities reach top_p (Holtzman
    et al. 2020).

    Args:
      logits: logits over the temperature.
      of_sources: options of each source.
      options: those of the program.
    """
    if options.top_k:
        highest = jax.lax.top_k(logits, min(options.top_k, logits.shape[-1]))[0]
        last = jnp.minimum(of_sources.top_k, highest.shape[-1])[:, None, None] - 1
        lowest = jnp.take_along_axis(highest, last, axis=-1)
        logits = jnp.where(logits >= lowest, logits, -jnp.inf)
    if options.top_p < 1:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ordered)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        is_kept = before < of_sources.top_p[:, None, None]
        lowest = jnp.min(jnp.where(is_kept, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits >= lowest, logits, -jnp.inf)
    return logits
