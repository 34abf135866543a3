"""Incremental decoding with the encoder's own attention: keys and values of each token are cached.

It serves the decoders whose target tokens are tokens of the encoder: `decoder=prefix` and `causal`.
The first pass over the sources is the model's own, packed. Then each step computes one token of
each hypothesis.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Dense, Embeddings, FeedForward, LayerNorm
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


def start(
    config: BertConfig, params: Any, batch: Mapping[str, Array], num_tokens: int
) -> tuple[Array, Cache, Step]:
    """Compute the sources.

    Args:
      config: shape of an encoder whose mask is prefix or causal.
      params: parameters of the encoder and the masked LM head.
      batch: packed sources as a model reads them, [R, T], with a prediction slot at the last token
        of each, and three arrays of B sources: `source_tokens` int32 [B, S], where in the flattened
        [R, T] the tokens of each source are; `source_lengths` int32 [B]; `source_slots` int32 [B],
        where in the flattened prediction slots its last token is.
      num_tokens: tokens for which the cache has space.

    Returns:
      Logits of the first target token of each source, float32 [B, 1, V]; the cache of one
      hypothesis of each source; and the function that computes further tokens.
    """
    model = BertWithHeads(config, ("mlm",))
    layers = range(config.num_hidden_layers)  # the input of each block
    variables = {"params": params}
    outputs: Any = model.apply(variables, batch, deterministic=True, hidden_layers=layers)
    logits = outputs["mlm_logits"]
    first_logits = logits.reshape(-1, logits.shape[-1])[batch["source_slots"]][:, None]
    # Sliced once, outside the loop over tokens, which would copy the slices at each of them.
    blocks = [_slice(params["encoder"]["blocks"], layer) for layer in layers]
    where, size = batch["source_tokens"], config.hidden_size

    def project(name: str) -> list[Array]:
        """Return the keys or values of the sources in each layer, [B, N, S, D]."""
        arrays = []
        for block, x in zip(blocks, outputs["hidden_states"], strict=True):
            x = _dense(config, block["attention"][name], x)
            arrays.append(_split_heads(config, x.reshape(-1, size)[where]).swapaxes(1, 2))
        return arrays

    is_source = jnp.arange(where.shape[1]) < batch["source_lengths"][:, None]
    source = {"keys": project("key"), "values": project("value"), "is_token": is_source}
    heads = config.num_attention_heads
    empty = jnp.zeros((len(where), 1, heads, num_tokens, size // heads), config.dtype)
    target = {"keys": [empty for _ in layers], "values": [empty for _ in layers]}
    embeddings = params["encoder"]["embeddings"]

    def step(cache: Cache, tokens: Array, index: Array) -> tuple[Array, Cache]:
        positions = jnp.broadcast_to((batch["source_lengths"] + index)[:, None], tokens.shape)
        # A source may end so late that its hypotheses, complete by then, leave the table.
        positions = jnp.minimum(positions, config.max_position_embeddings - 1)
        types = jnp.full_like(tokens, int(config.mask_kind == "prefix"))
        x = _apply(Embeddings(config), embeddings, tokens, types, positions, deterministic=True)
        updated: dict[str, list[Array]] = {"keys": [], "values": []}
        for layer, block in enumerate(blocks):
            keys, values = (
                (cache.source[name][layer], cache.target[name][layer]) for name in updated
            )
            x, new_keys, new_values = _block(
                config, block, x, index, keys, values, cache.source["is_token"]
            )
            updated["keys"].append(new_keys)
            updated["values"].append(new_values)
        logits = _apply(MaskedLMHead(config), params["mlm"], x, {}, embeddings["word"])
        return logits, cache._replace(target=updated)

    return first_logits, Cache(source, target), step


def _block(
    config: BertConfig,
    params: Any,
    x: Array,
    index: Array,
    keys: tuple[Array, Array],
    values: tuple[Array, Array],
    is_source: Array,
) -> tuple[Array, Array, Array]:
    """Compute `bertjax.model.encoder.Block` for one token of each hypothesis.

    Args:
      config: shape of the encoder.
      params: parameters of the block.
      x: vectors of the tokens, [B, K, H].
      index: int32 [], their index in the target.
      keys: those of the sources [B, N, S, D] and of the targets [B, K, N, G, D].
      values: likewise.
      is_source: bool [B, S], False for padding.

    Returns:
      The block's vectors, and keys and values of the targets with the new tokens.
    """
    attention = params["attention"]
    query, key, value = (
        _split_heads(config, _dense(config, attention[name], x))
        for name in ("query", "key", "value")
    )
    query = query * query.shape[-1] ** -0.5
    new_keys = keys[1].at[:, :, :, index].set(key)
    new_values = values[1].at[:, :, :, index].set(value)
    lowest = jnp.finfo(jnp.float32).min
    sources = _scores("bknd,bnsd->bkns", query, keys[0])
    sources = jnp.where(is_source[:, None, None], sources, lowest)
    targets = _scores("bknd,bkngd->bkng", query, new_keys)
    targets = jnp.where(jnp.arange(targets.shape[-1]) <= index, targets, lowest)
    weights = jax.nn.softmax(jnp.concatenate([sources, targets], axis=-1)).astype(value.dtype)
    of_sources, of_targets = jnp.split(weights, [sources.shape[-1]], axis=-1)
    context = jnp.einsum("bkns,bnsd->bknd", of_sources, values[0])
    context += jnp.einsum("bkng,bkngd->bknd", of_targets, new_values)
    update = _dense(config, attention["output"], context.reshape(x.shape))
    x = _apply(LayerNorm(config), params["attention_norm"], x + update)
    update = _apply(FeedForward(config), params["feed_forward"], x)
    x = _apply(LayerNorm(config), params["feed_forward_norm"], x + update)
    return x, new_keys, new_values


def _slice(stacked: Any, layer: int) -> Any:
    """Return the parameters of a layer."""
    return jax.tree.map(lambda leaf: leaf[layer], stacked)


def _scores(subscripts: str, query: Array, keys: Array) -> Array:
    return jnp.einsum(subscripts, query, keys, preferred_element_type=jnp.float32)


def _dense(config: BertConfig, params: Any, x: Array) -> Array:
    return _apply(Dense(config, params["bias"].shape[-1]), params, x)


def _apply(module: nn.Module, params: Any, *arguments: Any, **options: Any) -> Array:
    return cast(Array, module.apply({"params": params}, *arguments, **options))


def _split_heads(config: BertConfig, x: Array) -> Array:
    """Return [..., H] as [..., N, D]."""
    return x.reshape(*x.shape[:-1], config.num_attention_heads, -1)
