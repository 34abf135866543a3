"""BERT: the encoder with heads."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.bert_config import BertConfig, parse_layers
from bertjax.model.bilstm import BiLSTM, LayerMix
from bertjax.model.dropout import dropout
from bertjax.model.encoder import Encoder, computes_only_head_positions
from bertjax.model.heads import HEADS, Batch, Pooler
from bertjax.model.layers import gather


def last_positions(example_ids: Array, count: int) -> Array:
    """Where each of `count` examples of a row ends, int32 [B, K], from its `example_ids` [B, T]."""
    own = example_ids[:, None] == jnp.arange(1, count + 1)[:, None]
    return jnp.max(jnp.where(own, jnp.arange(example_ids.shape[1], dtype=jnp.int32), 0), axis=-1)


_POOLED_KEY = "pooled"  # in place of what a head `reads`


def head_positions(heads: Iterable[str], batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a batch with the positions [B, N] that heads of these names read.

    Args:
      batch: or its shapes.
    """
    found = {}
    for head in (HEADS[name] for name in heads):
        if head.pooled:
            found[_POOLED_KEY] = batch["cls_positions"]
        elif head.reads:
            found[head.reads] = batch[head.reads]
    return found


def num_head_positions(heads: Sequence[str], batch: Mapping[str, Any]) -> int:
    """How many of a row's positions heads of these names read; 0 for all, or for no heads."""
    if not all(HEADS[name].pooled or HEADS[name].reads for name in heads):
        return 0
    return sum(each.shape[1] for each in head_positions(heads, batch).values())


class BertWithHeads(nn.Module):
    """The encoder with some of `HEADS`."""

    config: BertConfig
    heads: tuple[str, ...]

    @nn.compact
    def __call__(self, batch: Batch, *, deterministic: bool) -> dict[str, Array]:
        """`NAME_logits` of each head, float32.

        `batch` holds int32 `input_ids`, `token_type_ids`, `example_ids` and `positions` [B, T], and what the
        heads read; what else it holds is left alone.
        """
        config, encoder = self.config, Encoder(self.config, name="encoder")
        inputs = [
            batch[name] for name in ("input_ids", "token_type_ids", "example_ids", "position_ids")
        ]
        heads = [HEADS[name] for name in self.heads]
        places = head_positions(self.heads, batch)
        if config.causal and _POOLED_KEY in places:  # where [CLS] sees nothing but itself
            places[_POOLED_KEY] = last_positions(batch["example_ids"], places[_POOLED_KEY].shape[1])
        slots = num_head_positions(self.heads, batch)
        few = slots and computes_only_head_positions(config, slots, batch["example_ids"].shape[1])
        if few and not self.is_initializing():  # which makes the parameters of all layers at once
            at = jnp.concatenate([*places.values()], axis=1)
            joined = encoder(*inputs, deterministic=deterministic, at=at)
            ends = itertools.accumulate(each.shape[1] for each in places.values())
            vectors = dict(zip(places, jnp.split(joined, [*ends][:-1], axis=1), strict=True))
        else:
            hidden = self._all_positions(encoder, inputs, deterministic)
            vectors = {name: gather(hidden, at) for name, at in places.items()} | {"": hidden}
        if _POOLED_KEY in places:
            vectors[_POOLED_KEY] = Pooler(config, name="pooler")(vectors[_POOLED_KEY])
        outputs = {}
        for head in heads:
            x = vectors[_POOLED_KEY if head.pooled else head.reads]
            if head.input_dropout and not deterministic:
                x = dropout(x, config.hidden_dropout_prob, self.make_rng("dropout"))
            module = head.module(config, name=head.name)
            outputs[f"{head.name}_logits"] = module(x, batch, encoder.embeddings.word)
        return outputs

    def _all_positions(
        self, encoder: Encoder, inputs: Sequence[Array], deterministic: bool
    ) -> Array:
        """The vectors of all pieces [B, T, H] that heads are given."""
        config = self.config
        if config.feature_layers:
            layers = parse_layers(config.feature_layers, config.num_hidden_layers)
            found = jax.lax.stop_gradient(encoder(*inputs, deterministic=True, layers=layers))
            hidden = LayerMix(config.feature_mix, name="features")(found)
        else:
            hidden = encoder(*inputs, deterministic=deterministic)
        if config.bilstm:
            *_, example_ids, _ = inputs
            hidden = BiLSTM(config.bilstm // 2, name="bilstm")(hidden, example_ids)
        return hidden


class _DummyBatch(dict[str, Array]):
    """A batch of one row and one piece, with whatever a head reads."""

    def __missing__(self, name: str) -> Array:
        return jnp.zeros((1, 1), jnp.int32)


def param_shapes(config: BertConfig) -> dict[str, Any]:
    """The shapes of the encoder's, the pooler's and every head's parameters, by the part's name."""

    def init(key: Array) -> Any:
        return BertWithHeads(config, tuple(HEADS)).init(key, _DummyBatch(), deterministic=True)[
            "params"
        ]

    shapes: dict[str, Any] = jax.eval_shape(init, jax.random.key(0))
    return shapes
