"""Losses of embeddings as (sum, weight) pairs: in-batch negatives, ranking and regression.

They compare the examples of the whole batch, or each text with its embedding by a teacher. Each
equals the loss of sentence-transformers that its docstring names.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import shard_over_batch
from bertjax.model.losses import Sum, Sums, accuracy, cross_entropy
from bertjax.model.pooling import l2_normalize

DEFAULT_SCALE = 20.0  # of cosines
RANKING_LOSS, COSENT_LOSS, REGRESSION_LOSS, TEACHER_LOSS = LOSSES = (
    *("multiple_negatives_ranking", "cosent", "cosine_similarity", "mse"),
)
SCORED_LOSSES = (COSENT_LOSS, REGRESSION_LOSS)  # of pairs with a score


class LossOptions(NamedTuple):
    """A loss and its options.

    Attributes:
      loss: one of `LOSSES`.
      scale: factor of cosines; unused by the regression.
      symmetric: see `multiple_negatives_ranking_sums`.
      dims: numbers of first components that must be embeddings by themselves (Kusupati et al.
        2022), the largest first; none for all components alone.
    """

    loss: str
    scale: float
    symmetric: bool = False
    dims: tuple[int, ...] = ()


def arrange_texts(
    embeddings: Array, slots: Array, weights: Array, num_examples: int, num_texts: int
) -> tuple[Array, Array]:
    """Return the embeddings in the order of the examples: float32 [N, C, H], and bool [N, C].

    The second array is False for a text that the sequences do not have.

    Args:
      embeddings: float32 [B, K, H] of the texts of packed sequences.
      slots: int32 [B, K], the index of each text among the N C texts.
      weights: float32 [B, K], 0 for empty slots.
      num_examples: N.
      num_texts: C, texts of an example.
    """
    total = num_examples * num_texts
    indices = jnp.where(weights > 0, slots, total).reshape(-1)
    vectors = jnp.zeros((total, embeddings.shape[-1]), jnp.float32)
    vectors = vectors.at[indices].add(embeddings.reshape(-1, embeddings.shape[-1]), mode="drop")
    exists = jnp.zeros(total, bool).at[indices].set(True, mode="drop")
    return vectors.reshape(num_examples, num_texts, -1), exists.reshape(num_examples, num_texts)


def embeddings_sums(
    options: LossOptions, vectors: Array, exists: Array, scores: Array | None
) -> Sums:
    """Return `embeddings_loss`, the sum of those of all `dims`, and `accuracy` of a ranking.

    The accuracy is that of the most components.

    Args:
      options: the loss.
      vectors: float32 [N, C, H], of any length.
      exists: bool [N, C].
      scores: float32 [N], similarity of each pair; None if the loss reads none.
    """
    parts = []
    for size in options.dims or (vectors.shape[-1],):
        units = l2_normalize(vectors[..., :size])
        if options.loss == RANKING_LOSS:
            parts.append(
                multiple_negatives_ranking_sums(units, exists, options.scale, options.symmetric)
            )
            continue
        assert scores is not None
        cosines, weights = pair_cosines(units), jnp.all(exists, axis=1).astype(jnp.float32)
        if options.loss == COSENT_LOSS:
            pair = cosent_loss(cosines, scores, weights, options.scale)
        else:
            pair = cosine_similarity_loss(cosines, scores, weights)
        parts.append({"embeddings_loss": pair})
    value = jnp.asarray(sum(part["embeddings_loss"][0] for part in parts))
    _, weight = parts[0]["embeddings_loss"]
    return parts[0] | {"embeddings_loss": (value, weight)}


def multiple_negatives_ranking_sums(
    units: Array, exists: Array, scale: float, symmetric: bool = False
) -> Sums:
    """Return the loss of MultipleNegativesRankingLoss, and the accuracy.

    An anchor chooses its positive among the positives and negatives of all examples (InfoNCE; van
    den Oord et al. 2018). `accuracy` is the share of the anchors for which none is more similar.

    Args:
      units: float32 [N, C, H], of length 1: anchor, positive and C - 2 negatives of each example.
      exists: bool [N, C].
      scale: factor of the cosines, the inverse of the temperature.
      symmetric: also let each positive choose among the anchors, and average both losses
        (MultipleNegativesSymmetricRankingLoss).
    """
    num_examples, _, size = units.shape
    anchors = shard_over_batch(units[:, 0])
    candidates = units[:, 1:].swapaxes(0, 1).reshape(-1, size)
    # In full precision: an accelerator's default would round the summands.
    logits = scale * jnp.matmul(anchors, candidates.T, precision=jax.lax.Precision.HIGHEST)
    is_candidate = exists[:, 1:].T.reshape(-1)
    logits = jnp.where(is_candidate, logits, jnp.finfo(jnp.float32).min)
    targets = jnp.arange(num_examples, dtype=jnp.int32)
    weights = (exists[:, 0] & exists[:, 1]).astype(jnp.float32)
    loss, weight = cross_entropy(logits, targets, weights)
    if symmetric:
        backward = jnp.where(exists[:, :1], logits[:, :num_examples], jnp.finfo(jnp.float32).min)
        loss = (loss + cross_entropy(backward.T, targets, weights)[0]) / 2
    return {
        "embeddings_loss": (loss, weight),
        "accuracy": accuracy(logits, targets, weights),
    }


def pair_cosines(units: Array) -> Array:
    """Return the cosines of pairs, float32 [N], from vectors of length 1 [N, 2, H]."""
    return jnp.sum(units[:, 0] * units[:, 1], axis=-1)


def cosent_loss(cosines: Array, scores: Array, weights: Array, scale: float) -> Sum:
    """Return the loss of CoSENTLoss: log(1 + sum of exp(scale (c_i - c_j)) for s_i < s_j).

    It is one number for the batch, with a weight of 1.

    Args:
      cosines: float32 [N], cosines c of pairs.
      scores: float32 [N], similarities s of pairs, of which only the order counts.
      weights: float32 [N], 0 for pairs that do not count.
      scale: factor of the cosines.
    """
    cosines, scores = shard_over_batch(cosines), shard_over_batch(scores)
    differences = scale * (cosines[:, None] - cosines[None, :])
    is_ordered = (scores[:, None] < scores[None, :]) & (weights[:, None] * weights[None, :] > 0)
    differences = jnp.where(is_ordered, differences, -jnp.inf)
    # The 1 in the logarithm keeps the maximum finite.
    maximum = jax.lax.stop_gradient(jnp.maximum(jnp.max(differences), 0.0))
    total = jnp.exp(-maximum) + jnp.sum(jnp.exp(differences - maximum))
    return maximum + jnp.log(total), jnp.float32(1)


def cosine_similarity_loss(cosines: Array, scores: Array, weights: Array) -> Sum:
    """Return the loss of CosineSimilarityLoss: the squared error of the cosines, float32 [N]."""
    return jnp.sum(jnp.square(cosines - scores) * weights), jnp.sum(weights)


def teacher_sums(vectors: Array, teacher: Array, weights: Array, dims: Sequence[int] = ()) -> Sums:
    """Return `embeddings_loss`, that of MSELoss, and the `cosine` of student and teacher.

    The loss of a text is the mean of the squared differences of its components. It aligns the
    student with the space of its teacher (LEAF, Vujanic and Rueckstiess 2025).

    Args:
      vectors: float32 [..., D], embeddings of the student.
      teacher: float32 [..., D], those of the teacher.
      weights: float32 [...], 0 for slots without a text.
      dims: numbers of first components whose `cosine_D` are returned too.
    """
    weight = jnp.sum(weights)
    squares = jnp.mean(jnp.square(vectors - teacher), axis=-1)
    sums = {"embeddings_loss": (jnp.sum(squares * weights), weight)}
    for size in (vectors.shape[-1], *dims):
        units = l2_normalize(vectors[..., :size]), l2_normalize(teacher[..., :size])
        name = f"cosine_{size}" if "cosine" in sums else "cosine"
        sums[name] = jnp.sum(jnp.sum(units[0] * units[1], axis=-1) * weights), weight
    return sums
