"""Incremental decoding with the encoder's own attention, for `decoder=prefix` and left to right.

Target tokens are tokens of the encoder. The first pass over the sources is the model's own, packed.
Then each step computes one token of each hypothesis. With `decoder=masked_prefix` it computes two,
the last token and a [MASK] after it, at which the next token is predicted.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.cpu_layout import transpose_kernels
from bertjax.model.decoder.cache import (
    Cache,
    Memory,
    Step,
    TokenStack,
    apply,
    attend,
    decode_tokens,
    dense,
    empty_target,
    extended_memory,
    layers_of,
    source_memory,
    split_heads,
)
from bertjax.model.decoder.options import Decoding
from bertjax.model.encoder import FeedForward, LayerNorm


def start(
    config: BertConfig, params: Any, batch: Mapping[str, Array], decoding: Decoding
) -> tuple[Array, Cache, Step]:
    """Compute the sources; see `bertjax.model.decoder.generation.generate`.

    Args:
      config: shape of an encoder whose mask is prefix or left_to_right.
      params: parameters of the encoder and the masked LM head.
      batch: the batch.
      decoding: constants of the program; the cache has space for `max_new_tokens`.

    Returns:
      Logits of the first target token of each source, float32 [B, 1, V]; the cache of one
      hypothesis of each source; and the function that computes further tokens.
    """
    layers = range(config.num_hidden_layers)
    model, variables = BertWithHeads(config, ("mlm",)), {"params": params}
    outputs: Any = model.apply(variables, batch, deterministic=True, hidden_layers=layers)
    logits = outputs["mlm_logits"]
    first_logits = logits.reshape(-1, logits.shape[-1])[batch["source_slots"]][:, None]
    blocks = layers_of(params["encoder"]["blocks"], config.num_hidden_layers)
    head = transpose_kernels(params["mlm"])
    stack = TokenStack(params["encoder"]["embeddings"], blocks, head, _block)
    where = batch["source_tokens"]

    def project(name: str) -> list[Array]:
        """Return the keys or values of the sources in each layer, [B, N, S, D]."""
        arrays = []
        for block, x in zip(blocks, outputs["hidden_states"], strict=True):
            x = dense(config, block["attention"][name], x)
            x = x.reshape(-1, config.hidden_size)[where]
            arrays.append(split_heads(config, x).swapaxes(1, 2))
        return arrays

    is_source = jnp.arange(where.shape[1]) < batch["source_lengths"][:, None]
    source = {"keys": project("key"), "values": project("value"), "is_token": is_source}

    def step(cache: Cache, tokens: Array, index: Array | int) -> tuple[Array, Cache]:
        positions = jnp.broadcast_to((batch["source_lengths"] + index)[:, None], tokens.shape)
        # Hypotheses of long sources, complete by then, leave the table.
        positions = jnp.minimum(positions, config.max_position_embeddings - 1)
        types = jnp.full_like(tokens, int(config.mask_kind == "prefix"))
        return decode_tokens(config, stack, cache, tokens, types, positions, index)

    def masked_step(cache: Cache, tokens: Array, index: Array) -> tuple[Array, Cache]:
        _, cache = step(cache, tokens, index)
        # The token that replaces the [MASK] overwrites its keys and values in the next step.
        return step(cache, jnp.full_like(tokens, decoding.mask_id), index + 1)

    cache = Cache(source, empty_target(config, len(where), decoding.options.max_new_tokens))
    if not config.predicts_masks:
        return first_logits, cache, step
    masks = jnp.full((len(where), 1), decoding.mask_id, jnp.int32)
    return *step(cache, masks, 0), masked_step


def _block(
    config: BertConfig, params: Any, x: Array, cache: Cache, layer: int, index: Array
) -> tuple[Array, Memory]:
    """Compute `bertjax.model.encoder.Block` for one token of each hypothesis.

    Args:
      config: shape of the encoder.
      params: parameters of the block.
      x: vectors of the tokens, [B, K, H].
      cache: the cache.
      layer: number of the block.
      index: int32 [], index of the tokens in the target.

    Returns:
      The block's vectors, and keys and values of the hypotheses with the new tokens.
    """
    attention = params["attention"]
    query, key, value = (
        split_heads(config, dense(config, attention[name], x)) for name in ("query", "key", "value")
    )
    memory = extended_memory(cache, layer, key, value, index)
    context = attend(query, source_memory(cache, layer), memory)
    update = dense(config, attention["output"], context)
    x = apply(LayerNorm(config), params["attention_norm"], x + update)
    update = apply(FeedForward(config), params["feed_forward"], x)
    return apply(LayerNorm(config), params["feed_forward_norm"], x + update), memory
