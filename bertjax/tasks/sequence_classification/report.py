"""Report of a sequence classification or multiple choice evaluation: scores, and errors."""

import collections
from collections.abc import Sequence

import numpy as np
from etils import epath

from bertjax.html.page import Section
from bertjax.html.plots import ConfusionMatrix, reliability_diagram, scatter
from bertjax.html.tables import TextTable
from bertjax.tasks.saved_evaluation import PREDICTIONS, PredictionEntry, read_evaluation
from bertjax.tasks.sequence_classification.metrics import precision_recall_f1

MAX_ERRORS_SHOWN = 24  # errors with the highest probabilities
MAX_MATRIX_CLASSES = 20  # more would not fit the page
MAX_CONFUSIONS = 24  # most frequent confusions, where there is no matrix
TITLES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "macro_f1": "Macro F1",
    "micro_f1": "Micro F1",
    "subset_accuracy": "Subset accuracy",
    "matthews_correlation": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "mse": "Mean squared error",
}
_SINGLE_LABEL_SCHEMA = [{"label": str, "gold": str, "score": float, "scores": {str: float}}]
_SCHEMAS = {  # of predictions, by problem type
    "regression": [{"gold": float, "score": float}],
    "multi_label_classification": [{"gold": [str], "scores": {str: float}}],
}
_LABEL_HEADER = ("Label", "Examples", "Precision", "Recall", "F1")


def render(
    name: str, directory: epath.Path, sets: Sequence[tuple[str, Sequence[str]]], problem_type: str
) -> str:
    """Return the page of an evaluation.

    Args:
      name: title of the page.
      directory: the output of `bertjax evaluate`.
      sets: name and texts of each eval set.
      problem_type: that of the configuration, or "multiple_choice" for multiple choice.

    Raises:
      InputError: the directory is not a complete evaluation of these texts.
    """
    schema = _SCHEMAS.get(problem_type, _SINGLE_LABEL_SCHEMA)
    evaluation = read_evaluation(directory, [name for name, _ in sets], {PREDICTIONS: schema})
    entries = evaluation.predictions([len(texts) for _, texts in sets])
    texts = [text for _, texts in sets for text in texts]
    if problem_type == "regression":
        sections = _regression_sections(entries, texts)
    elif problem_type == "multi_label_classification":
        sections = _multi_label_sections(entries, texts)
    else:
        with_labels = problem_type != "multiple_choice"
        sections = _single_label_sections(entries, texts, with_labels)
    return evaluation.render(name, TITLES, ("Examples", len(entries)), sections)


def _single_label_sections(
    entries: Sequence[PredictionEntry], texts: Sequence[str], with_labels: bool
) -> list[Section]:
    labels = _label_names(entries)
    labels += sorted({entry[key] for entry in entries for key in ("label", "gold")} - {*labels})
    ids = {label: i for i, label in enumerate(labels)}
    predictions, gold = (
        np.array([ids[entry[key]] for entry in entries]) for key in ("label", "gold")
    )
    probabilities = [entry["score"] for entry in entries]
    diagram = reliability_diagram(probabilities, (predictions == gold).tolist())
    sections = [Section("Calibration", charts=[diagram])]
    if with_labels:
        scores = precision_recall_f1(predictions, gold, range(len(labels)))
        counts = np.bincount(gold, minlength=len(labels))
        sections.append(_label_section(labels, counts, scores))
        sections.append(_confusion_section(labels, predictions, gold))
    errors = np.flatnonzero(predictions != gold).tolist()
    errors.sort(key=lambda i: -probabilities[i])
    rows = [
        (f"{probabilities[i]:.0%}", *(entries[i][key] for key in ("label", "gold", "id")), texts[i])
        for i in errors[:MAX_ERRORS_SHOWN]
    ]
    header = ("Probability", "Predicted", "Gold", "Example", "Text")
    return [*sections, _error_section(len(errors), TextTable(header, rows))]


def _multi_label_sections(
    entries: Sequence[PredictionEntry], texts: Sequence[str]
) -> list[Section]:
    labels = _label_names(entries)
    gold = np.array([[label in entry["gold"] for label in labels] for entry in entries])
    probabilities = np.array([[entry["scores"][label] for label in labels] for entry in entries])
    predictions = probabilities > 0.5
    columns = zip(predictions.T, gold.T, strict=True)
    scores = [precision_recall_f1(*column, [1])[0] for column in columns]
    confidence = np.where(predictions, probabilities, 1 - probabilities)
    is_correct = predictions == gold
    diagram = reliability_diagram(confidence.ravel().tolist(), is_correct.ravel().tolist())
    errors = np.argwhere(~is_correct).tolist()
    errors.sort(key=lambda index: -confidence[*index])
    rows = [
        (
            f"{confidence[i, j]:.0%}",
            labels[j],
            "predicted" if predictions[i, j] else "missed",
            entries[i]["id"],
            texts[i],
        )
        for i, j in errors[:MAX_ERRORS_SHOWN]
    ]
    header = ("Probability", "Label", "Error", "Example", "Text")
    return [
        Section("Calibration", charts=[diagram]),
        _label_section(labels, gold.sum(axis=0), scores),
        _error_section(len(errors), TextTable(header, rows)),
    ]


def _regression_sections(entries: Sequence[PredictionEntry], texts: Sequence[str]) -> list[Section]:
    pairs = [(float(entry["gold"]), float(entry["score"])) for entry in entries]
    order = sorted(range(len(pairs)), key=lambda i: -abs(pairs[i][0] - pairs[i][1]))
    rows = [
        (f"{pairs[i][1]:.3f}", f"{pairs[i][0]:.3f}", entries[i]["id"], texts[i])
        for i in order[:MAX_ERRORS_SHOWN]
    ]
    chart = scatter("All examples", pairs, ("gold", "predicted"))
    table = TextTable(("Predicted", "Gold", "Example", "Text"), rows)
    return [
        Section("Predictions and gold values", charts=[chart]),
        Section("Largest errors", table=table, table_class="errors"),
    ]


def _label_names(entries: Sequence[PredictionEntry]) -> list[str]:
    return list(dict.fromkeys(label for entry in entries for label in entry["scores"]))


def _label_section(
    labels: Sequence[str], counts: np.ndarray, scores: Sequence[Sequence[float]]
) -> Section:
    """Return the scores of the labels, lowest F1 first."""
    order = sorted(range(len(labels)), key=lambda i: scores[i][2])
    rows = [(labels[i], f"{counts[i]:,}", *(f"{score:.3f}" for score in scores[i])) for i in order]
    return Section("Labels", table=TextTable(_LABEL_HEADER, rows))


def _confusion_section(labels: Sequence[str], predictions: np.ndarray, gold: np.ndarray) -> Section:
    if len(labels) <= MAX_MATRIX_CLASSES:
        counts = np.zeros((len(labels), len(labels)), int)
        np.add.at(counts, (gold, predictions), 1)
        matrix = ConfusionMatrix("Examples by label", labels, counts.tolist())
        return Section("Confusion matrix", matrix=matrix)
    pairs = collections.Counter(
        (labels[g], labels[p]) for g, p in zip(gold, predictions, strict=True) if g != p
    )
    rows = [(g, p, f"{count:,}") for (g, p), count in pairs.most_common(MAX_CONFUSIONS)]
    table = TextTable(("Gold", "Predicted", "Examples"), rows)
    return Section("Most frequent confusions", table=table)


def _error_section(num_errors: int, table: TextTable) -> Section:
    note = f"{num_errors:,} error{'s' * (num_errors > 1)}, highest probability first."
    return Section("Most confident errors", note, table=table, table_class="errors")
