"""Losses and accuracies as (sum, weight) pairs, which add up over devices and batches.

The mean is sum / weight, computed once at the end. Empty slots have weight 0, so that their logits
and targets do not count.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import gpu_kind, tpu_kind

Sum = tuple[Array, Array]
Sums = dict[str, Sum]  # name -> (sum, weight), float32 scalars


def cross_entropy(
    logits: Array, targets: Array, weights: Array, label_smoothing: float = 0.0
) -> Sum:
    """Return the sum of -log softmax(logits)[target] in nats, and the sum of the weights.

    Args:
      logits: [..., C], converted to float32.
      targets: int32 [...].
      weights: float32 [...].
      label_smoothing: share of each label that all C classes divide (Szegedy et al. 2016).
    """
    logits = logits.astype(jnp.float32)
    expected_logits = _target_logits(logits, targets)
    if label_smoothing:
        mean_logits = jnp.mean(logits, axis=-1)
        expected_logits += label_smoothing * (mean_logits - expected_logits)
    losses = jax.nn.logsumexp(logits, axis=-1) - expected_logits
    return jnp.sum(losses * weights), jnp.sum(weights)


def accuracy(logits: Array, targets: Array, weights: Array) -> Sum:
    """Return the weight of the slots whose target has the largest logit, and that of all slots.

    Shapes are those of `cross_entropy`. A target that shares the largest logit counts. The loss
    needs the maximum anyway; an argmax would take a tenth of a step on a CPU.
    """
    correct = _target_logits(logits, targets) >= jnp.max(logits, axis=-1)
    return jnp.sum(correct * weights), jnp.sum(weights)


def _target_logits(logits: Array, targets: Array) -> Array:
    if not (tpu_kind() or gpu_kind()):
        return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # A selection, which fuses with its use. For a gather a TPU would copy all logits, and write as
    # many again for its gradient; a GPU would write the gradient in float32 before it rounds it. On
    # a CPU the selection costs a tenth of the head.
    classes = logits.shape[-1]
    is_target = targets[..., None] == jnp.arange(classes, dtype=targets.dtype)
    selected = jnp.where(is_target, logits, 0).sum(axis=-1)
    return jnp.where(targets < classes, selected, jnp.nan)


def masked_lm_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `mlm_loss` and `mlm_accuracy` of logits [B, M, V]."""
    slots = logits, batch["masked_lm_ids"], batch["masked_lm_weights"]
    return {"mlm_loss": cross_entropy(*slots), "mlm_accuracy": accuracy(*slots)}


def next_sentence_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `nsp_loss` and `nsp_accuracy` of logits [B, K, 2]."""
    slots = logits, batch["next_sentence_labels"], batch["next_sentence_weights"]
    return {"nsp_loss": cross_entropy(*slots), "nsp_accuracy": accuracy(*slots)}


def sequence_classification_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `sequence_classification_loss` of logits [B, K, C], and `accuracy` of single labels.

    The dtype and shape of `batch["labels"]` select the loss:

    - int32 [B, K], single-label classification: cross-entropy;
    - float32 [B, K, C], multi-label classification: mean of C binary cross-entropies;
    - float32 [B, K], regression with C = 1: squared error.
    """
    targets, weights = batch["labels"], batch["labels_weights"]
    if jnp.issubdtype(targets.dtype, jnp.integer):
        slots = logits, targets, weights
        return {"sequence_classification_loss": cross_entropy(*slots), "accuracy": accuracy(*slots)}
    if targets.ndim == weights.ndim:
        losses = jnp.square(logits[..., 0] - targets)
    else:
        losses = jnp.mean(jax.nn.softplus(logits) - targets * logits, axis=-1)
    return {"sequence_classification_loss": (jnp.sum(losses * weights), jnp.sum(weights))}


def token_classification_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `token_classification_loss` and `accuracy` of logits [B, T, C]."""
    slots = logits, batch["token_labels"], batch["token_labels_weights"]
    return {"token_classification_loss": cross_entropy(*slots), "accuracy": accuracy(*slots)}


def multiple_choice_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `multiple_choice_loss` and `accuracy` of logits [B, K, 1], one for each choice.

    Choices with the same number in `group_ids` belong to one question. The right choice has the
    label 1.
    """
    group_ids, right = batch["group_ids"], batch["choice_labels"] * batch["choice_labels_weights"]
    same_group = group_ids[:, :, None] == group_ids[:, None, :]
    scores = logits[..., 0].astype(jnp.float32)
    group_scores = jnp.where(same_group, scores[:, None, :], jnp.finfo(jnp.float32).min)
    losses = jax.nn.logsumexp(group_scores, axis=-1) - scores
    correct = scores >= jnp.max(group_scores, axis=-1)
    weight = jnp.sum(right)
    return {
        "multiple_choice_loss": (jnp.sum(losses * right), weight),
        "accuracy": (jnp.sum(correct * right), weight),
    }


def question_answering_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return `question_answering_loss` and the accuracies of start and end.

    The loss is the mean of the losses of start and end (section 4.2). `logits` are [B, T, 2]. Each
    of the K windows of a sequence chooses among its own tokens.
    """
    slots = jnp.arange(1, batch["answer_positions_weights"].shape[1] + 1)
    is_own = batch["example_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    lowest = jnp.finfo(jnp.float32).min
    sums, losses = {}, []
    for i, name in enumerate(("start", "end")):
        own_logits = jnp.where(is_own, logits[:, None, :, i].astype(jnp.float32), lowest)
        slot = own_logits, batch["answer_positions"][..., i], batch["answer_positions_weights"]
        losses.append(cross_entropy(*slot))
        sums[f"{name}_accuracy"] = accuracy(*slot)
    (start, weight), (end, _) = losses
    return {"question_answering_loss": ((start + end) / 2, weight)} | sums


def null_regression_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """Return the sums of question answering with the score of no answer as a regression.

    The sum of the two logits of [CLS] learns 1 for a window without answer and 0 for others, by
    squared error: `null_score_loss`. `question_answering_loss` and the accuracies are those of
    windows with an answer, whose start and end are chosen among the tokens after [CLS].

    Args:
      logits: [B, T, 2].
      batch: arrays of K windows of a sequence; position 0 of a window is its [CLS].
    """
    weights, positions = batch["answer_positions_weights"], batch["answer_positions"]
    slots = jnp.arange(1, weights.shape[1] + 1)
    is_own = batch["example_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    is_cls = is_own & (batch["position_ids"] == 0)[:, None, :]
    scores = jnp.sum(logits.astype(jnp.float32), axis=-1)[:, None, :]
    null_scores = jnp.sum(jnp.where(is_cls, scores, 0), axis=-1)  # [B, K]
    is_null = (positions[..., 0] == jnp.argmax(is_cls, axis=-1)).astype(jnp.float32)
    errors = jnp.square(null_scores - is_null) * weights
    answerable = {
        **batch,
        "answer_positions_weights": weights * (1 - is_null),
        "example_ids": jnp.where(batch["position_ids"] == 0, 0, batch["example_ids"]),
    }
    sums = question_answering_sums(logits, answerable)
    return sums | {"null_score_loss": (jnp.sum(errors), jnp.sum(weights))}
