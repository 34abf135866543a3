"""Losses and accuracies as (sum, weight) pairs, so that they add up over devices and batches.

The mean is sum / weight, taken once at the very end. Weights are those of the slots: 0 for an empty
one, whose logits and target then count for nothing.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import tpu_kind

Sum = tuple[Array, Array]
Sums = dict[str, Sum]  # name -> (sum, weight), float32 scalars


def cross_entropy(logits: Array, targets: Array, weights: Array) -> Sum:
    """-log softmax(logits)[target] in nats, summed over the slots, and the sum of the weights.

    `logits` are [..., C], taken in float32; int32 `targets` and float32 `weights` are [...].
    """
    logits = logits.astype(jnp.float32)
    losses = jax.nn.logsumexp(logits, axis=-1) - _target_logits(logits, targets)
    return jnp.sum(losses * weights), jnp.sum(weights)


def accuracy(logits: Array, targets: Array, weights: Array) -> Sum:
    """The weight of the slots whose target has the largest logit, and that of all slots.

    Shapes are those of `cross_entropy`. A target that shares the largest logit with another class
    counts. (The maximum is at hand from the loss; an argmax would take a CPU a tenth of the step.)
    """
    correct = _target_logits(logits, targets) >= jnp.max(logits, axis=-1)
    return jnp.sum(correct * weights), jnp.sum(weights)


def _target_logits(logits: Array, targets: Array) -> Array:
    if not tpu_kind():
        return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # A choice that fuses with its use: a TPU would copy all logits for a gather, and write as many
    # again for its gradient. On a CPU it costs a tenth of the head.
    classes = logits.shape[-1]
    own = targets[..., None] == jnp.arange(classes, dtype=targets.dtype)
    found = jnp.where(own, logits, 0).sum(axis=-1)
    return jnp.where(targets < classes, found, jnp.nan)


def masked_lm_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "mlm_loss" and "mlm_accuracy" from logits [B, M, V]."""
    slots = logits, batch["masked_lm_ids"], batch["masked_lm_weights"]
    return {"mlm_loss": cross_entropy(*slots), "mlm_accuracy": accuracy(*slots)}


def next_sentence_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "nsp_loss" and "nsp_accuracy" from logits [B, K, 2]."""
    slots = logits, batch["next_sentence_labels"], batch["next_sentence_weights"]
    return {"nsp_loss": cross_entropy(*slots), "nsp_accuracy": accuracy(*slots)}


def labels(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "sequence_classification_loss" of logits [B, K, C], and where each is one of C classes "accuracy".

    What is minimised follows from the targets: cross-entropy of classes, int32 [B, K]; the mean of
    the C cross-entropies of sets of labels, float32 [B, K, C]; the squared error of numbers,
    float32 [B, K], of which C is 1.
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


def tags(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "token_classification_loss" and "accuracy" of logits [B, T, C], of the pieces that have tags."""
    slots = logits, batch["token_labels"], batch["token_labels_weights"]
    return {"token_classification_loss": cross_entropy(*slots), "accuracy": accuracy(*slots)}


def choices(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "multiple_choice_loss" and "accuracy" of logits [B, K, 1], one for each answer.

    The answers of a question, those of one number in `group_ids`, are classes to choose from; the
    target of the right one is 1.
    """
    group_ids, right = batch["group_ids"], batch["choice_labels"] * batch["choice_labels_weights"]
    same = group_ids[:, :, None] == group_ids[:, None, :]
    scores = logits[..., 0].astype(jnp.float32)
    among = jnp.where(same, scores[:, None, :], jnp.finfo(jnp.float32).min)
    losses = jax.nn.logsumexp(among, axis=-1) - scores
    correct = scores >= jnp.max(among, axis=-1)
    weight = jnp.sum(right)
    return {
        "multiple_choice_loss": (jnp.sum(losses * right), weight),
        "accuracy": (jnp.sum(correct * right), weight),
    }


def question_answering_sums(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """What span prediction minimises and reports: "question_answering_loss", the mean of the losses of start and
    end (section 4.2), and the accuracies of both.

    `logits` are [B, T, 2]; each of the K windows of a row chooses among its own pieces.
    """
    slots = jnp.arange(1, batch["answer_positions_weights"].shape[1] + 1)
    own = batch["example_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    least = jnp.finfo(jnp.float32).min
    sums, losses = {}, []
    for i, name in enumerate(("start", "end")):
        choices = jnp.where(own, logits[:, None, :, i].astype(jnp.float32), least)
        slot = choices, batch["answer_positions"][..., i], batch["answer_positions_weights"]
        losses.append(cross_entropy(*slot))
        sums[f"{name}_accuracy"] = accuracy(*slot)
    (start, weight), (end, _) = losses
    return {"question_answering_loss": ((start + end) / 2, weight)} | sums
