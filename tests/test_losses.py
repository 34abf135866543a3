"""Losses are sums with weights: they add up over any division of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.model import losses
from bertjax.model.heads import head_sums
from data_pipelines.finetuning.sequence_classification import PROBLEM_TYPES

ROWS, SLOTS, CLASSES = 6, 5, 11
cross_entropy, accuracy = jax.jit(losses.cross_entropy), jax.jit(losses.accuracy)


def draw(seed: int = 0):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (ROWS, SLOTS, CLASSES)).astype(np.float32)
    targets = random.integers(0, CLASSES, (ROWS, SLOTS)).astype(np.int32)
    weights = (random.random((ROWS, SLOTS)) < 0.7).astype(np.float32)
    return logits, targets, weights


def test_cross_entropy_equals_its_formula():
    logits, targets, weights = draw()
    exact = logits.astype(np.float64)
    probabilities = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, targets[..., None], -1)[..., 0]
    total, weight = cross_entropy(logits, targets, weights)
    np.testing.assert_allclose(total, -(np.log(chosen) * weights).sum(), rtol=1e-6)
    assert weight == weights.sum()


def test_cross_entropy_gradient_is_probability_minus_one_hot():
    logits, targets, weights = draw()
    gradient = jax.grad(lambda logits: cross_entropy(logits, targets, weights)[0])(logits)
    expected = jax.nn.softmax(logits) - jax.nn.one_hot(targets, CLASSES)
    np.testing.assert_allclose(gradient, expected * weights[..., None], atol=1e-6)


def test_cross_entropy_of_equal_logits_is_log_classes():
    zeros, targets = np.zeros((2, 3, CLASSES), np.float32), np.zeros((2, 3), np.int32)
    total, weight = cross_entropy(zeros, targets, np.ones((2, 3), np.float32))
    np.testing.assert_allclose(total / weight, np.log(CLASSES), rtol=1e-6)


def test_accuracy_counts_ties():
    logits = np.array([[[3, 3, 1]] * 3], np.float32)
    assert accuracy(logits, np.array([[0, 1, 2]]), np.ones((1, 3), np.float32)) == (2, 3)


def test_cross_entropy_of_huge_logits_is_finite():
    logits = np.array([[[1e4, -1e4]], [[-1e4, 1e4]]], np.float32)
    total, _ = cross_entropy(logits, np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))
    np.testing.assert_allclose(total, 2e4)


@pytest.mark.seconds
@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_accuracy_equals_argmax(seed):
    logits, targets, weights = draw(seed)
    expected = ((logits.argmax(-1) == targets) * weights).sum()
    assert accuracy(logits, targets, weights) == (expected, weights.sum())


@pytest.mark.seconds
@pytest.mark.parametrize("function", ["tpu_kind", "gpu_kind"])
def test_losses_are_the_same_on_accelerators(function: str, monkeypatch) -> None:
    """On TPUs and GPUs the target's logit is selected by a sum, on CPUs by a gather."""
    logits, targets, weights = draw()

    def both(logits):
        return losses.cross_entropy(logits, targets, weights)[0]

    def computed():
        sums = losses.cross_entropy(logits, targets, weights)
        return *sums, losses.accuracy(logits, targets, weights)[0], jax.grad(both)(logits)

    gathered = computed()
    monkeypatch.setattr(losses, function, lambda: "an accelerator")
    for ours, theirs in zip(computed(), gathered, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    targets[0, 0] = CLASSES
    assert np.isnan(losses.cross_entropy(logits, targets, np.ones_like(weights))[0])


def test_accuracy_of_nan_is_zero():
    logits, targets, weights = draw()
    assert accuracy(np.full_like(logits, np.nan), targets, weights)[0] == 0


@pytest.mark.seconds
@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 4]))
def test_sums_add_up_over_parts_of_a_batch(seed, cut):
    whole = draw(seed)
    for function in (cross_entropy, accuracy):
        parts = [function(*(x[part] for x in whole)) for part in (slice(cut), slice(cut, None))]
        np.testing.assert_allclose(np.sum(parts, axis=0), function(*whole), rtol=1e-5)


def test_sums_ignore_empty_slots():
    logits, targets, weights = draw()
    empty = weights == 0
    other = np.where(empty[..., None], 7, logits), np.where(empty, 3, targets)
    assert cross_entropy(logits, targets, weights) == cross_entropy(*other, weights)
    assert accuracy(logits, targets, weights) == accuracy(*other, weights)


def test_sums_without_weight_are_zero():
    logits, targets, _ = draw()
    none = np.zeros((ROWS, SLOTS), np.float32)
    assert cross_entropy(logits, targets, none) == accuracy(logits, targets, none) == (0, 0)


