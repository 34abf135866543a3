"""The encoder that a configuration names: BERT's, an LSTM, or a pair, and the mix of its layers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.layers import gather
from bertjax.model.recurrent.lstm_encoder import LSTMEncoder

PAIR = ("left_to_right", "right_to_left")  # encoders of a pair, names of their parameters
_ENCODERS = {"transformer": Encoder, "lstm": LSTMEncoder}


def make_encoder(config: BertConfig, name: str) -> Any:
    """Return the module of the encoder, which is called as `Encoder`."""
    encoder = EncoderPair if config.direction == "pair" else _ENCODERS[config.encoder]
    return encoder(config, name=name)


class EncoderPair(nn.Module):
    """Two encoders, left to right and right to left, as in ELMo (Peters et al. 2018).

    Both read the token itself. Neither reads the vectors of the other, so that the pair is only
    shallowly bidirectional.
    """

    config: BertConfig

    def setup(self) -> None:
        """Declare both encoders."""
        encoder = _ENCODERS[self.config.encoder]
        configs = [dataclasses.replace(self.config, direction=name) for name in PAIR]
        self.left_to_right, self.right_to_left = map(encoder, configs)

    @property
    def embeddings(self) -> nn.Module:
        """Embeddings of the left-to-right encoder."""
        embeddings: nn.Module = self.left_to_right.embeddings
        return embeddings

    def __call__(
        self, *inputs: Array, deterministic: bool, layers: Sequence[int] | None = None
    ) -> Array:
        """Return vectors as `Encoder`, of twice the size: left to right, then right to left."""
        both = self.left_to_right, self.right_to_left
        return jnp.concatenate(
            [encoder(*inputs, deterministic=deterministic, layers=layers) for encoder in both], -1
        )


class LayerMix(nn.Module):
    """A combination of several layers.

    Attributes:
      mix: "concat", or "sum" for a mean with trained weights that add up to 1, times a trained
        factor (Peters et al. 2018, equation 1).
      num_encoders: 2 for layers of a pair. The vectors of the first encoder then remain the first
        half of the result.
    """

    mix: str
    num_encoders: int = 1

    @nn.compact
    def __call__(self, layers: Array) -> Array:
        """Return [B, T, L * H] or [B, T, H] from vectors [L, B, T, H], in their dtype."""
        count = layers.shape[0]
        if self.mix == "concat":
            encoders = jnp.split(layers, self.num_encoders, axis=-1)
            return jnp.concatenate([layer for encoder in encoders for layer in encoder], axis=-1)
        weights = jax.nn.softmax(self.param("weights", nn.initializers.zeros_init(), (count,)))
        factor = self.param("factor", nn.initializers.ones_init(), ())
        return jnp.einsum("lbth,l->bth", layers, (factor * weights).astype(layers.dtype))


def last_positions(example_ids: Array, num_examples: int) -> Array:
    """Return the position of the last token of each example, int32 [B, K], 0 for none.

    Args:
      example_ids: int32 [B, T].
      num_examples: K.
    """
    is_own = example_ids[:, None] == jnp.arange(1, num_examples + 1)[:, None]
    positions = jnp.arange(example_ids.shape[1], dtype=jnp.int32)
    return jnp.max(jnp.where(is_own, positions, 0), axis=-1)


def gather_from_pair(hidden: Array, first: Array, last: Array) -> Array:
    """Return the vectors [B, K, H] of a pair for whole examples.

    Each encoder has read an example at the end of its direction.

    Args:
      hidden: vectors [B, T, H] of a pair; each half of H is of one encoder.
      first: int32 [B, K], first position of each example.
      last: int32 [B, K], its last position.
    """
    left_to_right, right_to_left = jnp.split(hidden, 2, axis=-1)
    return jnp.concatenate([gather(left_to_right, last), gather(right_to_left, first)], axis=-1)
