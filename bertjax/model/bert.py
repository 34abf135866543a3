"""BERT: the encoder with heads."""

import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert_config import BertConfig, hidden_state_indices, parse_layers
from bertjax.model.decoder.cross_attention import SLOTS_KEY, Decoder, decoder_inputs, source_inputs
from bertjax.model.dropout import dropout
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.encoders import LayerMix, gather_from_pair, last_positions, make_encoder
from bertjax.model.head_positions import (
    POOLED_KEY,
    encode_at_positions,
    head_positions,
    num_last_block_positions,
)
from bertjax.model.heads import HEADS, Batch, Pooler
from bertjax.model.layers import gather
from bertjax.model.recurrent.bilstm import BiLSTM


class BertWithHeads(nn.Module):
    """The encoder with some of `HEADS`.

    Attributes:
      config: shape of the encoder.
      heads: names of heads.
    """

    config: BertConfig
    heads: tuple[str, ...]

    @nn.compact
    def __call__(
        self, batch: Batch, *, deterministic: bool, hidden_layers: Sequence[int] = ()
    ) -> dict[str, Array]:
        """Return `NAME_logits` of each head, float32, and `hidden_states` if asked for.

        Args:
          batch: int32 `input_ids`, `token_type_ids`, `example_ids` and `position_ids` [B, T], and
            the arrays that the heads read. Other arrays are ignored.
          deterministic: turns dropout off. Otherwise `apply` needs `rngs={"dropout": key}`.
          hidden_layers: layers whose hidden states [len(hidden_layers), B, T, H] are returned too,
            as in `hidden_state_indices`.
        """
        config, encoder = self.config, make_encoder(self.config, "encoder")
        inputs = [batch[name] for name in ENCODER_INPUTS]
        if config.has_cross_attention:
            inputs = source_inputs(*inputs)
        example_ids = batch["example_ids"]
        positions = head_positions(self.heads, batch)
        first = positions.get(POOLED_KEY)  # from left to right [CLS] sees only itself
        if config.direction in ("left_to_right", "pair") and first is not None:
            positions[POOLED_KEY] = last_positions(example_ids, first.shape[1])
        num_positions = num_last_block_positions(config, self.heads, batch)
        outputs: dict[str, Array] = {}
        depths = hidden_state_indices(hidden_layers, config.num_hidden_layers)
        reads_last_block = config.num_hidden_layers in depths
        if num_positions < example_ids.shape[1] and not (
            reads_last_block or self.is_initializing()
        ):
            joined = jnp.concatenate([*positions.values()], axis=1)
            hidden, states = encode_at_positions(
                encoder,
                *inputs,
                output_positions=joined,
                deterministic=deterministic,
                layers=hidden_layers,
            )
            if states is not None:
                outputs["hidden_states"] = states
            ends = itertools.accumulate(array.shape[1] for array in positions.values())
            vectors = dict(zip(positions, jnp.split(hidden, [*ends][:-1], axis=1), strict=True))
        elif hidden_layers:
            last = [-1] if self.heads else []
            states = encoder(*inputs, deterministic=deterministic, layers=[*hidden_layers, *last])
            outputs["hidden_states"], hidden = states[: len(hidden_layers)], states[-1]
            vectors = {name: gather(hidden, array) for name, array in positions.items()}
            vectors[""] = hidden
        else:
            hidden = self._all_positions(encoder, inputs, deterministic)
            vectors = {name: gather(hidden, array) for name, array in positions.items()}
            vectors[""] = hidden
        if config.direction == "pair" and first is not None:
            vectors[POOLED_KEY] = gather_from_pair(vectors[""], first, positions[POOLED_KEY])
        if POOLED_KEY in positions:
            vectors[POOLED_KEY] = Pooler(config, name="pooler")(vectors[POOLED_KEY])
        word = encoder.embeddings.word
        if config.has_cross_attention and SLOTS_KEY in positions:
            _, _, source_ids, _ = inputs
            decoder = Decoder(config, name="decoder")
            slots = decoder_inputs(batch)
            vectors[SLOTS_KEY] = decoder(*slots, hidden, source_ids, deterministic=deterministic)
            word = decoder.embeddings.word
        for head in (HEADS[name] for name in self.heads):
            x = vectors[POOLED_KEY if head.pooled else head.positions_key]
            if head.input_dropout and not deterministic:
                x = dropout(x, config.hidden_dropout_prob, self.make_rng("dropout"))
            module = head.module(config, name=head.name)
            outputs[f"{head.name}_logits"] = module(x, batch, word)
        return outputs

    def _all_positions(self, encoder: Any, inputs: Sequence[Array], deterministic: bool) -> Array:
        """Return the vectors of all tokens [B, T, H] that heads read."""
        config = self.config
        if config.feature_layers:
            layers = parse_layers(config.feature_layers, config.num_hidden_layers)
            frozen = config.freeze_features
            states = encoder(*inputs, deterministic=deterministic or frozen, layers=layers)
            states = jax.lax.stop_gradient(states) if frozen else states
            num_encoders = 2 if config.direction == "pair" else 1
            hidden = LayerMix(config.feature_mix, num_encoders, name="features")(states)
        else:
            hidden = encoder(*inputs, deterministic=deterministic)
        if config.bilstm:
            *_, example_ids, _ = inputs
            hidden = BiLSTM(config.bilstm // 2, name="bilstm")(hidden, example_ids)
        return hidden


class _DummyBatch(dict[str, Array]):
    """A batch of one sequence of one token, with every array that a head may read."""

    def __missing__(self, name: str) -> Array:
        return jnp.zeros((1, 1), jnp.int32)


def init_params(config: BertConfig, heads: Sequence[str], key: Array) -> Any:
    """Return random parameters of a model with heads, a nested dictionary of float32 arrays."""
    model = BertWithHeads(config, tuple(heads))
    return model.init(key, _DummyBatch(), deterministic=True)["params"]


def param_shapes(config: BertConfig) -> dict[str, Any]:
    """Return the shapes of the parameters of encoder, pooler and every head, by module name."""
    shapes: dict[str, Any] = jax.eval_shape(
        lambda: init_params(config, tuple(HEADS), jax.random.key(0))
    )
    return shapes
