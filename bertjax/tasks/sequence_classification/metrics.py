"""Metrics of single-label classification, multi-label classification and regression.

Each equals scikit-learn's or SciPy's metric of that name with default arguments. Where theirs is
undefined (an empty denominator, constant values), the value here is 0.
"""

from collections.abc import Sequence

import numpy as np
import scipy  # loads scipy.stats when it is used: its import takes 0.5 s


def single_label_metrics(
    predictions: np.ndarray, gold: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Return the metrics of class indices, int [N].

    Returns:
      `accuracy`; `macro_f1` over the classes that occur; `matthews_correlation`;
      `majority_accuracy`, the accuracy of predicting the most frequent gold class everywhere; for
      two classes also `f1` of the second one.
    """
    scores = {
        "accuracy": float(np.mean(predictions == gold)),
        "macro_f1": macro_f1(predictions, gold),
        "matthews_correlation": matthews_correlation(predictions, gold),
        "majority_accuracy": float(np.bincount(gold).max() / len(gold)),
    }
    return scores | ({"f1": _binary_f1(predictions == 1, gold == 1)} if num_classes == 2 else {})


def multi_label_metrics(predictions: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the metrics of label sets, bool [N, C].

    Returns:
      `subset_accuracy`, the share of examples whose labels are all correct; `micro_f1` over all
      labels of all examples; `macro_f1`, the mean over labels; `majority_accuracy`, the subset
      accuracy of predicting the most frequent gold set everywhere.
    """
    _, counts = np.unique(gold, axis=0, return_counts=True)
    columns = zip(predictions.T, gold.T, strict=True)
    return {
        "subset_accuracy": float(np.mean(np.all(predictions == gold, axis=1))),
        "micro_f1": _binary_f1(predictions, gold),
        "macro_f1": float(np.mean([_binary_f1(*column) for column in columns])),
        "majority_accuracy": float(counts.max() / len(gold)),
    }


def regression_metrics(predictions: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return `pearson`, `spearman` and `mse` of values, float [N]."""
    return {
        "pearson": pearson(predictions, gold),
        "spearman": pearson(scipy.stats.rankdata(predictions), scipy.stats.rankdata(gold)),
        "mse": float(np.mean(np.square(predictions - gold))),
    }


def precision_recall_f1(
    predictions: np.ndarray, gold: np.ndarray, classes: Sequence[int]
) -> list[tuple[float, float, float]]:
    """Return precision, recall and F1 of each class."""
    scores = []
    for index in classes:
        predicted, actual = predictions == index, gold == index
        correct = np.sum(predicted & actual)
        rates = _ratio(correct, np.sum(predicted)), _ratio(correct, np.sum(actual))
        scores.append((*rates, _binary_f1(predicted, actual)))
    return scores


def macro_f1(predictions: np.ndarray, gold: np.ndarray) -> float:
    """Return the mean F1 of the classes that are predicted or gold."""
    classes = np.union1d(predictions, gold)
    return float(np.mean([_binary_f1(predictions == index, gold == index) for index in classes]))


def matthews_correlation(predictions: np.ndarray, gold: np.ndarray) -> float:
    """Return the correlation of class indices (Matthews 1975; several classes: Gorodkin 2004)."""
    classes = np.union1d(predictions, gold)
    confusion = np.zeros((len(classes), len(classes)))
    np.add.at(confusion, (np.searchsorted(classes, gold), np.searchsorted(classes, predictions)), 1)
    gold_counts, predicted_counts = confusion.sum(axis=1), confusion.sum(axis=0)
    total, correct = confusion.sum(), np.trace(confusion)
    variances = (total**2 - predicted_counts @ predicted_counts) * (
        total**2 - gold_counts @ gold_counts
    )
    if not variances:
        return 0.0
    return float((correct * total - gold_counts @ predicted_counts) / np.sqrt(variances))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation of two float [N]; 0 where one is constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(scipy.stats.pearsonr(x, y).statistic)


def _binary_f1(predictions: np.ndarray, gold: np.ndarray) -> float:
    """Return the F1 of booleans of one shape."""
    return _ratio(2 * np.sum(predictions & gold), np.sum(predictions) + np.sum(gold))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
