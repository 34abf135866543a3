"""Heads that score each span of a passage, and their loss (Alberti et al. 2019, section 2).

The logits are float32 [B, T, L]: the score of the span from token t to token t + l, of l + 1
tokens. The probabilities of the spans of a window add up to 1. Spans that `valid_spans` excludes
have any logit and no probability.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model import heads
from bertjax.model.bert_config import BertConfig
from bertjax.model.distillation_losses import has_example
from bertjax.model.encoder import Dense, LayerNorm
from bertjax.model.heads import Batch, Head, LinearHead
from bertjax.model.layers import ACTIVATIONS
from bertjax.model.losses import Sum, Sums
from data_pipelines.finetuning.question_answering.answer_spans import (
    ENDS_WORD,
    MAX_ANSWER_LENGTH,
    STARTS_WORD,
)

MAX_WINDOWS_PER_SEQUENCE = 8


class _PairScorer(nn.Module):
    """The hidden layer and the score of the spans of one length, a step of a loop over lengths."""

    config: BertConfig

    @nn.compact
    def __call__(self, carry: None, shift: Array, starts: Array, ends: Array) -> tuple[None, Array]:
        """Return the scores [B, T] of the spans from each token to the one `shift` further on.

        Args:
          carry: nothing.
          shift: int32 [].
          starts: part of the hidden layer from the first token, [B, T, H].
          ends: part from the last token, [B, T + L - 1, H].
        """
        config, length = self.config, starts.shape[1]
        hidden = starts + jax.lax.dynamic_slice_in_dim(ends, shift, length, axis=1)
        hidden = LayerNorm(config, name="norm")(ACTIVATIONS[config.hidden_act](hidden))
        return None, Dense(config, 1, name="output")(hidden)[..., 0]


class SpanScorer(nn.Module):
    """A multilayer perceptron of the vectors of the first and the last token of each span.

    Its first layer is the sum of a product with either vector, so that it costs two products for
    each token and none for each span. Activation and LayerNorm follow, and a linear layer. They are
    computed for one length of spans after the other, and again in the backward pass: no array has
    the vectors of all spans.
    """

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:
        """Return logits [B, T, L] from vectors [B, T, H]."""
        config, hidden = self.config, self.config.hidden_size
        projected = Dense(config, 2 * hidden, name="transform")(x).astype(jnp.float32)
        starts, ends = jnp.split(projected, 2, axis=-1)
        # In float32, as the logits of question answering: in bfloat16 many spans would tie.
        # A loop, as a CPU ignores rematerialization in an unrolled one. Gradient for 8 sequences of
        # 384 tokens, H = 384: 370 -> 45 MiB, 0.45 -> 0.21 s of processor time.
        scorer = nn.scan(
            nn.remat(_PairScorer, prevent_cse=False),
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast, nn.broadcast),
        )(dataclasses.replace(config, dtype="float32"), name="scorer")
        _, scores = scorer(None, jnp.arange(MAX_ANSWER_LENGTH), starts, _pad_tokens(ends))
        return jnp.moveaxis(scores, 0, -1)


class BoundaryScorer(LinearHead):
    """A start and an end logit of each token; the score of a span is the sum of its two."""

    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:  # type: ignore[override]
        """Return logits [B, T, L] from vectors [B, T, H]."""
        starts, ends = jnp.moveaxis(super().__call__(x, batch, word), -1, 0)
        return starts[..., None] + jnp.stack(_shifts(ends), axis=-1)


def boundary_head(config: BertConfig, name: str) -> BoundaryScorer:
    """Return the module of two logits, in float32 as that of question answering."""
    return BoundaryScorer(dataclasses.replace(config, dtype="float32"), 2, name=name)


def _shifts(x: Array) -> list[Array]:
    """Return x [B, T, ...] at 0 to L - 1 tokens further on, with zeros behind the last token."""
    padded, length = _pad_tokens(x), x.shape[1]
    return [padded[:, shift : shift + length] for shift in range(MAX_ANSWER_LENGTH)]


def _pad_tokens(x: Array) -> Array:
    """Return x [B, T, ...] with L - 1 zeros behind the last token."""
    return jnp.pad(x, [(0, 0), (0, MAX_ANSWER_LENGTH - 1)] + [(0, 0)] * (x.ndim - 2))


def valid_spans(batch: Batch) -> Array:
    """Return the spans [B, T, L] of whole words within a window, without [CLS] and [SEP]."""
    example_ids, boundaries = batch["example_ids"], batch["span_boundaries"]
    last_ids = jnp.stack(_shifts(example_ids), axis=-1)
    last_bits = jnp.stack(_shifts(boundaries), axis=-1)
    starts = (boundaries & STARTS_WORD > 0) & (example_ids > 0)
    return starts[..., None] & (last_bits & ENDS_WORD > 0) & (last_ids == example_ids[..., None])


def span_sums(logits: Array, batch: Batch, *, name: str) -> Sums:
    """Return the loss of gold spans and their number.

    The loss of a gold span is -log of its probability among all spans of its window. One forward
    pass has the losses of all pairs of a window and one of its answers, which Alberti et al. train
    one by one.

    Args:
      logits: float32 [B, T, L].
      batch: arrays with the targets of `data_pipelines.finetuning.question_answering.answer_spans`.
      name: name of the loss.
    """
    is_valid = valid_spans(batch)
    bits = batch["answer_lengths"][..., None] >> jnp.arange(MAX_ANSWER_LENGTH)
    is_gold = is_valid & (bits & 1 > 0)
    weights = jnp.where(is_gold, batch["answer_lengths_weights"][..., None], 0)
    log_probs = _log_probabilities(logits, batch, is_valid)
    return {name: (-jnp.sum(weights * log_probs), jnp.sum(weights))}


def span_soft_loss(student: Array, teacher: Array, batch: Batch, temperature: Array) -> Sum:
    """Return T^2 KL(teacher || student) of the spans of each window, and the number of windows.

    The arguments are those of `bertjax.model.distillation_losses.SoftLoss`, with logits [B, T, L].
    """
    is_valid = valid_spans(batch)
    log_q, log_p = (
        _log_probabilities(logits / temperature, batch, is_valid) for logits in (student, teacher)
    )
    divergences = jnp.where(is_valid, jnp.exp(log_p) * (log_p - log_q), 0)
    weights = has_example(batch, MAX_WINDOWS_PER_SEQUENCE)
    return temperature**2 * jnp.sum(divergences), jnp.sum(weights)


def _log_probabilities(logits: Array, batch: Batch, is_valid: Array) -> Array:
    """Return the log-probability of each span among those of its window, 0 if it is invalid."""
    lowest = jnp.finfo(jnp.float32).min
    start_scores = jax.nn.logsumexp(jnp.where(is_valid, logits, lowest), axis=-1)  # [B, T]
    slots = jnp.arange(1, MAX_WINDOWS_PER_SEQUENCE + 1)
    is_own = batch["example_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    window_scores = jax.nn.logsumexp(
        jnp.where(is_own, start_scores[:, None, :], lowest), axis=-1, keepdims=True
    )
    log_normalizers = jnp.sum(jnp.where(is_own, window_scores, 0), axis=1)  # [B, T]
    return jnp.where(is_valid, logits - log_normalizers[..., None], 0)


def _register(name: str, **fields: object) -> Head:
    loss = f"{name}_loss"
    return heads.register_head(
        Head(
            name=name,
            sums=functools.partial(span_sums, name=loss),
            pooled=False,
            architecture="BertForAnswerExtraction",  # no class of transformers
            metric_titles={loss: ("Loss", None)},
            soft_loss=span_soft_loss,
            **fields,  # type: ignore[arg-type]
        )
    )


_NAME = "answer_spans"
_register(
    _NAME,
    module=SpanScorer,
    module_names=(
        (f"{_NAME}/transform", f"{_NAME}.transform", f"cls/{_NAME}/transform", "dense"),
        (f"{_NAME}/scorer/norm", f"{_NAME}.LayerNorm", f"cls/{_NAME}/LayerNorm", "norm"),
        (f"{_NAME}/scorer/output", f"{_NAME}.output", f"cls/{_NAME}/output", "output"),
    ),
    pipeline_tag="feature-extraction",
    auto_class="AutoModel",
    display_name="answer span head",
)
# `transformers` opens it as a head of question answering, whose score of a span is the same.
_register(
    "answer_boundaries",
    module=boundary_head,
    module_names=(("answer_boundaries", "qa_outputs", "cls/squad", "output"),),
    pipeline_tag="question-answering",
    auto_class="AutoModelForQuestionAnswering",
    display_name="answer boundary head",
)
