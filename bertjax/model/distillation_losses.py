"""Losses between a student and its teacher as (sum, weight) pairs.

The teacher's arrays are constants: no gradient reaches them. All losses are computed in float32
and are 0 if both models compute the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model.losses import Sum

# (logits of student, logits of teacher, batch, temperature) -> (sum, weight).
SoftLoss = Callable[[Array, Array, Mapping[str, Array], Array], Sum]
_MASKED = jnp.finfo(jnp.float32).min
_MIN_OMITTED_MASS = 1e-6  # less is noise of the difference of two sums in float32


def soft_cross_entropy(student: Array, teacher: Array, weights: Array, temperature: Array) -> Sum:
    """Return T^2 KL(teacher || student) of softened softmaxes (Hinton et al. 2015), and weights.

    Args:
      student: logits [..., C].
      teacher: logits [..., C]; the smallest float32 excludes a class.
      weights: float32 [...].
      temperature: float32 [].
    """
    log_q = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    log_p = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    p = jnp.exp(log_p)
    divergences = jnp.sum(jnp.where(p > 0, p * (log_p - log_q), 0), axis=-1)
    return temperature**2 * jnp.sum(divergences * weights), jnp.sum(weights)


def soft_binary_cross_entropy(
    student: Array, teacher: Array, weights: Array, temperature: Array
) -> Sum:
    """Return the mean over C classes of T^2 KL of two-class distributions; see the softmax's."""
    student, teacher = (x.astype(jnp.float32) / temperature for x in (student, teacher))
    p = jax.nn.sigmoid(teacher)
    divergences = p * (jax.nn.log_sigmoid(teacher) - jax.nn.log_sigmoid(student)) + (1 - p) * (
        jax.nn.log_sigmoid(-teacher) - jax.nn.log_sigmoid(-student)
    )
    return temperature**2 * jnp.sum(jnp.mean(divergences, axis=-1) * weights), jnp.sum(weights)


def has_example(batch: Mapping[str, Array], num_examples: int) -> Array:
    """Return 1 for each slot [B, K] of an example that the sequences have, labeled or not."""
    slots = jnp.arange(1, num_examples + 1)
    is_own = batch["example_ids"][:, None, :] == slots[:, None]
    return jnp.any(is_own, axis=-1).astype(jnp.float32)


def classification_soft_loss(
    student: Array, teacher: Array, batch: Mapping[str, Array], temperature: Array
) -> Sum:
    """Return the loss of logits [B, K, C]; the labels' dtype and shape select it, as for labels.

    A regression has the squared error, without temperature.
    """
    labels, weights = batch["labels"], has_example(batch, student.shape[1])
    if jnp.issubdtype(labels.dtype, jnp.integer):
        return soft_cross_entropy(student, teacher, weights, temperature)
    if labels.ndim > weights.ndim:
        return soft_binary_cross_entropy(student, teacher, weights, temperature)
    errors = jnp.square(student[..., 0] - teacher[..., 0])
    return jnp.sum(errors * weights), jnp.sum(weights)


def question_answering_soft_loss(
    student: Array, teacher: Array, batch: Mapping[str, Array], temperature: Array
) -> Sum:
    """Return the mean loss of start and end, each over the tokens of a window, [B, T, 2]."""
    num_windows = batch["answer_positions_weights"].shape[1]
    weights = has_example(batch, num_windows)
    slots = jnp.arange(1, num_windows + 1)
    is_own = batch["example_ids"][:, None, :] == slots[:, None]  # [B, K, T]
    total = jnp.float32(0)
    for i in range(2):
        own_student, own_teacher = (
            jnp.where(is_own, logits[:, None, :, i].astype(jnp.float32), _MASKED)
            for logits in (student, teacher)
        )
        total += soft_cross_entropy(own_student, own_teacher, weights, temperature)[0]
    return total / 2, jnp.sum(weights)


def multiple_choice_soft_loss(
    student: Array, teacher: Array, batch: Mapping[str, Array], temperature: Array
) -> Sum:
    """Return the loss of the choices of each question; logits [B, K, 1], one a choice."""
    group_ids, is_choice = batch["group_ids"], has_example(batch, student.shape[1])
    same_group = (group_ids[:, :, None] == group_ids[:, None, :]) & (is_choice[:, None, :] > 0)
    own_student, own_teacher = (
        jnp.where(same_group, logits[..., 0].astype(jnp.float32)[:, None, :], _MASKED)
        for logits in (student, teacher)
    )
    # Each of n choices has the distribution of its question.
    weights = is_choice / jnp.maximum(jnp.sum(same_group, axis=-1), 1)
    return soft_cross_entropy(own_student, own_teacher, weights, temperature)


