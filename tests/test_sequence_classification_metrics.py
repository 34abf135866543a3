"""Scores of classes, labels and numbers are those of scikit-learn and SciPy.

The goldens are theirs; goldens/make_sentence_scores.py made them. Where theirs is not defined, ours
is 0.
"""

import numpy as np
import pytest
from goldens import make_sentence_scores as recipe
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.sequence_classification.metrics import (
    f1_by_class,
    macro_f1,
    matthews_correlation,
    multi_label_metrics,
    pearson,
    regression_metrics,
    single_label_metrics,
)

GOLDEN = np.load(recipe.PATH)
CASES = range(recipe.CASES)


def same(ours: list, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, np.nan_to_num(theirs), rtol=0, atol=1e-12)


def test_scores_of_classes_are_those_of_scikit_learn() -> None:
    for case, theirs in zip(CASES, GOLDEN["classes"], strict=True):
        pair, count = recipe.draw_classes(case)
        found = single_label_metrics(*pair, count)
        assert ("f1" in found) == (count == 2)
        same([found.get(name, 0) for name in recipe.CLASSES], theirs)


def test_so_are_those_of_each_class() -> None:
    for case, theirs in zip(CASES, GOLDEN["each"], strict=True):
        pair, count = recipe.draw_classes(case)
        same(f1_by_class(*pair, range(count)), theirs[:count])


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    for case, theirs in zip(CASES, GOLDEN["labels"], strict=True):
        found = multi_label_metrics(*recipe.draw_labels(case))
        same([found[name] for name in recipe.LABELS], theirs)


def test_scores_of_numbers_are_those_of_scipy() -> None:
    for case, theirs in zip(CASES, GOLDEN["numbers"], strict=True):
        pair = recipe.draw_numbers(case)
        found = regression_metrics(*pair)
        size = max(1.0, *(np.square(each).max() for each in pair))
        same([found["pearson"], found["spearman"], found["mse"] / size], theirs / [1, 1, size])


def test_of_the_goldens_some_are_not_defined_and_most_are() -> None:
    """The draws reach the corners that they are for."""
    missing = {name: np.isnan(GOLDEN[name]).any(axis=-1) for name in ("classes", "numbers")}
    assert 0.2 < missing["numbers"].mean() < 0.6
    assert (GOLDEN["classes"][:, 2] == 0).mean() > 0.2 and (GOLDEN["classes"][:, 0] == 1).any()
    assert (GOLDEN["labels"][:, 1] == 0).any() and (GOLDEN["labels"][:, 0] == 1).any()


classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1)


@given(classes, st.permutations(range(5)))
def test_names_of_classes_count_for_nothing(pairs: list, names: list[int]) -> None:
    said, gold = np.array(pairs).T
    other = np.array(names)
    for score in (macro_f1, matthews_correlation):
        assert score(said, gold) == pytest.approx(score(other[said], other[gold]), abs=1e-12)
        assert -1 <= score(said, gold) <= 1


@given(classes)
def test_all_right_is_1_and_the_order_of_examples_is_nothing(pairs: list) -> None:
    said, gold = np.array(pairs).T
    assert macro_f1(gold, gold) == 1
    assert matthews_correlation(gold, gold) == (1 if len(set(gold)) > 1 else 0)
    forth, back = (
        single_label_metrics(said, gold, 5),
        single_label_metrics(said[::-1], gold[::-1], 5),
    )
    assert forth == pytest.approx(back, abs=1e-12)


numbers = st.lists(st.integers(-50, 50), min_size=2, max_size=30)


@given(numbers, st.integers(1, 9), st.integers(-9, 9))
def test_a_line_is_a_whole_correlation(values: list[int], slope: int, shift: int) -> None:
    gold = np.array(values, float)
    whole = 0 if np.ptp(gold) == 0 else 1
    for sign in (1, -1):
        found = regression_metrics(sign * slope * gold + shift, gold)
        assert found["pearson"] == pytest.approx(sign * whole, abs=1e-12)
        assert found["spearman"] == pytest.approx(sign * whole, abs=1e-12)


@given(numbers)
def test_ranks_alone_count_for_spearman(values: list[int]) -> None:
    gold = np.arange(len(values), dtype=float)
    said = np.array(values, float)
    assert regression_metrics(said, gold)["spearman"] == pytest.approx(
        regression_metrics(said**3, gold)["spearman"], abs=1e-12
    )


def test_what_is_far_from_0_or_huge_is_still_a_correlation() -> None:
    gold = np.arange(10.0)
    assert pearson(1e150 * gold, gold) == pytest.approx(1)
    assert pearson(1e6 + 1e-3 * gold, gold) == pytest.approx(1)
