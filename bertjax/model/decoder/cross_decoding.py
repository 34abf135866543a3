"""Incremental decoding with `bertjax.model.decoder.cross_attention`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

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
from bertjax.model.decoder.cross_attention import source_inputs
from bertjax.model.decoder.options import Decoding
from bertjax.model.encoder import ENCODER_INPUTS, Encoder, FeedForward, LayerNorm


def start(
    config: BertConfig, params: Any, batch: Mapping[str, Array], decoding: Decoding
) -> tuple[Array, Cache, Step]:
    """Compute the sources; see `bertjax.model.decoder.generation.generate`.

    Args:
      config: shape of encoder and decoder.
      params: parameters of the encoder, the decoder and the masked LM head.
      batch: the batch.
      decoding: constants of the program; the cache has space for `max_new_tokens`.

    Returns:
      Logits of the first target token of each source, float32 [B, 1, V]; the cache of one
      hypothesis of each source; and the function that computes further tokens.
    """
    inputs = source_inputs(*(batch[name] for name in ENCODER_INPUTS))
    vectors = apply(Encoder(config), params["encoder"], *inputs, deterministic=True)
    where = batch["source_tokens"]
    vectors = vectors.reshape(-1, config.hidden_size)[where]
    # As in `Decoder`.
    config = dataclasses.replace(config, direction="left_to_right", decoder="")
    blocks = layers_of(params["decoder"]["blocks"], config.num_hidden_layers)
    head = transpose_kernels(params["mlm"])
    stack = TokenStack(params["decoder"]["embeddings"], blocks, head, _block)

    def project(name: str) -> list[Array]:
        """Return the keys or values of the sources in each layer, [B, N, S, D]."""
        arrays = (dense(config, block["cross_attention"][name], vectors) for block in blocks)
        return [split_heads(config, x).swapaxes(1, 2) for x in arrays]

    is_source = jnp.arange(where.shape[1]) < batch["source_lengths"][:, None]
    source = {"keys": project("key"), "values": project("value"), "is_token": is_source}

    def decode(cache: Cache, tokens: Array, slot: Array | int) -> tuple[Array, Cache]:
        """Return the logits after tokens [B, K] that follow `slot` others, and their cache."""
        positions = jnp.full_like(tokens, slot)
        types = jnp.zeros_like(tokens)
        return decode_tokens(config, stack, cache, tokens, types, positions, slot)

    def step(cache: Cache, tokens: Array, index: Array) -> tuple[Array, Cache]:
        return decode(cache, tokens, index + 1)

    target = empty_target(config, len(where), decoding.options.max_new_tokens)
    start_tokens = batch["input_ids"].reshape(-1)[where[:, :1]]  # [CLS] of each source
    logits, cache = decode(Cache(source, target), start_tokens, 0)
    return logits, cache, step


def _block(
    config: BertConfig, params: Any, x: Array, cache: Cache, layer: int, slot: Array | int
) -> tuple[Array, Memory]:
    """Compute `DecoderBlock` for one token of each hypothesis.

    Args:
      config: shape of the decoder.
      params: parameters of the block.
      x: vectors of the tokens, [B, K, H].
      cache: the cache.
      layer: number of the block.
      slot: int32 [], tokens before them.

    Returns:
      The block's vectors, and keys and values of the hypotheses with the new tokens.
    """
    attention, cross = params["attention"], params["cross_attention"]
    query, key, value = (
        split_heads(config, dense(config, attention[name], x)) for name in ("query", "key", "value")
    )
    memory = extended_memory(cache, layer, key, value, slot)
    update = dense(config, attention["output"], attend(query, memory))
    x = apply(LayerNorm(config), params["attention_norm"], x + update)
    query = split_heads(config, dense(config, cross["query"], x))
    update = dense(config, cross["output"], attend(query, source_memory(cache, layer)))
    x = apply(LayerNorm(config), params["cross_attention_norm"], x + update)
    update = apply(FeedForward(config), params["feed_forward"], x)
    return apply(LayerNorm(config), params["feed_forward_norm"], x + update), memory
