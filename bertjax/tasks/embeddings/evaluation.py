"""Evaluation of embeddings: correlation of cosines with scores, or ranking of positives."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.tasks.embeddings.data import encode_dataset
from bertjax.tasks.embeddings.embedded_texts import EmbeddedTextsEvalSet
from bertjax.tasks.embeddings.losses import (
    RANKING_LOSS,
    TEACHER_LOSS,
    LossOptions,
    embeddings_sums,
)
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.sequence_classification.metrics import regression_metrics
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.dataset import EmbeddingsDataset
from data_pipelines.vocabulary.tokenization import Tokenizer


class EmbeddingsEvalSet(EmbeddedTextsEvalSet):
    """Eval set of tuples of texts, with or without scores.

    Args:
      name: name of the data set.
      data: its examples.
      tokenizer: tokenizer of the model.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.

    Raises:
      InputError: examples have one text.
    """

    def __init__(
        self,
        name: str,
        data: EmbeddingsDataset,
        tokenizer: Tokenizer,
        objective: TrainedEmbeddingsObjective,
        *packing: Any,
    ) -> None:
        if data.is_unlabeled:
            raise InputError(
                f"{data.name}: has one column of texts, {data.columns[0]!r}. Give pairs to "
                "evaluate."
            )
        self.name, self._data, self._objective = name, data, objective
        config = objective.config
        examples = encode_dataset(name, data, tokenizer, config, objective.reads_scores)
        texts = dataclasses.replace(examples, group_sizes=None)
        super().__init__(texts, objective.sequence_shape, *packing)

    @property
    def primary_metrics(self) -> tuple[str, ...]:
        """Scores that are averaged over eval sets, the one that ranks runs first."""
        has_scores = self._data.scores is not None
        return ("spearman", "pearson", "loss") if has_scores else ("accuracy", "loss")

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        pair = np.arange(2.0)
        names = ["accuracy"] if self._data.scores is None else [*regression_metrics(pair, pair)]
        names += [f"{self.primary_metrics[0]}_{dim}" for dim in self._objective.loss.dims]
        return [*names, "loss", "embeddings_loss"] if self._has_loss else names

    @property
    def _has_loss(self) -> bool:
        """True if the training reads scores and these data have them, or neither."""
        has_scores = self._data.scores is not None
        trains_on_pairs = self._objective.loss.loss != TEACHER_LOSS
        return trains_on_pairs and self._objective.reads_scores == has_scores

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the metrics; the file is `predictions`, the cosines of each example.

        Pairs with scores have those of `regression_metrics`. Other examples have `accuracy`, the
        share of the anchors whose positive is the most similar of all positives and negatives in
        their batch. With Matryoshka dimensions, `spearman_D` or `accuracy_D` is that of D
        components.
        """
        vectors = self.join(outputs).reshape(len(self._data), self._data.num_texts, -1)
        cosines = _cosines(vectors)
        scores = self._data.scores
        entries = [
            {"id": str(number), "cosines": [round(float(value), 6) for value in row]}
            | ({} if scores is None else {"gold": scores[number]})
            for number, row in enumerate(cosines)
        ]
        examples = [
            f"{' | '.join(texts)} → {', '.join(f'{value:.3f}' for value in row)}"
            + ("" if scores is None else f" ({scores[number]:g})")
            for number, (texts, row) in enumerate(
                zip(self._data.texts[:NUM_EXAMPLES_SHOWN], cosines, strict=False)
            )
        ]
        return Evaluation(self._scores(vectors), {PREDICTIONS: entries}, examples=examples)

    def _scores(self, vectors: np.ndarray) -> dict[str, float]:
        gold, objective, result = self._data.scores, self._objective, dict[str, float]()
        for dim in (vectors.shape[-1], *objective.loss.dims):
            part = vectors[..., :dim]
            if gold is not None:
                name, scores = "spearman", regression_metrics(_cosines(part)[:, 0], np.array(gold))
            else:
                ranking = objective.loss._replace(loss=RANKING_LOSS, dims=())
                name = "accuracy"
                scores = {name: self._batch_means(ranking, part)[name]}
            result |= {f"{name}_{dim}": scores[name]} if result else scores
        if self._has_loss:
            loss = self._batch_means(objective.loss, vectors)["embeddings_loss"]
            result |= {"loss": loss, "embeddings_loss": loss}
        return result

    def _batch_means(self, loss: LossOptions, vectors: np.ndarray) -> dict[str, float]:
        """Return the means of `embeddings_sums` over batches of examples in their order."""
        count = len(vectors)
        size = min(self._objective.config.batch_size, count)
        gold = np.array(self._data.scores or [0.0] * count, np.float32)
        totals: dict[str, np.ndarray] = {}
        for start in range(0, count, size):
            numbers = np.arange(start, start + size)
            rows = np.minimum(numbers, count - 1)
            exists = np.broadcast_to((numbers < count)[:, None], vectors[rows].shape[:2])
            sums = _batch_sums(loss, vectors[rows].astype(np.float32), exists, gold[rows])
            for name, pair in sums.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
        return {name: float(value / weight) for name, (value, weight) in totals.items()}


_batch_sums = jax.jit(embeddings_sums, static_argnums=0)


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of the first text and the others, float64 [N, C - 1]."""
    wide = vectors.astype(np.float64)
    units = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    cosines: np.ndarray = np.einsum("nh,nch->nc", units[:, 0], units[:, 1:])
    return cosines
