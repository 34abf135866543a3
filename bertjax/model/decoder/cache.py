"""Keys and values of the tokens of sources and targets, and attention to them, token by token."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert_config import BertConfig
from bertjax.model.cpu_layout import multiply_transposed_kernels, transpose_kernels
from bertjax.model.encoder import Dense, Embeddings
from bertjax.model.heads import MaskedLMHead

# A function of cache, tokens [B, K] and their index in the target; returns the logits of the tokens
# after them, float32 [B, K, V], and the cache with these tokens.
Step = Callable[["Cache", Array, Array], tuple[Array, "Cache"]]


class Cache(NamedTuple):
    """Keys and values of each layer.

    Attributes:
      source: arrays whose first axis is that of the sources, B.
      target: arrays whose first axes are those of the sources and of their hypotheses, B and K.
    """

    source: Any
    target: Any


class Memory(NamedTuple):
    """Keys and values that some queries attend to.

    Attributes:
      keys: [B, N, S, D] of the sources, or [B, K, N, G, D] of the hypotheses.
      values: the same.
      mask: bool that broadcasts to [B, K, N, S] or [B, K, N, G], True for those attended to.
    """

    keys: Array
    values: Array
    mask: Array


def source_memory(cache: Cache, layer: int) -> Memory:
    """Return the keys and values of the sources in a layer."""
    mask = cache.source["is_token"][:, None, None]
    return Memory(cache.source["keys"][layer], cache.source["values"][layer], mask)


def extended_memory(
    cache: Cache, layer: int, key: Array, value: Array, slot: Array | int
) -> Memory:
    """Return the keys and values of the hypotheses in a layer, with those of their new tokens.

    Args:
      cache: the cache.
      layer: the layer.
      key: keys of the new tokens, [B, K, N, D].
      value: their values.
      slot: int32 [], number of tokens before them.
    """
    keys = cache.target["keys"][layer].at[:, :, :, slot].set(key)
    values = cache.target["values"][layer].at[:, :, :, slot].set(value)
    return Memory(keys, values, jnp.arange(keys.shape[3]) <= slot)


def empty_target(config: BertConfig, num_sources: int, num_tokens: int) -> dict[str, list[Array]]:
    """Return the target part of the cache of one hypothesis of each source, without tokens."""
    heads, size = config.num_attention_heads, config.hidden_size
    empty = jnp.zeros((num_sources, 1, heads, num_tokens, size // heads), config.dtype)
    layers = range(config.num_hidden_layers)
    return {"keys": [empty for _ in layers], "values": [empty for _ in layers]}


def attend(query: Array, *memories: Memory) -> Array:
    """Return the context [B, K, H] of queries [B, K, N, D] that attend to all memories."""
    query = query * query.shape[-1] ** -0.5
    scores, sizes = [], []
    for memory in memories:
        subscripts = "bknd,bnsd->bkns" if memory.keys.ndim == 4 else "bknd,bknsd->bkns"
        raw = jnp.einsum(subscripts, query, memory.keys, preferred_element_type=jnp.float32)
        scores.append(jnp.where(memory.mask, raw, jnp.finfo(jnp.float32).min))
        sizes.append(raw.shape[-1])
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1)).astype(query.dtype)
    context, start = jnp.zeros_like(query), 0
    for memory, size in zip(memories, sizes, strict=True):
        subscripts = "bkns,bnsd->bknd" if memory.values.ndim == 4 else "bkns,bknsd->bknd"
        context += jnp.einsum(subscripts, weights[..., start : start + size], memory.values)
        start += size
    return context.reshape(*query.shape[:2], -1)


class TokenStack(NamedTuple):
    """Parameters and blocks that compute target tokens.

    Attributes:
      embeddings: parameters of the embeddings.
      blocks: parameters of each block, see `layers_of`.
      head: parameters of the head, see `transpose_kernels`.
      block: function of config, parameters of a block, vectors [B, K, H], cache, layer and slot;
        returns the block's vectors, and the keys and values of the hypotheses with the new tokens.
    """

    embeddings: Any
    blocks: list[Any]
    head: Any
    block: Callable[..., tuple[Array, Memory]]


def decode_tokens(
    config: BertConfig,
    stack: TokenStack,
    cache: Cache,
    tokens: Array,
    types: Array,
    positions: Array,
    slot: Array | int,
) -> tuple[Array, Cache]:
    """Return the logits after a token of each hypothesis, float32 [B, K, V], and its cache.

    Args:
      config: shape of the blocks.
      stack: their parameters.
      cache: the cache.
      tokens: int32 [B, K].
      types: their token types.
      positions: their positions.
      slot: int32 [], tokens of the hypotheses in the cache.
    """
    inputs = tokens, types, positions
    x = apply(Embeddings(config), stack.embeddings, *inputs, deterministic=True)
    memories = []
    for layer, block in enumerate(stack.blocks):
        x, memory = stack.block(config, block, x, cache, layer, slot)
        memories.append(memory)
    target = {"keys": [m.keys for m in memories], "values": [m.values for m in memories]}
    logits = apply(MaskedLMHead(config), stack.head, x, {}, stack.embeddings["word"])
    return logits, cache._replace(target=target)


def layers_of(stacked: Any, num_layers: int) -> list[Any]:
    """Return the parameters of each layer.

    A loop over tokens would copy slices of stacked parameters at each of them, and transposed
    kernels.
    """

    def layer_params(layer: int) -> Any:
        return transpose_kernels(jax.tree.map(lambda leaf: leaf[layer], stacked))

    return [layer_params(layer) for layer in range(num_layers)]


def split_heads(config: BertConfig, x: Array) -> Array:
    """Return [..., H] as [..., N, D]."""
    return x.reshape(*x.shape[:-1], config.num_attention_heads, -1)


def dense(config: BertConfig, params: Any, x: Array) -> Array:
    """Return `Dense` of x [..., n] with these parameters."""
    return apply(Dense(config, params["bias"].shape[-1]), params, x)


def apply(module: nn.Module, params: Any, *arguments: Any, **options: Any) -> Array:
    """Return the result of a module with these parameters."""
    result = multiply_transposed_kernels(
        lambda: module.apply({"params": params}, *arguments, **options)
    )
    return cast(Array, result)