def token_classification_soft_loss(
    student: Array, teacher: Array, batch: Mapping[str, Array], temperature: Array
) -> Sum:
    """Return the loss of logits [B, T, C] at the first token of each word, tagged or not."""
    is_word = (batch["token_labels_weights"] > 0) | (batch["token_labels"] < 0)
    return soft_cross_entropy(student, teacher, is_word.astype(jnp.float32), temperature)


def is_single_label(batch: Mapping[str, Any]) -> bool:
    """Return whether `classification_soft_loss` of a batch, or of its shapes, has a softmax."""
    return jnp.issubdtype(batch["labels"].dtype, jnp.integer)


def merge_omitted(logits: Array, class_ids: Array) -> Array:
    """Return the logits of K classes, and one of all other classes together, [..., K + 1].

    The softmax of the result has the probabilities of the K classes and the sum of the others.

    Args:
      logits: [..., C], converted to float32.
      class_ids: int32 [..., K], K < C.
    """
    logits = logits.astype(jnp.float32)
    kept = jnp.take_along_axis(logits, class_ids, axis=-1)
    total, part = (jax.nn.logsumexp(x, axis=-1, keepdims=True) for x in (logits, kept))
    omitted = total + jnp.log(-jnp.expm1(jnp.minimum(part - total, -_MIN_OMITTED_MASS)))
    return jnp.concatenate([kept, omitted], axis=-1)


def hidden_state_loss(student: Array, teacher: Array, example_ids: Array, kind: str) -> Sum:
    """Return the loss of hidden states [L, B, T, H] over layers and tokens.

    Args:
      student: hidden states, projected to the teacher's size.
      teacher: hidden states of the layers that they are compared with.
      example_ids: int32 [B, T], 0 for padding.
      kind: "mse", mean squared error of an element (Jiao et al. 2020), or "cosine", 1 - cosine of
        the angle between two vectors (Sanh et al. 2019).
    """
    student, teacher = student.astype(jnp.float32), teacher.astype(jnp.float32)
    if kind == "mse":
        losses = jnp.mean(jnp.square(student - teacher), axis=-1)
    else:
        squares = jnp.sum(jnp.square(student), axis=-1) * jnp.sum(jnp.square(teacher), axis=-1)
        losses = 1 - jnp.sum(student * teacher, axis=-1) * jax.lax.rsqrt(squares + 1e-12)
    weights = (example_ids > 0).astype(jnp.float32)
    return jnp.sum(losses * weights), student.shape[0] * jnp.sum(weights)


def relation_loss(student: Array, teacher: Array, example_ids: Array, num_heads: int) -> Sum:
    """Return KL of the relations of queries, keys or values (Wang et al. 2021, equation 5).

    A relation is the softmax of the scaled products of one head's vectors of two tokens of an
    example.

    Args:
      student: vectors [B, T, H].
      teacher: vectors [B, T, H'].
      example_ids: int32 [B, T].
      num_heads: relation heads, which divide H and H'.
    """
    same_example = example_ids[:, None, :, None] == example_ids[:, None, None, :]

    def scores(x: Array) -> Array:  # [B, heads, T, T]
        x = x.reshape(*x.shape[:-1], num_heads, -1)
        products = jnp.einsum("bqnd,bknd->bnqk", x, x, preferred_element_type=jnp.float32)
        return jnp.where(same_example, products * x.shape[-1] ** -0.5, _MASKED)

    weights = jnp.broadcast_to(
        (example_ids > 0).astype(jnp.float32)[:, None, :],
        (example_ids.shape[0], num_heads, example_ids.shape[1]),
    )
    return soft_cross_entropy(scores(student), scores(teacher), weights, jnp.float32(1))


def slot_soft_loss(weights_key: str) -> SoftLoss:
    """Return the loss of logits whose slots have the weights of a batch array."""

    def soft_loss(
        student: Array, teacher: Array, batch: Mapping[str, Array], temperature: Array
    ) -> Sum:
        return soft_cross_entropy(student, teacher, batch[weights_key], temperature)

    return soft_loss
