"""Generation of targets from a batch of sources."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert_config import BertConfig
from bertjax.model.decoder import cross_decoding, self_attention
from bertjax.model.decoder.options import Decoding, SourceOptions
from bertjax.model.decoder.sampling import sample
from bertjax.model.decoder.search import beam_search


def generate(
    config: BertConfig, params: Any, batch: Mapping[str, Array], decoding: Decoding
) -> dict[str, Array]:
    """Return the targets: `target_ids` [B, R, G], `target_lengths` and `target_scores` [B, R].

    They are the tokens, lengths and scores of `bertjax.model.decoder.search.Generated`.

    Args:
      config: shape of the encoder.
      params: parameters of the model.
      batch: packed sources as a model reads them, [R, T], with a prediction slot at the last token
        of each, and arrays of B sources. `source_tokens` int32 [B, S]: where in the flattened
        [R, T] the tokens of each source are. `source_lengths` int32 [B]: how many it has.
        `source_slots` int32 [B]: where in the flattened prediction slots its last token is.
        `source_digests` uint32 [B]: a digest of it and of the seed, on which samples depend.
        `source_NAME` [B] for each field of `SourceOptions`.
      decoding: constants of the program.
    """
    options = decoding.options
    start = (cross_decoding if config.has_cross_attention else self_attention).start
    logits, cache, step = start(config, params, batch, decoding)
    of_sources = SourceOptions(*(batch[f"source_{name}"] for name in SourceOptions._fields))
    inputs = logits, cache, step, of_sources
    if options.num_beams > 1:
        generated = beam_search(*inputs, decoding)
    else:
        generated = sample(*inputs, _sample_keys(batch["source_digests"], decoding), decoding)
    return {
        "target_ids": generated.tokens,
        "target_lengths": generated.lengths,
        "target_scores": generated.scores,
    }


def _sample_keys(digests: Array, decoding: Decoding) -> Array:
    """Return a random key for each sample of each source, [B, R]."""
    key = jax.random.key(0)  # the digests depend on the seed, so that all seeds share a program
    numbers = jnp.arange(decoding.options.num_return_sequences)
    of_number = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(lambda digest: of_number(jax.random.fold_in(key, digest), numbers))(digests)