def test_cross_entropy_sums_bfloat16_in_float32():
    logits, targets, weights = draw()
    half = jnp.asarray(logits, jnp.bfloat16)
    total, _ = cross_entropy(half, targets, weights)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(
        total, cross_entropy(half.astype(jnp.float32), targets, weights)[0], rtol=1e-6
    )


@pytest.mark.slow
def test_head_sums_follow_the_logits():
    logits, targets, weights = draw()
    batch = {"masked_lm_ids": targets, "masked_lm_weights": weights}
    sums = head_sums({"mlm_logits": logits}, batch)
    np.testing.assert_allclose(sums["mlm_loss"], cross_entropy(logits, targets, weights), rtol=1e-6)
    assert sums["mlm_accuracy"] == accuracy(logits, targets, weights)
    assert set(sums) == {"mlm_loss", "mlm_accuracy"}

    pairs = logits[:, :2, :2], targets[:, :2] % 2, weights[:, :2]
    batch |= {"next_sentence_labels": pairs[1], "next_sentence_weights": pairs[2]}
    sums = head_sums({"mlm_logits": logits, "nsp_logits": pairs[0]}, batch)
    np.testing.assert_allclose(sums["nsp_loss"], cross_entropy(*pairs), rtol=1e-6)
    assert set(sums) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}


classification_sums = jax.jit(losses.sequence_classification_sums)
choice_sums = jax.jit(losses.multiple_choice_sums)


def log_softmax(logits):
    exact = logits.astype(np.float64)
    exact = exact - exact.max(-1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(-1, keepdims=True))


def assert_finite_gradients(function, name, logits, batch, empty, scales):
    """Check that the loss and its gradients are finite, and 0 in empty slots."""
    value_and_grad = jax.jit(jax.value_and_grad(lambda x: function(x, batch)[name][0]))
    for scale in scales:
        total, gradient = value_and_grad(scale * logits)
        assert np.isfinite(total) and np.isfinite(gradient).all()
        assert not np.asarray(gradient)[empty].any()


def draw_labels(problem_type, seed=0, classes=CLASSES):
    """Logits and a batch; weights are 0 in some slots, and fractions where classes or windows
    weigh.
    """
    random = np.random.default_rng(seed)
    shape = (ROWS, SLOTS)
    weights = random.choice([0, 0.25, 1, 3.5], shape).astype(np.float32)
    targets = {
        "single_label_classification": random.integers(0, classes, shape).astype(np.int32),
        "multi_label_classification": random.integers(0, 2, (*shape, classes)).astype(np.float32),
        "regression": random.normal(0, 3, shape).astype(np.float32),
    }[problem_type]
    logits = random.normal(0, 3, (*shape, 1 if problem_type == "regression" else classes))
    return logits.astype(np.float32), {"labels": targets, "labels_weights": weights}


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(PROBLEM_TYPES), st.integers(0, 2**32 - 1))
def test_sequence_classification_loss_follows_its_labels(problem_type, seed):
    logits, batch = draw_labels(problem_type, seed)
    targets, weights = batch["labels"], batch["labels_weights"].astype(np.float64)
    exact = logits.astype(np.float64)
    if problem_type == "single_label_classification":
        loss = -np.take_along_axis(log_softmax(logits), targets[..., None], -1)[..., 0]
    elif problem_type == "multi_label_classification":
        chances = 1 / (1 + np.exp(-exact))
        loss = -np.mean(targets * np.log(chances) + (1 - targets) * np.log(1 - chances), -1)
    else:
        loss = (exact[..., 0] - targets) ** 2
    sums = classification_sums(logits, batch)
    np.testing.assert_allclose(
        sums["sequence_classification_loss"], [(loss * weights).sum(), weights.sum()], 1e-5
    )
    assert ("accuracy" in sums) == (problem_type == "single_label_classification")
    if problem_type == "single_label_classification":
        right = ((logits.argmax(-1) == targets) * weights).sum(), weights.sum()
        np.testing.assert_allclose(sums["accuracy"], right, 1e-6)


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_sequence_classification_sums_ignore_empty_slots_and_add_up(problem_type):
    logits, batch = draw_labels(problem_type)
    empty = batch["labels_weights"] == 0
    whole = classification_sums(logits, batch)
    wide = empty.reshape(*empty.shape, *[1] * (batch["labels"].ndim - 2))
    other = batch | {"labels": np.where(wide, 1, batch["labels"])}
    assert classification_sums(np.where(empty[..., None], 7, logits), other) == whole
    parts = [
        classification_sums(logits[part], {name: array[part] for name, array in batch.items()})
        for part in (slice(2), slice(2, None))
    ]
    for name, value in whole.items():
        np.testing.assert_allclose(np.add(parts[0][name], parts[1][name]), value, rtol=1e-5)


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_sequence_classification_of_huge_logits_has_finite_gradients(problem_type):
    function, name = losses.sequence_classification_sums, "sequence_classification_loss"
    logits, batch = draw_labels(problem_type)
    empty = batch["labels_weights"] == 0
    assert_finite_gradients(function, name, logits, batch, empty, scales=(0, 1e4, -1e4))


