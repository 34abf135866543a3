"""Makes sentence_scores.npz: what scikit-learn and SciPy say of predictions drawn here.

    python tests/goldens/make_sentence_scores.py

Needs scikit-learn (1.9) and SciPy (1.17). The predictions come from Python's own generator, which
is the same everywhere, so that only the scores are kept. NaN stands where one is not defined.
"""

import math
import pathlib
import random
import warnings

import numpy as np

PATH = pathlib.Path(__file__).with_name("sentence_scores.npz")
CASES = 200
CLASSES = ("accuracy", "macro_f1", "matthews_correlation", "majority_accuracy", "f1")
LABELS = ("exact", "micro_f1", "macro_f1", "majority_accuracy")
NUMBERS = ("pearson", "spearman", "mse")
MOST = 6  # classes

Pair = tuple[np.ndarray, np.ndarray]  # said, gold


def draw_classes(case: int) -> tuple[Pair, int]:
    """Classes, and how many there are; of some cases few occur, or all are said to be one."""
    draw = random.Random(f"classes {case}")
    count, size = draw.randint(2, MOST), draw.randint(1, 60)
    known = draw.randint(1, count)
    gold = [draw.randrange(known) for _ in range(size)]
    said = [g if draw.random() < 0.6 else draw.randrange(count) for g in gold]
    if case % 5 == 1:
        said = [draw.randrange(count)] * size
    if case % 5 == 2:
        gold = [draw.randrange(count)] * size
    if case % 5 == 3:
        said = list(gold)
    if case % 10 == 4:
        said = [(g + 1) % count for g in gold]
    return (np.array(said), np.array(gold)), count


def draw_labels(case: int) -> Pair:
    """Sets of labels; of some cases all are empty, or full, or no two examples have one."""
    draw = random.Random(f"labels {case}")
    count, size = draw.randint(2, MOST), draw.randint(1, 60)
    rate = (0.0, 0.1, 0.5, 0.9, 1.0)[case % 5]
    gold = [[draw.random() < rate for _ in range(count)] for _ in range(size)]
    said = [[g if draw.random() < 0.7 else not g for g in row] for row in gold]
    if case % 7 == 1:
        said = [[case % 2 == 0] * count for _ in range(size)]
    if case % 7 == 2:
        said = [list(row) for row in gold]
    return np.array(said), np.array(gold)


def draw_numbers(case: int) -> Pair:
    """Numbers; of some cases many are the same, or all, or they lie on a line."""
    draw = random.Random(f"numbers {case}")
    size, scale = draw.randint(1, 60), 10.0 ** draw.randint(-3, 3)
    gold = [scale * draw.uniform(-1, 1) for _ in range(size)]
    said = [g + scale * draw.uniform(-1, 1) for g in gold]
    if case % 6 == 1:
        gold, said = ([float(draw.randint(0, 3)) for _ in range(size)] for _ in range(2))
    if case % 6 == 2:
        said = [scale] * size
    if case % 6 == 3:
        gold = [0.1] * size
    if case % 6 == 4:
        said = [-2 * g + 1 for g in gold]
    return np.array(said), np.array(gold)


def single_label_metrics(pair: Pair, count: int) -> list[float]:
    from sklearn import dummy, metrics

    said, gold = pair
    most = dummy.DummyClassifier(strategy="most_frequent").fit(gold[:, None], gold)
    return [
        metrics.accuracy_score(gold, said),
        metrics.f1_score(gold, said, average="macro"),
        metrics.matthews_corrcoef(gold, said),
        most.score(gold[:, None], gold),
        metrics.f1_score(gold == 1, said == 1) if count == 2 else math.nan,
    ]


def score_each_class(pair: Pair, count: int) -> np.ndarray:
    """Precision, recall and F1 of each class [C, 3]."""
    from sklearn import metrics

    said, gold = pair
    found = metrics.precision_recall_fscore_support(gold, said, labels=range(count))
    return np.stack(found[:3], axis=1)


def multi_label_metrics(pair: Pair) -> list[float]:
    from sklearn import metrics

    said, gold = pair
    majority_accuracy = max((gold == row).all(axis=1).mean() for row in gold)
    return [
        metrics.accuracy_score(gold, said),
        metrics.f1_score(gold, said, average="micro"),
        metrics.f1_score(gold, said, average="macro"),
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
    warnings.simplefilter("ignore")  # of what is not defined
    each = np.full((CASES, MOST, 3), math.nan)
    for case in range(CASES):
        pair, count = draw_classes(case)
        each[case, :count] = score_each_class(pair, count)
    np.savez_compressed(
        PATH,
        classes=[single_label_metrics(*draw_classes(case)) for case in range(CASES)],
        each=each,
        labels=[multi_label_metrics(draw_labels(case)) for case in range(CASES)],
        numbers=[regression_metrics(draw_numbers(case)) for case in range(CASES)],
    )


if __name__ == "__main__":
    main()
