"""Losses and accuracies as (sum, weight) pairs, so that they add up over devices and batches.

The mean is sum / weight, taken once at the very end. Weights are those of the slots: 0 for an empty
one, whose logits and target then count for nothing.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

Sum = tuple[Array, Array]
Sums = dict[str, Sum]  # name -> (sum, weight), float32 scalars


def cross_entropy(logits: Array, targets: Array, weights: Array) -> Sum:
    """-log softmax(logits)[target] in nats, summed over the slots, and the sum of the weights.

    `logits` are [..., C], taken in float32; int32 `targets` and float32 `weights` are [...].
    """
    logits = logits.astype(jnp.float32)
    losses = jax.nn.logsumexp(logits, axis=-1) - _of_target(logits, targets)
    return jnp.sum(losses * weights), jnp.sum(weights)


def accuracy(logits: Array, targets: Array, weights: Array) -> Sum:
    """The weight of the slots whose target has the largest logit, and that of all slots.

    Shapes are those of `cross_entropy`. A target that shares the largest logit with another class
    counts. (The maximum is at hand from the loss; an argmax would take a CPU a tenth of the step.)
    """
    correct = _of_target(logits, targets) >= jnp.max(logits, axis=-1)
    return jnp.sum(correct * weights), jnp.sum(weights)


def _of_target(logits: Array, targets: Array) -> Array:
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def masked_pieces(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "mlm_loss" and "mlm_accuracy" from logits [B, M, V]."""
    slots = logits, batch["mlm_targets"], batch["mlm_weights"]
    return {"mlm_loss": cross_entropy(*slots), "mlm_accuracy": accuracy(*slots)}


def next_sentences(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """ "nsp_loss" and "nsp_accuracy" from logits [B, K, 2]."""
    slots = logits, batch["nsp_labels"], batch["nsp_weights"]
    return {"nsp_loss": cross_entropy(*slots), "nsp_accuracy": accuracy(*slots)}


def spans(logits: Array, batch: Mapping[str, Array]) -> Sums:
    """What span prediction minimises and reports: "span_loss", the mean of the losses of start and
    end (section 4.2), and the accuracies of both.

    `logits` are [B, T, 2]; each of the K windows of a row chooses among its own pieces.
    """
    slots = jnp.arange(1, batch["span_weights"].shape[1] + 1)
    own = batch["pack_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    least = jnp.finfo(jnp.float32).min
    sums, losses = {}, []
    for i, name in enumerate(("start", "end")):
        choices = jnp.where(own, logits[:, None, :, i].astype(jnp.float32), least)
        slot = choices, batch["span_targets"][..., i], batch["span_weights"]
        losses.append(cross_entropy(*slot))
        sums[f"{name}_accuracy"] = accuracy(*slot)
    (start, weight), (end, _) = losses
    return {"span_loss": ((start + end) / 2, weight)} | sums
