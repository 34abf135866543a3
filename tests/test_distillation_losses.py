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
    ("token_classification", "token_labels_weights"),
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
