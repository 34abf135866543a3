"""Evaluation of sequence classification: logits to predictions and metrics."""

import itertools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from bertjax.config.config import Config
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import Outputs, round_scores
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.sequence_classification.metrics import (
    multi_label_metrics,
    regression_metrics,
    single_label_metrics,
)
from bertjax.tasks.sequence_classification.objective import SequenceClassificationObjective
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.encoding import EncodedTexts, encode_texts, make_target
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")


class SequenceClassificationEvalSet(PackedEvalSet):
    """A data set of labeled texts or pairs, with the evaluation of their logits.

    Args:
      name: name of the data set, for messages and files.
      data: the texts with their labels.
      tokenizer: the model's tokenizer.
      objective: objective of the model.
      labels: names of the classes; empty for regression.
      packing: the last arguments of `PackedEvalSet`.

    Raises:
      InputError: an example has a label that is not in `labels`.
    """

    def __init__(
        self,
        name: str,
        data: SequenceClassificationDataset,
        tokenizer: Tokenizer,
        objective: SequenceClassificationObjective,
        labels: Sequence[str],
        *packing: Any,
    ) -> None:
        encoded = encode_dataset(name, data, tokenizer, objective.config)
        target = make_target(data, labels, objective.problem_type)
        self.name, self.data, self.labels = name, data, labels
        self._text_indices, self._gold = encoded.text_indices, target.values
        self._problem_type = objective.problem_type
        self.truncated = frozenset(encoded.truncated)  # indices of the texts that lost tokens
        super().__init__(encoded.with_target("labels", target), objective.sequence_shape, *packing)

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        if self._problem_type == "regression":
            return regression_metrics(np.zeros(2), np.zeros(2)).keys()
        if self._problem_type == "multi_label_classification":
            return multi_label_metrics(np.zeros((1, 1), bool), np.zeros((1, 1), bool)).keys()
        return single_label_metrics(np.zeros(1, int), np.zeros(1, int), len(self.labels)).keys()

    def predictions(self, outputs: Iterable[Outputs]) -> np.ndarray:
        """Return the prediction of each text; the logits of its windows are averaged.

        Returns:
          Probabilities float64 [N, C], or values float64 [N] of a regression.
        """
        logits = self.unpack_outputs(outputs, "sequence_classification_logits", "example")
        window_logits = np.asarray(logits, np.float64)
        sums = np.zeros((len(self.data), window_logits.shape[-1]))
        np.add.at(sums, self._text_indices, window_logits)
        text_logits = sums / np.bincount(self._text_indices, minlength=len(sums))[:, None]
        if self._problem_type == "regression":
            return text_logits[:, 0]
        if self._problem_type == "multi_label_classification":
            return np.asarray(expit(text_logits))
        return np.asarray(softmax(text_logits, axis=-1))

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the metrics of the problem type; the file is `predictions`."""
        predictions = self.predictions(outputs)
        gold = self._gold
        if self._problem_type == "regression":
            scores = regression_metrics(predictions, gold.astype(np.float64))
        elif self._problem_type == "multi_label_classification":
            scores = multi_label_metrics(predictions > 0.5, gold > 0.5)
        else:
            classes = predictions.argmax(axis=1)
            if len(np.unique(classes)) == 1 < len(np.unique(gold)):
                label = self.labels[classes[0]]
                _log.warning("%s: all examples are predicted as %r.", self.name, label)
            scores = single_label_metrics(classes, gold, len(self.labels))
        records = [
            format_prediction(prediction, self.labels, self._problem_type, True)
            for prediction in predictions
        ]
        ids = self.data.ids or [str(number) for number in range(len(self.data))]
        entries = [
            {"id": name, "gold": value} | record
            for name, value, record in zip(ids, self.data.values or (), records, strict=True)
        ]
        return Evaluation(scores, {PREDICTIONS: entries}, examples=self._format_examples(records))

    def _format_examples(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the first texts, each with its prediction and its gold label."""
        texts = zip(self.data.texts, self.data.text_pairs or itertools.repeat(""), strict=False)
        rows = zip(texts, records, self.data.values or (), strict=False)
        return [
            f"{' | '.join(filter(None, pair))} → {next(iter(record.values()))} ({gold})"
            for pair, record, gold in itertools.islice(rows, NUM_EXAMPLES_SHOWN)
        ]


def format_prediction(
    prediction: np.ndarray, labels: Sequence[str], problem_type: str, return_all_scores: bool
) -> dict[str, Any]:
    """Return the prediction of one text as a JSON object.

    Args:
      prediction: its row of `SequenceClassificationEvalSet.predictions`.
      labels: names of the classes; empty for regression.
      problem_type: see `data.problem_type`.
      return_all_scores: add the probability of every label.
    """
    if problem_type == "regression":
        return {"score": round(float(prediction), 6)}
    probabilities = dict(zip(labels, round_scores(prediction), strict=True))
    record: dict[str, Any]
    if problem_type == "multi_label_classification":
        chosen = [label for label, value in zip(labels, prediction, strict=True) if value > 0.5]
        record = {"labels": chosen}
    else:
        best = labels[int(prediction.argmax())]
        record = {"label": best, "score": probabilities[best]}
    return record | ({"scores": probabilities} if return_all_scores else {})


def encode_dataset(
    name: str, data: SequenceClassificationDataset, tokenizer: Tokenizer, config: Config
) -> EncodedTexts:
    """Return the encoded texts of a data set; log how many were truncated."""
    encoded = encode_texts(data, tokenizer, config.max_seq_length, config.data["truncation"])
    if encoded.truncated:
        _log.warning(
            "%s: %d of %d texts are truncated to max_seq_length=%d (truncation=%s).",
            name,
            encoded.num_truncated,
            len(data),
            config.max_seq_length,
            config.data["truncation"],
        )
    return encoded
