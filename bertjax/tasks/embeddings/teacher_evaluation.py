"""Evaluation of a student's embeddings against those of its teacher."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.tasks.embeddings.embedded_texts import EmbeddedTextsEvalSet
from bertjax.tasks.embeddings.losses import teacher_sums
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.embeddings.dataset import EmbeddingsDataset
from data_pipelines.finetuning.examples import Examples

_TEXTS_PER_CALL = 1024


class TeacherEvalSet(EmbeddedTextsEvalSet):
    """Eval set of texts, whose embeddings are compared with those of a teacher.

    Args:
      name: name of the data set.
      data: its texts.
      examples: the texts as tokens.
      objective: objective of the model.
      teacher: embeddings of the texts by the teacher, float32 [N, D]; None until `set_teacher`.
      packing: the last arguments of `PackedEvalSet`.
    """

    primary_metrics = ("cosine", "loss")

    def __init__(
        self,
        name: str,
        data: EmbeddingsDataset,
        examples: Examples,
        objective: TrainedEmbeddingsObjective,
        teacher: np.ndarray | None,
        *packing: Any,
    ) -> None:
        self.name, self._texts, self._teacher = name, data.all_texts, teacher
        self._dims = objective.loss.dims
        super().__init__(examples, objective.sequence_shape, *packing)

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        return ("loss", "embeddings_loss", "cosine", *(f"cosine_{dim}" for dim in self._dims))

    def set_teacher(self, outputs: Sequence[Outputs]) -> None:
        """Take the embeddings of the teacher, its outputs for the batches of this set."""
        self._teacher = self.join(outputs)

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the loss and the mean cosine; the file is `predictions`, the cosine of each text.

        With Matryoshka dimensions, `cosine_D` is that of the first D components.
        """
        assert self._teacher is not None
        embeddings = self.join(outputs)
        totals: dict[str, np.ndarray] = {}
        for start in range(0, len(embeddings), _TEXTS_PER_CALL):
            part = slice(start, start + _TEXTS_PER_CALL)
            weights = np.ones(len(embeddings[part]), np.float32)
            sums = _sums(embeddings[part], self._teacher[part], weights, self._dims)
            for name, pair in sums.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
        scores = {name: float(value / weight) for name, (value, weight) in totals.items()}
        scores["loss"] = scores["embeddings_loss"]
        cosines = _cosines(embeddings, self._teacher)
        entries = [
            {"id": str(number), "cosine": round(float(cosine), 6)}
            for number, cosine in enumerate(cosines)
        ]
        pairs = zip(self._texts[:NUM_EXAMPLES_SHOWN], cosines, strict=False)
        examples = [f"{text} → {cosine:.3f}" for text, cosine in pairs]
        return Evaluation(scores, {PREDICTIONS: entries}, examples=examples)


_sums = jax.jit(teacher_sums, static_argnums=3)


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosines of rows [N, D], float64 [N]."""
    wide, other = first.astype(np.float64), second.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(other, axis=1)
    cosines: np.ndarray = np.sum(wide * other, axis=1) / np.maximum(lengths, 1e-12)
    return cosines
