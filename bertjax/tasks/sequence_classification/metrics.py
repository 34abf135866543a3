"""What predictions of classes, labels and numbers are worth.

Each equals scikit-learn's or SciPy's of its name, with their defaults. Where theirs is not defined
(nothing to divide by, or values that are all the same), ours is 0.
"""

from collections.abc import Sequence

import numpy as np


def single_label_metrics(predictions: np.ndarray, gold: np.ndarray, count: int) -> dict[str, float]:
    """Scores of classes, int [N] both, of which there are `count`.

    `accuracy`; `macro_f1`, over the classes that occur; `matthews_correlation`; of two classes `f1`, of the
    second; and `majority_accuracy`, the accuracy of always saying what most examples are.
    """
    scores = {
        "accuracy": float(np.mean(predictions == gold)),
        "macro_f1": macro_f1(predictions, gold),
        "matthews_correlation": matthews_correlation(predictions, gold),
        "majority_accuracy": float(np.bincount(gold).max() / len(gold)),
    }
    return scores | ({"f1": _f1_of(predictions == 1, gold == 1)} if count == 2 else {})


def multi_label_metrics(predictions: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Scores of sets of labels, bool [N, C] both.

    `exact`, the share of examples whose whole set is right; `micro_f1`, over all labels of all
    examples; `macro_f1`, the mean over the labels; and `majority_accuracy`, the `exact` of always saying
    the most frequent set.
    """
    _, counts = np.unique(gold, axis=0, return_counts=True)
    columns = zip(predictions.T, gold.T, strict=True)
    return {
        "exact": float(np.mean(np.all(predictions == gold, axis=1))),
        "micro_f1": _f1_of(predictions, gold),
        "macro_f1": float(np.mean([_f1_of(*column) for column in columns])),
        "majority_accuracy": float(counts.max() / len(gold)),
    }


def regression_metrics(predictions: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Scores of numbers, float [N] both: `pearson`, `spearman` and `mse`."""
    return {
        "pearson": pearson(predictions, gold),
        "spearman": pearson(_ranks(predictions), _ranks(gold)),
        "mse": float(np.mean(np.square(predictions - gold))),
    }


def f1_by_class(
    predictions: np.ndarray, gold: np.ndarray, classes: Sequence[int]
) -> list[tuple[float, float, float]]:
    """Precision, recall and F1 of each of the classes."""
    found = []
    for each in classes:
        mine, right = predictions == each, gold == each
        both = np.sum(mine & right)
        rates = _ratio(both, np.sum(mine)), _ratio(both, np.sum(right))
        found.append((*rates, _f1_of(mine, right)))
    return found


def macro_f1(predictions: np.ndarray, gold: np.ndarray) -> float:
    """The mean of the F1 of each class that was said or is gold."""
    classes = np.union1d(predictions, gold)
    return float(np.mean([_f1_of(predictions == each, gold == each) for each in classes]))


def matthews_correlation(predictions: np.ndarray, gold: np.ndarray) -> float:
    """The correlation of classes (Gorodkin 2004; of two, Matthews 1975)."""
    classes = np.union1d(predictions, gold)
    table = np.zeros((len(classes), len(classes)))
    np.add.at(table, (np.searchsorted(classes, gold), np.searchsorted(classes, predictions)), 1)
    of_gold, of_said = table.sum(axis=1), table.sum(axis=0)
    total, right = table.sum(), np.trace(table)
    spread = (total**2 - of_said @ of_said) * (total**2 - of_gold @ of_gold)
    return float((right * total - of_gold @ of_said) / np.sqrt(spread)) if spread else 0.0


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """The linear correlation of two float [N]."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = (each - each.mean() for each in (x.astype(np.float64), y.astype(np.float64)))
    correlation = (x / np.linalg.norm(x)) @ (y / np.linalg.norm(y))
    return float(np.clip(correlation, -1, 1))


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _f1_of(predictions: np.ndarray, gold: np.ndarray) -> float:
    """Of booleans of one shape."""
    return _ratio(2 * np.sum(predictions & gold), np.sum(predictions) + np.sum(gold))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
