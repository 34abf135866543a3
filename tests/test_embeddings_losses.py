"""Losses of embeddings: equal to those of sentence-transformers, however texts are packed."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.embeddings.losses import (
    LossOptions,
    arrange_texts,
    embeddings_sums,
    teacher_sums,
)

FOLDER = pathlib.Path(__file__).parent / "goldens"
GOLDENS, TEACHER = np.load(FOLDER / "embeddings_losses.npz"), np.load(FOLDER / "teacher_loss.npz")
RANKING = "multiple_negatives_ranking"
DIMS = (16, 8, 3)
OPTIONS = {
    "ranking_pairs": LossOptions(RANKING, 20.0),
    "ranking_negatives": LossOptions(RANKING, 5.0),
    "symmetric_pairs": LossOptions(RANKING, 20.0, symmetric=True),
    "symmetric_negatives": LossOptions(RANKING, 5.0, symmetric=True),
    "cosent": LossOptions("cosent", 20.0),
    "cosine_similarity": LossOptions("cosine_similarity", 20.0),
    "ranking_matryoshka": LossOptions(RANKING, 20.0, dims=DIMS),
    "cosent_matryoshka": LossOptions("cosent", 20.0, dims=DIMS),
    "cosine_similarity_matryoshka": LossOptions("cosine_similarity", 20.0, dims=DIMS),
}


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(options, vectors, exists, scores):
    def loss(vectors):
        sums = embeddings_sums(options, vectors, exists, scores)
        value, weight = sums["embeddings_loss"]
        return value / weight

    return jax.value_and_grad(loss)(vectors)


@pytest.mark.seconds
@pytest.mark.parametrize("name", OPTIONS)
def test_embeddings_sums_equal_those_of_sentence_transformers(name: str) -> None:
    vectors, scores = GOLDENS[f"{name}_vectors"], GOLDENS["scores"]
    exists = np.ones(vectors.shape[:2], bool)
    loss, gradient = loss_and_gradient(OPTIONS[name], vectors, exists, scores)
    np.testing.assert_allclose(loss, GOLDENS[f"{name}_loss"], rtol=1e-6)
    expected = GOLDENS[f"{name}_gradient"]
    np.testing.assert_allclose(gradient, expected, atol=1e-6 * max(1, np.abs(expected).max()))


@pytest.mark.seconds
@pytest.mark.parametrize("name", OPTIONS)
def test_embeddings_sums_leave_out_missing_examples(name: str) -> None:
    vectors, scores = GOLDENS[f"{name}_vectors"], GOLDENS["scores"]
    whole = np.ones(vectors[:7].shape[:2], bool)
    alone, gradient = loss_and_gradient(OPTIONS[name], vectors[:7], whole, scores[:7])
    vectors, scores = vectors.copy(), scores.copy()
    vectors[7:], scores[7:] = 0, 0.3  # the embeddings of no text
    exists = np.broadcast_to((np.arange(12) < 7)[:, None], vectors.shape[:2])
    loss, padded_gradient = loss_and_gradient(OPTIONS[name], vectors, exists, scores)
    np.testing.assert_allclose(loss, alone, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(padded_gradient[:7], gradient, rtol=1e-5, atol=1e-6)
    assert not np.any(padded_gradient[7:])


@jax.jit
def teacher_loss_and_gradient(vectors, teacher, weights):
    def loss(vectors):
        value, weight = teacher_sums(vectors, teacher, weights)["embeddings_loss"]
        return value / weight

    return jax.value_and_grad(loss)(vectors)


def test_teacher_sums_equal_those_of_sentence_transformers() -> None:
    arrays = [TEACHER[name] for name in ("vectors", "teacher")]
    loss, gradient = teacher_loss_and_gradient(*arrays, np.ones(12, np.float32))
    np.testing.assert_allclose(loss, TEACHER["loss"], rtol=1e-6)
    np.testing.assert_allclose(gradient, TEACHER["gradient"], atol=1e-6)
    # Slots without a text, whatever they hold.
    padded = [np.concatenate([array, array[::-1]]).reshape(4, 6, 16) for array in arrays]
    weights = (np.arange(24) < 12).reshape(4, 6).astype(np.float32)
    again, padded_gradient = teacher_loss_and_gradient(*padded, weights)
    np.testing.assert_allclose(again, loss, rtol=1e-6)
    np.testing.assert_allclose(padded_gradient.reshape(24, 16)[:12], gradient, atol=1e-7)
    assert not np.any(padded_gradient.reshape(24, 16)[12:])


@pytest.mark.seconds
def test_teacher_sums_of_the_teacher_itself() -> None:
    teacher, weights = TEACHER["teacher"], np.ones(12, np.float32)
    loss, gradient = teacher_loss_and_gradient(teacher, teacher, weights)
    assert float(loss) == 0 and not np.any(gradient)
    sums = teacher_sums(jnp.asarray(teacher), jnp.asarray(teacher), jnp.asarray(weights), (8, 3))
    assert [*sums] == ["embeddings_loss", "cosine", "cosine_8", "cosine_3"]
    for name in ("cosine", "cosine_8", "cosine_3"):
        np.testing.assert_allclose(sums[name][0] / sums[name][1], 1, rtol=1e-6)


@pytest.mark.seconds
def test_accuracy_is_the_share_of_anchors_nearest_to_their_positive() -> None:
    units = np.eye(4, dtype=np.float32)
    vectors = np.stack([units, units], axis=1)
    vectors[2, 1] = -units[2]  # less similar than the positives of the others
    sums = embeddings_sums(LossOptions(RANKING, 20.0), vectors, np.ones((4, 2), bool), None)
    assert float(sums["accuracy"][0]) == 3 and float(sums["accuracy"][1]) == 4


@pytest.mark.seconds
@given(st.permutations(range(12)), st.integers(0, 2))
def test_arrange_texts_undoes_packing(order: list[int], num_empty: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    slots, weights = np.zeros((4, 6), np.int32), np.zeros((4, 6), np.float32)
    embeddings = np.full((4, 6, 5), 7, np.float32)  # of empty slots
    for place, text in enumerate(order[: len(order) - num_empty]):
        cell = divmod(place * 2, 6)
        slots[cell], weights[cell], embeddings[cell] = text, 1, vectors[text]
    arranged, exists = arrange_texts(*map(jnp.asarray, (embeddings, slots, weights)), 4, 3)
    missing = order[len(order) - num_empty :]
    expected = vectors.copy()
    expected[missing] = 0
    np.testing.assert_array_equal(arranged.reshape(12, 5), expected)
    assert np.flatnonzero(~np.asarray(exists).reshape(-1)).tolist() == sorted(missing)


@pytest.mark.parametrize("copies", [1, 2, 4])
def test_copies_of_a_positive_in_a_batch_are_negatives_that_cannot_be_learned(copies: int) -> None:
    """Show the cost that distinct batches avoid: a loss that no embeddings reduce."""
    count, options = 8, LossOptions(RANKING, 100.0)
    random = np.random.default_rng(0)
    exists = np.ones((count, 2), bool)
    floor = copies * np.log(copies) / count

    def repeat(vectors: np.ndarray) -> np.ndarray:
        vectors[:copies, 1] = vectors[0, 1]
        return vectors.astype(np.float32)

    for _ in range(5):
        loss, _ = loss_and_gradient(
            options, repeat(random.normal(size=(count, 2, 16))), exists, None
        )
        assert float(loss) >= floor
    passages = np.eye(count)
    best = repeat(np.stack([passages, passages], axis=1))
    best[:copies, 0] = best[0, 0]  # questions about one passage
    loss, gradient = loss_and_gradient(options, best, exists, None)
    assert float(loss) == pytest.approx(floor, abs=1e-5)
    # Under dropout the copies differ. The best embeddings are then pushed apart.
    noisy = best + 0.05 * random.normal(size=best.shape).astype(np.float32)
    _, gradient = loss_and_gradient(options, noisy, exists, None)
    size = float(np.abs(np.asarray(gradient)[:, 1]).max())
    assert size > 0.1 if copies > 1 else size < 1e-6
