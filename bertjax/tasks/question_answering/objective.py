"""Objective of question answering: start and end logits of each token."""

from collections.abc import Mapping

import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.mesh.feed import Batch
from bertjax.model.losses import Sums, null_regression_sums
from bertjax.tasks.finetuning import FinetuningObjective
from bertjax.tasks.task import check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.question_answering.windows import (
    WindowOptions,
    answer_position_target,
)

MAX_WINDOWS_PER_SEQUENCE = 8
NULL_SCORES = ("softmax", "regression")
FILES = {  # data.version -> file of each split
    1: {"train": "train-v1.1.json", "eval": "dev-v1.1.json"},
    2: {"train": "train-v2.0.json", "eval": "dev-v2.0.json"},
}


class QuestionAnsweringObjective(FinetuningObjective):
    """Encoder with the question answering head.

    Attributes:
      version: 1 for SQuAD 1.1, 2 for SQuAD 2.0 with unanswerable questions.
    """

    heads = ("question_answering",)
    eval_outputs = ("question_answering_logits",)

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        self.segments = "question and passage"
        check_type_vocab_size(config.model, self.segments)
        self.version = int(config.data["version"])
        if self.version not in FILES:
            raise InputError(
                f"data.version={self.version}: unknown version. Use 1 (SQuAD 1.1) or 2 (SQuAD 2.0)."
            )
        null_score = config.data["null_score"]
        if null_score not in NULL_SCORES:
            raise InputError(
                f"data.null_score={null_score!r}: unknown. Use {' or '.join(NULL_SCORES)}."
            )
        if self.has_null_regression and self.version == 1:
            raise InputError(
                "data.null_score='regression': all questions of version 1 have answers. Set "
                "data.version=2."
            )
        if self.has_null_regression and (config.distill.teacher or config.distill.logits):
            raise InputError(
                "data.null_score='regression': distillation compares softmaxes. Use softmax."
            )

    @property
    def has_null_regression(self) -> bool:
        """True if the score of no answer is a regression."""
        return bool(self.config.data["null_score"] == "regression")

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """Return the sums of losses and accuracies; see `Objective.sums`."""
        sums = super().sums(outputs, batch)
        if self.has_null_regression:
            sums |= null_regression_sums(outputs["question_answering_logits"], batch)
        return sums

    @property
    def window_options(self) -> WindowOptions:
        """Lengths and stride of windows; raises InputError if they do not fit each other."""
        data = self.config.data
        return WindowOptions(
            self.config.max_seq_length, data["doc_stride"], data["max_query_length"]
        )

    def check_lengths(self) -> None:
        """Raise InputError if windows would skip tokens, or questions have none."""
        self.window_options  # noqa: B018 (checks itself)

    @property
    def sequence_shape(self) -> PackedShape:
        """Tokens and examples that a sequence holds at most."""
        num_windows = MAX_WINDOWS_PER_SEQUENCE if self.config.packing else 1
        return PackedShape(self.config.max_seq_length, num_windows)

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return answer_position_target(np.zeros((0, 2), np.int32))
