"""Held-out sentences, and what becomes of their logits."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.sequence_classification.metrics import (
    multi_label_metrics,
    regression_metrics,
    single_label_metrics,
)
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.encoding import EncodedTexts
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    make_target,
)

_log = logging.getLogger("bertjax")


class SequenceClassificationEvalSet(PackedEvalSet):
    """Held-out sentences with labels.

    Args:
      labels: names of the classes, none for numbers.
      problem_type: see `data.problem_type`.
      row, rows, hosts, host: see `PackedEvalSet`.

    Raises:
      InputError: a label is none that was trained.
    """

    def __init__(
        self,
        name: str,
        data: SequenceClassificationDataset,
        encoded: EncodedTexts,
        labels: Sequence[str],
        problem_type: str,
        row: PackedShape,
        rows: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
    ) -> None:
        self.name, self.data, self.labels = name, data, labels
        self._problem_type, self._text_indices = problem_type, encoded.text_indices
        self._gold = make_target(data, labels, problem_type)
        super().__init__(
            encoded.with_target("labels", self._gold), row, rows, num_processes, process_id
        )

    def predictions(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        """What is said of each text, from the logits [R, K, C] of each batch, windows averaged.

        Of classes and labels probabilities float64 [N, C], of numbers float64 [N].
        """
        each = np.asarray(self.unpack_outputs(logits, "example"), np.float64)
        total = np.zeros((len(self.data), each.shape[-1]))
        np.add.at(total, self._text_indices, each)
        found = total / np.bincount(self._text_indices, minlength=len(total))[:, None]
        if self._problem_type == "regression":
            numbers: np.ndarray = found[:, 0]
            return numbers
        if self._problem_type == "multi_label_classification":
            return 1 / (1 + np.exp(-found))
        powers = np.exp(found - found.max(axis=-1, keepdims=True))
        probabilities: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
        return probabilities

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """Scores between 0 and 1 (see `scoring`); the file is `predictions`."""
        predictions = self.predictions([each["sequence_classification_logits"] for each in outputs])
        gold = self._gold.values
        if self._problem_type == "regression":
            scores = regression_metrics(predictions, gold.astype(np.float64))
        elif self._problem_type == "multi_label_classification":
            scores = multi_label_metrics(predictions > 0.5, gold > 0.5)
        else:
            classes = predictions.argmax(axis=1)
            if len(np.unique(classes)) == 1 < len(np.unique(gold)):
                only = self.labels[classes[0]]
                _log.warning("%s: every example is said to be %r.", self.name, only)
            scores = single_label_metrics(classes, gold, len(self.labels))
        answers = [
            format_prediction(each, self.labels, self._problem_type, True) for each in predictions
        ]
        names = self.data.ids or [str(number) for number in range(len(self.data))]
        entries = [
            {"id": name, "gold": value} | each
            for name, value, each in zip(names, self.data.values or (), answers, strict=True)
        ]
        return Evaluation(scores, {PREDICTIONS: entries}, examples=self._format_examples(answers))

    def _format_examples(self, answers: Sequence[Mapping[str, Any]]) -> list[str]:
        """The first texts, each with what is said of it and what is right."""
        texts = zip(self.data.texts, self.data.pairs or itertools.repeat(""), strict=False)
        rows = zip(texts, answers, self.data.values or (), strict=False)
        return [
            f"{' | '.join(filter(None, own))} → {next(iter(predictions.values()))} ({gold})"
            for own, predictions, gold in itertools.islice(rows, NUM_EXAMPLES_SHOWN)
        ]


def format_prediction(
    predictions: np.ndarray, labels: Sequence[str], problem_type: str, return_all_scores: bool
) -> dict[str, Any]:
    """What is said of one text, for a file.

    Args:
      said: its part of `Labelled.said`.
      everything: of classes and labels tells the probability of each.
    """
    if problem_type == "regression":
        return {"number": round(float(predictions), 6)}
    chances = {
        label: round(float(chance), 6) for label, chance in zip(labels, predictions, strict=True)
    }
    if problem_type == "multi_label_classification":
        chosen = [label for label, chance in zip(labels, predictions, strict=True) if chance > 0.5]
        found: dict[str, Any] = {"labels": chosen}
    else:
        best = labels[int(predictions.argmax())]
        found = {"label": best, "probability": chances[best]}
    return found | ({"probabilities": chances} if return_all_scores else {})
