"""Losses between student and teacher, against PyTorch and against what they must be."""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model import distillation_losses as losses
from bertjax.model.heads import HEADS

GOLDENS = dict(np.load(pathlib.Path(__file__).parent / "goldens" / "distillation.npz"))
EXAMPLE_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0], [1] * 5 + [2] * 4 + [0] * 3])
SHAPES = {"single_label": ((2, 3), np.int32), "multi_label": ((2, 3, 5), np.float32)}


def batch_of(name: str) -> dict:
    shape, dtype = SHAPES.get(name, ((2, 3), np.float32))
    return {
        "example_ids": EXAMPLE_IDS,
        "labels": np.zeros(shape, dtype),
        "answer_positions_weights": np.zeros((2, 3), np.float32),
        "group_ids": np.array([[1, 1, 2], [1, 1, 0]]),
    }


def loss_of(name: str) -> tuple[str, Callable]:
    """Return the name of the inputs of a loss, and the loss as a function of both models'."""
    if name in ("cosine", "mse"):
        return "states", lambda s, t: losses.hidden_state_loss(s[None], t[None], EXAMPLE_IDS, name)
    if name == "relations":
        return "vectors", lambda s, t: losses.relation_loss(s, t, EXAMPLE_IDS, 4)
    kind, _, temperature = name.rpartition("_") if name != "regression" else (name, "", "1")
    inputs = {"question_answering": "tokens", "multiple_choice": "choices"}.get(kind, "slots")
    head = kind if kind in HEADS else "sequence_classification"
    soft_loss, value = HEADS[head].soft_loss, jnp.float32(float(temperature))
    inputs = "regression" if kind == "regression" else inputs
    return inputs, lambda s, t: soft_loss(s, t, batch_of(kind), value)


NAMES = sorted(name.removesuffix("_sum") for name in GOLDENS if name.endswith("_sum"))


@pytest.mark.seconds
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_pytorch(name: str) -> None:
    inputs, loss = loss_of(name)
    student, teacher = (
        jnp.asarray(GOLDENS[f"{inputs}_{model}"], jnp.float32) for model in ("student", "teacher")
    )
    value, weight = loss(student, teacher)
    assert weight == GOLDENS[f"{name}_weight"]
    np.testing.assert_allclose(value, GOLDENS[f"{name}_sum"], rtol=1e-6)
    gradient = jax.grad(lambda s: loss(s, teacher)[0])(student)
    np.testing.assert_allclose(gradient, GOLDENS[f"{name}_gradient"], rtol=1e-6, atol=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_of_equal_models_are_zero(name: str) -> None:
    inputs, loss = loss_of(name)
    teacher = jnp.asarray(GOLDENS[f"{inputs}_teacher"], jnp.float32)
    value, gradient = jax.value_and_grad(lambda s: loss(s, teacher)[0])(teacher)
    np.testing.assert_allclose(value, 0, atol=1e-5)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize(("head", "weights"), [
    ("mlm", "masked_lm_weights"),
    ("nsp", "next_sentence_weights"),
])  # fmt: skip
def test_losses_of_weighted_slots_ignore_those_of_weight_0(head: str, weights: str) -> None:
    student, teacher = GOLDENS["slots_student"], GOLDENS["slots_teacher"]
    slots = np.array([[1, 0, 1], [0, 0, 1]], np.float32)
    value, weight = HEADS[head].soft_loss(student, teacher, {weights: slots}, jnp.float32(1))
    expected = sum(
        float(losses.soft_cross_entropy(student[x], teacher[x], jnp.float32(1), jnp.float32(1))[0])
        for x in [(0, 0), (0, 2), (1, 2)]
    )
    assert weight == 3
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_loss_of_words_reads_those_without_a_tag() -> None:
    student, teacher = GOLDENS["slots_student"], GOLDENS["slots_teacher"]
    batch = {
        "token_labels": np.array([[2, 0, -1], [0, -1, 0]], np.int32),
        "token_labels_weights": np.array([[1, 0, 0], [1, 0, 0]], np.float32),
    }
    soft_loss = HEADS["token_classification"].soft_loss
    value, weight = soft_loss(student, teacher, batch, jnp.float32(1))
    slots = {"masked_lm_weights": np.array([[1, 0, 1], [1, 1, 0]], np.float32)}
    assert (value, weight) == HEADS["mlm"].soft_loss(student, teacher, slots, jnp.float32(1))
    assert weight == 4


@pytest.mark.seconds
def test_merged_classes_have_the_sum_of_their_probabilities() -> None:
    logits = np.random.default_rng(0).normal(scale=4, size=(2, 3, 50)).astype(np.float32)
    ids = np.argsort(-logits, axis=-1)[..., :5]
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=-1, keepdims=True)
    kept = np.take_along_axis(p, ids, -1)
    expected = np.concatenate([kept, 1 - kept.sum(-1, keepdims=True)], -1)
    merged = losses.merge_omitted(logits, jnp.asarray(ids))
    np.testing.assert_allclose(jax.nn.softmax(merged), expected, rtol=2e-6, atol=5e-7)


@pytest.mark.seconds
@pytest.mark.parametrize("scale", [1, 30])  # of 30 the others have less than 1e-6
def test_loss_of_the_largest_logits_is_zero_for_equal_models(scale: float) -> None:
    logits = scale * np.random.default_rng(0).normal(size=(2, 3, 50)).astype(np.float32)
    ids = jnp.asarray(np.argsort(-logits, axis=-1)[..., :5])
    teacher, weights = losses.merge_omitted(logits, ids), jnp.ones((2, 3))

    def loss(student):
        merged = losses.merge_omitted(student, ids)
        return losses.soft_cross_entropy(merged, teacher, weights, jnp.float32(2))[0]

    value, gradient = jax.value_and_grad(loss)(logits)
    assert value == 0
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