def draw_choices(seed=0, rows=ROWS, slots=12):
    """Questions of 2 to 5 answers that fill a row from its left; of some no answer is known."""
    random = np.random.default_rng(seed)
    names = ("group_ids", "choice_labels")
    batch = {name: np.zeros((rows, slots), np.int32) for name in names}
    batch["choice_labels_weights"] = np.zeros((rows, slots), np.float32)
    for row in range(rows):
        start, group = 0, 0
        while (count := int(random.integers(2, 6))) <= slots - start and random.random() < 0.9:
            group += 1
            slots_of_group = row, slice(start, start + count)
            batch["group_ids"][slots_of_group] = group
            batch["choice_labels_weights"][slots_of_group] = random.choice([0, 1, 1, 0.5])
            batch["choice_labels"][row, start + random.integers(count)] = 1
            start += count
    logits = random.normal(0, 3, (rows, slots, 1)).astype(np.float32)
    return logits, batch


def expected_choices(logits, batch):
    loss = right = weight = 0.0
    for row, group_ids in enumerate(batch["group_ids"]):
        for group in range(1, group_ids.max() + 1):
            members = np.flatnonzero(group_ids == group)
            scores = logits[row, members, 0]
            gold = batch["choice_labels"][row, members].argmax()
            known = float(batch["choice_labels_weights"][row, members[0]])
            loss -= known * log_softmax(scores)[gold]
            right += known * (scores.argmax() == gold)
            weight += known
    return {"multiple_choice_loss": (loss, weight), "accuracy": (right, weight)}


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_multiple_choice_sums_equal_softmax_over_choices(seed):
    logits, batch = draw_choices(seed)
    sums, expected = choice_sums(logits, batch), expected_choices(logits, batch)
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, atol=1e-6)
    free = batch["group_ids"] == 0
    assert choice_sums(np.where(free[..., None], 1e9, logits), batch) == sums


def test_multiple_choice_loss_of_equal_scores_is_log_choices():
    batch = {
        "group_ids": np.array([[1, 1, 2, 2, 2, 0]]),
        "choice_labels": np.array([[0, 1, 1, 0, 0, 0]]),
        "choice_labels_weights": np.array([[1, 1, 1, 1, 1, 0]], np.float32),
    }
    loss, weight = choice_sums(np.zeros((1, 6, 1), np.float32), batch)["multiple_choice_loss"]
    np.testing.assert_allclose([loss, weight], [np.log(2) + np.log(3), 2], rtol=1e-6)


def test_multiple_choice_of_huge_scores_has_finite_gradients():
    function, name = losses.multiple_choice_sums, "multiple_choice_loss"
    logits, batch = draw_choices()
    empty = batch["group_ids"] == 0
    assert_finite_gradients(function, name, logits, batch, empty, scales=(0, 1e4, -1e30))


def test_multiple_choice_sums_without_questions_are_zero():
    logits, batch = draw_choices()
    none = {name: np.zeros_like(array) for name, array in batch.items()}
    assert choice_sums(logits, none) == {"multiple_choice_loss": (0, 0), "accuracy": (0, 0)}
    function, name, everywhere = losses.multiple_choice_sums, "multiple_choice_loss", slice(None)
    assert_finite_gradients(function, name, logits, none, everywhere, scales=(1,))


@pytest.mark.seconds
def test_null_regression_sums_equal_those_of_each_window():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 8, 2)).astype(np.float32)
    batch = {
        "example_ids": np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1] * 8]),
        "position_ids": np.array([[0, 1, 2, 0, 1, 2, 3, 0], [*range(8)]]),
        "answer_positions": np.array([[[1, 2], [3, 3]], [[0, 0], [0, 0]]]),
        "answer_positions_weights": np.array([[1.0, 1.0], [1.0, 0.0]], np.float32),
    }
    sums = losses.null_regression_sums(logits, {k: jnp.asarray(v) for k, v in batch.items()})
    null_scores = logits.sum(-1)[[0, 0, 1], [0, 3, 0]]
    np.testing.assert_allclose(
        sums["null_score_loss"], (np.square(null_scores - [0, 1, 1]).sum(), 3), rtol=1e-6
    )
    (start, _, end) = (jax.nn.log_softmax(logits[0, 1:3, i]) for i in (0, 0, 1))
    np.testing.assert_allclose(
        sums["question_answering_loss"], (-(start[0] + end[1]) / 2, 1), rtol=1e-6
    )
    assert sums["start_accuracy"][1] == 1
