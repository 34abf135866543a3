"""Make sequence_classification_scores.npz: metrics of random predictions by scikit-learn and SciPy.

    python tests/goldens/make_sequence_classification_scores.py

Needs scikit-learn (1.9) and SciPy (1.17). Python's own generator draws the
predictions, the same on every machine, so only scores are stored. NaN: undefined metric.
"""

import math
import pathlib
import random
import warnings

import numpy as np

PATH = pathlib.Path(__file__).with_name("sequence_classification_scores.npz")
CASES = 200
CLASSES = ("accuracy", "macro_f1", "matthews_correlation", "majority_accuracy", "f1")
LABELS = ("subset_accuracy", "micro_f1", "macro_f1", "majority_accuracy")
NUMBERS = ("pearson", "spearman", "mse")
MAX_CLASSES = 6

Pair = tuple[np.ndarray, np.ndarray]  # predictions, gold


def draw_classes(case: int) -> tuple[Pair, int]:
    """Return class indices and the number of classes; some cases have constant predictions."""
    draw = random.Random(f"classes {case}")
    count, size = draw.randint(2, MAX_CLASSES), draw.randint(1, 60)
    known = draw.randint(1, count)
    gold = [draw.randrange(known) for _ in range(size)]
    predictions = [g if draw.random() < 0.6 else draw.randrange(count) for g in gold]
    if case % 5 == 1:
        predictions = [draw.randrange(count)] * size
    if case % 5 == 2:
        gold = [draw.randrange(count)] * size
    if case % 5 == 3:
        predictions = list(gold)
    if case % 10 == 4:
        predictions = [(g + 1) % count for g in gold]
    return (np.array(predictions), np.array(gold)), count


def draw_labels(case: int) -> Pair:
    """Return label sets; in some cases all are empty or full."""
    draw = random.Random(f"labels {case}")
    count, size = draw.randint(2, MAX_CLASSES), draw.randint(1, 60)
    rate = (0.0, 0.1, 0.5, 0.9, 1.0)[case % 5]
    gold = [[draw.random() < rate for _ in range(count)] for _ in range(size)]
    predictions = [[g if draw.random() < 0.7 else not g for g in row] for row in gold]
    if case % 7 == 1:
        predictions = [[case % 2 == 0] * count for _ in range(size)]
    if case % 7 == 2:
        predictions = [list(row) for row in gold]
    return np.array(predictions), np.array(gold)


def draw_numbers(case: int) -> Pair:
    """Return values; in some cases with ties, constant, or on a line."""
    draw = random.Random(f"numbers {case}")
    size, scale = draw.randint(1, 60), 10.0 ** draw.randint(-3, 3)
    gold = [scale * draw.uniform(-1, 1) for _ in range(size)]
    predictions = [g + scale * draw.uniform(-1, 1) for g in gold]
    if case % 6 == 1:
        gold, predictions = ([float(draw.randint(0, 3)) for _ in range(size)] for _ in range(2))
    if case % 6 == 2:
        predictions = [scale] * size
    if case % 6 == 3:
        gold = [0.1] * size
    if case % 6 == 4:
        predictions = [-2 * g + 1 for g in gold]
    return np.array(predictions), np.array(gold)


def single_label_metrics(pair: Pair, count: int) -> list[float]:
    from sklearn import dummy, metrics

    predictions, gold = pair
    majority = dummy.DummyClassifier(strategy="most_frequent").fit(gold[:, None], gold)
    return [
        metrics.accuracy_score(gold, predictions),
        metrics.f1_score(gold, predictions, average="macro"),
        metrics.matthews_corrcoef(gold, predictions),
        majority.score(gold[:, None], gold),
        metrics.f1_score(gold == 1, predictions == 1) if count == 2 else math.nan,
    ]


def score_each_class(pair: Pair, count: int) -> np.ndarray:
    """Return precision, recall and F1 of each class [C, 3]."""
    from sklearn import metrics

    predictions, gold = pair
    scores = metrics.precision_recall_fscore_support(gold, predictions, labels=range(count))
    return np.stack(scores[:3], axis=1)


def multi_label_metrics(pair: Pair) -> list[float]:
    from sklearn import metrics

    predictions, gold = pair
    majority_accuracy = max((gold == row).all(axis=1).mean() for row in gold)
    return [
        metrics.accuracy_score(gold, predictions),
        metrics.f1_score(gold, predictions, average="micro"),
        metrics.f1_score(gold, predictions, average="macro"),
        majority_accuracy,
    ]


def regression_metrics(pair: Pair) -> list[float]:
    from scipy import stats
    from sklearn import metrics

    few = len(pair[0]) < 2
    return [
        math.nan if few else float(stats.pearsonr(*pair).statistic),
        math.nan if few else float(stats.spearmanr(*pair).statistic),
        metrics.mean_squared_error(*pair),
    ]


def main() -> None:
    warnings.simplefilter("ignore")  # undefined metrics
    class_scores = np.full((CASES, MAX_CLASSES, 3), math.nan)
    for case in range(CASES):
        pair, count = draw_classes(case)
        class_scores[case, :count] = score_each_class(pair, count)
    np.savez_compressed(
        PATH,
        classes=[single_label_metrics(*draw_classes(case)) for case in range(CASES)],
        each=class_scores,
        labels=[multi_label_metrics(draw_labels(case)) for case in range(CASES)],
        numbers=[regression_metrics(draw_numbers(case)) for case in range(CASES)],
    )


if __name__ == "__main__":
    main()
