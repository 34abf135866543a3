"""The decoder of BERT2BERT (Rothe et al. 2020): causal blocks that also attend to an encoder.

The decoder reads prediction slots: M of each sequence, of several packed examples. Its parameters
are those of an encoder, and of the cross-attention. A block is that of `transformers`' BertLayer
with `add_cross_attention`.

No kernel computes the cross-attention: those of `bertjax.model.attention` need as many queries as
keys. Its weights take [B, N, M, T], a fraction M / T of the encoder's without a kernel.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.attention.plain import masked_attention
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import (
    Dense,
    Embeddings,
    FeedForward,
    SelfAttention,
    add_update,
    block_stack,
)

SLOTS_KEY = "masked_lm_positions"  # batch array of the positions that the decoder reads


def source_inputs(
    input_ids: Array, token_type_ids: Array, example_ids: Array, position_ids: Array
) -> list[Array]:
    """Return the inputs of an encoder that reads the sources alone, in the order of `Encoder`.

    Target tokens become padding. Their type, which the model may lack, becomes 0.
    """
    source_ids = jnp.where(token_type_ids > 0, 0, example_ids)
    return [input_ids, jnp.zeros_like(token_type_ids), source_ids, position_ids]


def decoder_inputs(batch: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Return token ids, example ids and positions of the slots, three int32 [B, M].

    The slots of an example are consecutive, from the source's [SEP] on. There the decoder reads
    [CLS], its start token. Empty slots are at position 0, the [CLS] of an example, which predicts
    nothing; they have example id 0.
    """
    slots = batch[SLOTS_KEY]

    def at(positions: Array, name: str) -> Array:
        return jnp.take_along_axis(batch[name], positions, axis=1)

    position_ids, is_start = at(slots, "position_ids"), at(slots, "token_type_ids") == 0
    start_ids = at(jnp.maximum(slots - position_ids, 0), "input_ids")  # [CLS] of each example
    ids = jnp.where(is_start, start_ids, at(slots, "input_ids"))
    example_ids = jnp.where(position_ids > 0, at(slots, "example_ids"), 0)
    numbers = jnp.broadcast_to(jnp.arange(slots.shape[1], dtype=jnp.int32), slots.shape)
    starts = jax.lax.cummax(jnp.where(is_start, numbers, 0), axis=1)
    return ids, example_ids, numbers - starts


class CrossAttention(nn.Module):
    """Multi-head attention of slots [B, M, H] to vectors of the encoder [B, T, H]."""

    config: BertConfig
    deterministic: bool

    def setup(self) -> None:
        """Declare the layers, so that keys and values can be computed apart from queries."""
        size = self.config.hidden_size
        self.query, self.key, self.value, self.output = (Dense(self.config, size) for _ in range(4))

    def keys_and_values(self, vectors: Array) -> tuple[Array, Array]:
        """Return keys and values [B, T, N, D] of the encoder's vectors [B, T, H]."""
        return self._split_heads(self.key(vectors)), self._split_heads(self.value(vectors))

    def __call__(self, x: Array, keys: Array, values: Array, mask: Array) -> Array:
        """Return vectors of the shape of `x`.

        Args:
          x: [B, M, H].
          keys: [B, T, N, D], as `keys_and_values` returns them.
          values: the same.
          mask: bool [B, M, T], the encoder's vectors that each slot attends to.
        """
        config = self.config
        key = None if self.deterministic else self.make_rng("dropout")
        query, rate = self._split_heads(self.query(x)), config.attention_probs_dropout_prob
        context = masked_attention(query, keys, values, mask, rate, key)
        return self.output(context.reshape(x.shape))

    def _split_heads(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.config.num_attention_heads, -1)


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each as in `Block`."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self, x: Array, example_ids: Array, vectors: Array, mask: Array
    ) -> tuple[Array, None]:
        """Return the carry of a scan, of the shape of `x`, and no output.

        Args:
          x: [B, M, H].
          example_ids: int32 [B, M].
          vectors: those of the encoder [B, T, H].
          mask: bool [B, M, T], see `CrossAttention`.
        """
        config = self.config
        attend = SelfAttention(config, self.deterministic, name="attention")
        x = add_update(self, x, attend(x, example_ids, None), "attention_norm")
        cross = CrossAttention(config, self.deterministic, name="cross_attention")
        update = cross(x, *cross.keys_and_values(vectors), mask)
        x = add_update(self, x, update, "cross_attention_norm")
        update = FeedForward(config, name="feed_forward")(x)
        return add_update(self, x, update, "feed_forward_norm"), None


class Decoder(nn.Module):
    """Embeddings and `num_hidden_layers` blocks; the encoder has the same shape."""

    config: BertConfig

    def setup(self) -> None:
        """Declare the embeddings, so that heads can read them."""
        self.causal_config = dataclasses.replace(self.config, direction="left_to_right", decoder="")
        self.embeddings = Embeddings(self.causal_config)

    @nn.compact
    def __call__(
        self,
        input_ids: Array,
        example_ids: Array,
        position_ids: Array,
        vectors: Array,
        source_ids: Array,
        *,
        deterministic: bool,
    ) -> Array:
        """Return vectors [B, M, H] in the computation's dtype, each from the slots up to its own.

        Args:
          input_ids: int32 [B, M], tokens of the slots.
          example_ids: int32 [B, M], 1..K for the example of a slot, 0 for an empty one.
          position_ids: int32 [B, M], positions in the target.
          vectors: those of the encoder [B, T, H].
          source_ids: int32 [B, T], the example whose slots attend to a vector, 0 for none.
          deterministic: turns dropout off, as in `Encoder`.
        """
        config = self.causal_config
        types = jnp.zeros_like(input_ids)
        x = self.embeddings(input_ids, types, position_ids, deterministic=deterministic)
        mask = example_ids[:, :, None] == source_ids[:, None]
        blocks = block_stack(
            config,
            config.num_hidden_layers,
            deterministic,
            initializing=self.is_initializing(),
            block=DecoderBlock,
        )
        x, _ = blocks(config, deterministic, name="blocks")(x, example_ids, vectors, mask)
        return x
