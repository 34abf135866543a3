"""Metrics of sequence classification equal scikit-learn's and SciPy's.

goldens/make_sequence_classification_scores.py made the goldens with them. An undefined metric is 0.
"""

import numpy as np
import pytest
from goldens import make_sequence_classification_scores as recipe
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.sequence_classification.metrics import (
    macro_f1,
    matthews_correlation,
    multi_label_metrics,
    pearson,
    precision_recall_f1,
    regression_metrics,
    single_label_metrics,
)

GOLDEN = np.load(recipe.PATH)
CASES = range(recipe.CASES)


def assert_equal_metrics(actual: list, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, np.nan_to_num(expected), rtol=0, atol=1e-12)


def test_single_label_metrics_equal_scikit_learn() -> None:
    for case, expected in zip(CASES, GOLDEN["classes"], strict=True):
        pair, count = recipe.draw_classes(case)
        metrics = single_label_metrics(*pair, count)
        assert ("f1" in metrics) == (count == 2)
        assert_equal_metrics([metrics.get(name, 0) for name in recipe.CLASSES], expected)


def test_precision_recall_f1_equals_scikit_learn() -> None:
    for case, expected in zip(CASES, GOLDEN["each"], strict=True):
        pair, count = recipe.draw_classes(case)
        assert_equal_metrics(precision_recall_f1(*pair, range(count)), expected[:count])


def test_multi_label_metrics_equal_scikit_learn() -> None:
    for case, expected in zip(CASES, GOLDEN["labels"], strict=True):
        metrics = multi_label_metrics(*recipe.draw_labels(case))
        assert_equal_metrics([metrics[name] for name in recipe.LABELS], expected)


def test_regression_metrics_equal_scipy() -> None:
    for case, expected in zip(CASES, GOLDEN["numbers"], strict=True):
        pair = recipe.draw_numbers(case)
        metrics = regression_metrics(*pair)
        size = max(1.0, *(np.square(values).max() for values in pair))
        assert_equal_metrics(
            [metrics["pearson"], metrics["spearman"], metrics["mse"] / size],
            expected / [1, 1, size],
        )


def test_goldens_include_undefined_and_perfect_scores() -> None:
    missing = {name: np.isnan(GOLDEN[name]).any(axis=-1) for name in ("classes", "numbers")}
    assert 0.2 < missing["numbers"].mean() < 0.6
    assert (GOLDEN["classes"][:, 2] == 0).mean() > 0.2 and (GOLDEN["classes"][:, 0] == 1).any()
    assert (GOLDEN["labels"][:, 1] == 0).any() and (GOLDEN["labels"][:, 0] == 1).any()


classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1)


@given(classes, st.permutations(range(5)))
def test_macro_f1_and_matthews_ignore_class_numbers(pairs: list, names: list[int]) -> None:
    predictions, gold = np.array(pairs).T
    other = np.array(names)
    for score in (macro_f1, matthews_correlation):
        assert score(predictions, gold) == pytest.approx(
            score(other[predictions], other[gold]), abs=1e-12
        )
        assert -1 <= score(predictions, gold) <= 1


@given(classes)
def test_perfect_predictions_score_1_in_any_order(pairs: list) -> None:
    predictions, gold = np.array(pairs).T
    assert macro_f1(gold, gold) == 1
    assert matthews_correlation(gold, gold) == (1 if len(set(gold)) > 1 else 0)
    forward, backward = (
        single_label_metrics(predictions, gold, 5),
        single_label_metrics(predictions[::-1], gold[::-1], 5),
    )
    assert forward == pytest.approx(backward, abs=1e-12)


numbers = st.lists(st.integers(-50, 50), min_size=2, max_size=30)


@pytest.mark.seconds
@given(numbers, st.integers(1, 9), st.integers(-9, 9))
def test_correlations_of_a_line_are_1(values: list[int], slope: int, shift: int) -> None:
    gold = np.array(values, float)
    expected = 0 if np.ptp(gold) == 0 else 1
    for sign in (1, -1):
        metrics = regression_metrics(sign * slope * gold + shift, gold)
        assert metrics["pearson"] == pytest.approx(sign * expected, abs=1e-12)
        assert metrics["spearman"] == pytest.approx(sign * expected, abs=1e-12)


@pytest.mark.seconds
@given(numbers)
def test_spearman_depends_on_ranks_only(values: list[int]) -> None:
    gold = np.arange(len(values), dtype=float)
    predictions = np.array(values, float)
    assert regression_metrics(predictions, gold)["spearman"] == pytest.approx(
        regression_metrics(predictions**3, gold)["spearman"], abs=1e-12
    )


def test_pearson_is_stable_for_large_values() -> None:
    gold = np.arange(10.0)
    assert pearson(1e150 * gold, gold) == pytest.approx(1)
    assert pearson(1e6 + 1e-3 * gold, gold) == pytest.approx(1)
