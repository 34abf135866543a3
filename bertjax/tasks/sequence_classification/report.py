"""What a model said of sentences, or chose of answers, as one HTML page: scores and its errors."""

import collections
from collections.abc import Sequence

import numpy as np
from etils import epath

from bertjax.html.page import page, section, table
from bertjax.html.plots import STYLE, confusion_matrix, reliability_diagram, scatter
from bertjax.html.tables import eval_set_table
from bertjax.tasks.saved_evaluation import ERROR_TABLE_STYLE, PredictionEntry, read_evaluation
from bertjax.tasks.sequence_classification.metrics import precision_recall_f1

MAX_ERRORS_SHOWN = 24  # of the surest errors
MAX_MATRIX_CLASSES = 20  # that a matrix has room for
MAX_CONFUSIONS = 24  # of labels that are taken for each other most often, where there is no matrix
TITLES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "macro_f1": "Macro F1",
    "micro_f1": "Micro F1",
    "subset_accuracy": "Subset accuracy",
    "matthews_correlation": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mse": "Squared error",
}


def render(
    name: str, directory: epath.Path, sets: Sequence[tuple[str, Sequence[str]]], problem_type: str
) -> str:
    """The page of an evaluation.

    Args:
      directory: where `bertjax evaluate` wrote it.
      sets: name and texts of each data set.
      problem_type: one of `PROBLEM_TYPES`, or "multiple_choice".
    Raises:
      InputError: the files are not those of an evaluation of these texts.
    """
    evaluation = read_evaluation(directory, {name: len(own) for name, own in sets})
    entries, scores = evaluation.predictions, evaluation.scores
    texts = [text for _, own in sets for text in own]
    parts = [
        f"<style>{STYLE}{ERROR_TABLE_STYLE}</style>\n",
        evaluation.render_header(name, TITLES, "Examples"),
    ]
    of_sets = eval_set_table(scores, TITLES)
    parts.append(section("Data sets", table(*of_sets) if of_sets.rows else ""))
    parts += {
        "regression": _render_regression,
        "multi_label_classification": _render_multi_label,
    }.get(problem_type, _render_single_label)(entries, texts, problem_type)
    return page(name, parts)


def _render_single_label(
    entries: Sequence[PredictionEntry], texts: Sequence[str], problem_type: str
) -> list[str]:
    predictions, gold = ([each[key] for each in entries] for key in ("label", "gold"))
    names = list(dict.fromkeys(name for each in entries for name in each["probabilities"]))
    numbers = {name: i for i, name in enumerate(names)}
    mine, right = (np.array([numbers[name] for name in each]) for each in (predictions, gold))
    chances = [each["probability"] for each in entries]
    curve = reliability_diagram(chances, [a == b for a, b in zip(predictions, gold, strict=True)])
    parts = [section("How sure, how right", f'<div class="pair">{curve}</div>')]
    if problem_type != "multiple_choice":
        parts.append(section("Labels", _by_label(names, mine, right)))
        parts.append(section("Taken for one another", _confusions(names, mine, right)))
    wrong = [i for i, (a, b) in enumerate(zip(predictions, gold, strict=True)) if a != b]
    wrong.sort(key=lambda i: -chances[i])
    rows = [
        (f"{chances[i]:.0%}", predictions[i], gold[i], entries[i]["id"], texts[i])
        for i in wrong[:MAX_ERRORS_SHOWN]
    ]
    head = ("Sure", "Said", "Gold", "Example", "Text")
    note = f'<p class="aside">{len(wrong):,} errors in all; the surest first.</p>\n'
    parts.append(section("Surest errors", note + table(head, rows, "errors") if rows else ""))
    return parts


def _by_label(names: Sequence[str], predictions: np.ndarray, gold: np.ndarray) -> str:
    counts = np.bincount(gold, minlength=len(names))
    rates = precision_recall_f1(predictions, gold, range(len(names)))
    order = sorted(range(len(names)), key=lambda i: rates[i][2])
    rows = [(names[i], f"{counts[i]:,}", *(f"{rate:.3f}" for rate in rates[i])) for i in order]
    return table(("Label", "Examples", "Precision", "Recall", "F1"), rows, "evaluations")


def _confusions(names: Sequence[str], predictions: np.ndarray, gold: np.ndarray) -> str:
    if len(names) <= MAX_MATRIX_CLASSES:
        counts = np.zeros((len(names), len(names)), int)
        np.add.at(counts, (gold, predictions), 1)
        return confusion_matrix("Confusions", names, counts.tolist())
    pairs = collections.Counter(
        (names[g], names[s]) for g, s in zip(gold, predictions, strict=True) if g != s
    )
    rows = [(g, s, f"{count:,}") for (g, s), count in pairs.most_common(MAX_CONFUSIONS)]
    return table(("Gold", "Said", "Examples"), rows)


def _render_multi_label(
    entries: Sequence[PredictionEntry], texts: Sequence[str], problem_type: str
) -> list[str]:
    names = list(dict.fromkeys(name for each in entries for name in each["probabilities"]))
    gold = np.array([[name in each["gold"] for name in names] for each in entries])
    chances = np.array([[each["probabilities"][name] for name in names] for each in entries])
    predictions = chances > 0.5
    rates = [precision_recall_f1(predictions[:, i], gold[:, i], [1])[0] for i in range(len(names))]
    rows = [
        (name, f"{count:,}", *(f"{rate:.3f}" for rate in own))
        for name, count, own in sorted(
            zip(names, gold.sum(axis=0), rates, strict=True), key=lambda row: row[2][2]
        )
    ]
    sure = np.where(predictions, chances, 1 - chances)
    curve = reliability_diagram(sure.ravel().tolist(), (predictions == gold).ravel().tolist())
    wrong = sorted(np.argwhere(predictions != gold).tolist(), key=lambda at: -sure[at[0], at[1]])
    errors = [
        (
            f"{sure[i, j]:.0%}",
            names[j],
            "said" if predictions[i, j] else "missed",
            entries[i]["id"],
            texts[i],
        )
        for i, j in wrong[:MAX_ERRORS_SHOWN]
    ]
    head = ("Sure", "Label", "It was", "Example", "Text")
    return [
        section("How sure, how right", f'<div class="pair">{curve}</div>'),
        section("Labels", table(("Label", "Examples", "Precision", "Recall", "F1"), rows)),
        section("Surest errors", table(head, errors, "errors") if errors else ""),
    ]


def _render_regression(
    entries: Sequence[PredictionEntry], texts: Sequence[str], problem_type: str
) -> list[str]:
    pairs = [(float(each["gold"]), float(each["number"])) for each in entries]
    plot = scatter("Every example", pairs, ("gold", "said"), diagonal=True)
    order = sorted(range(len(pairs)), key=lambda i: -abs(pairs[i][0] - pairs[i][1]))
    rows = [
        (f"{pairs[i][1]:.3f}", f"{pairs[i][0]:.3f}", entries[i]["id"], texts[i])
        for i in order[:MAX_ERRORS_SHOWN]
    ]
    return [
        section("Said and gold", f'<div class="pair">{plot}</div>'),
        section("Largest errors", table(("Said", "Gold", "Example", "Text"), rows, "errors")),
    ]
