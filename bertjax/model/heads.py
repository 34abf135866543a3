"""The heads that pre-training puts on the encoder, and the model they make together."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.encoder import BertConfig, Dense, Encoder, LayerNorm
from bertjax.model.layers import ACTIVATIONS


def gather(hidden: Array, positions: Array) -> Array:
    """The vectors of `hidden` [B, T, H] at `positions` int32 [B, N]: [B, N, H]."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


@jax.custom_vjp
def similarity(x: Array, word: Array) -> Array:
    """The products of vectors [N, H] and word embeddings [V, H]: float32 [N, V].

    Scores keep the precision that they are summed in; the backward pass then multiplies in the
    dtype of the inputs, where differentiating this line would multiply in float32.
    """
    return jnp.einsum("nh,vh->nv", x, word, preferred_element_type=jnp.float32)


def _similarity_forward(x: Array, word: Array) -> tuple[Array, tuple[Array, Array]]:
    return similarity(x, word), (x, word)


def _similarity_backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, word = inputs
    gradient = gradient.astype(x.dtype)
    return gradient @ word, jnp.einsum("nv,nh->vh", gradient, x)


similarity.defvjp(_similarity_forward, _similarity_backward)


class Pooler(nn.Module):
    """tanh(Dense(x)) of [CLS] vectors [..., H]."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return jnp.tanh(Dense(self.config, self.config.hidden_size, name="transform")(x))


class MLM(nn.Module):
    """Scores of every piece of the vocabulary for vectors of masked positions."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array, word: Array) -> Array:
        """float32 [..., V] from vectors [..., H] and the word embeddings [V, H]."""
        config = self.config
        x = ACTIVATIONS[config.activation](Dense(config, config.hidden_size, name="transform")(x))
        x = LayerNorm(config, name="norm")(x)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        scores = similarity(x.reshape(-1, x.shape[-1]), word.astype(x.dtype)) + bias
        return scores.reshape(*x.shape[:-1], -1)


class PretrainingModel(nn.Module):
    """The encoder with the MLM head and, for `next_sentence`, the pooler and the NSP head."""

    config: BertConfig
    next_sentence: bool = True

    def setup(self) -> None:
        self.encoder = Encoder(self.config)
        self.mlm = MLM(self.config)
        if self.next_sentence:
            self.pooler = Pooler(self.config)
            self.nsp = Dense(self.config, 2)

    def __call__(self, batch: Mapping[str, Array], *, deterministic: bool) -> dict[str, Array]:
        """float32 logits: "mlm_logits" [B, M, V] and, for `next_sentence`, "nsp_logits" [B, K, 2].

        `batch` holds int32 `token_ids`, `type_ids`, `pack_ids` and `positions` [B, T],
        `mlm_positions` [B, M] and, for `next_sentence`, `cls_positions` [B, K]; what else it holds
        is left alone. Only the masked positions are gathered and projected on the vocabulary.
        """
        hidden = self.encoder(
            batch["token_ids"],
            batch["type_ids"],
            batch["pack_ids"],
            batch["positions"],
            deterministic=deterministic,
        )
        masked = gather(hidden, batch["mlm_positions"])
        logits = {"mlm_logits": self.mlm(masked, self.encoder.embeddings.word)}
        if self.next_sentence:
            pooled = self.pooler(gather(hidden, batch["cls_positions"]))
            logits["nsp_logits"] = self.nsp(pooled).astype(jnp.float32)
        return logits


class SpanModel(nn.Module):
    """The encoder with a score for each piece to begin, and one to end, an answer (section 4.2)."""

    config: BertConfig

    @nn.compact
    def __call__(self, batch: Mapping[str, Array], *, deterministic: bool) -> Array:
        """float32 logits [B, T, 2] from int32 `token_ids`, `type_ids`, `pack_ids`, `positions`."""
        names = ("token_ids", "type_ids", "pack_ids", "positions")
        inputs = (batch[name] for name in names)
        hidden = Encoder(self.config, name="encoder")(*inputs, deterministic=deterministic)
        # Rounded to bfloat16, answers would tie, and so would thousands of null odds.
        return Dense(dataclasses.replace(self.config, dtype="float32"), 2, name="span")(hidden)
