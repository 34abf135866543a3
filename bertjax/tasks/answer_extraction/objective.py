"""Objective of answer extraction: a distribution over the spans of a window."""

from collections.abc import Mapping

import numpy as np

from bertjax.config.config import Config
from bertjax.tasks.answer_extraction.model import MAX_WINDOWS_PER_SEQUENCE
from bertjax.tasks.finetuning import FinetuningObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.question_answering.answer_spans import (
    MAX_ANSWER_LENGTH,
    check_doc_stride,
    span_targets,
)

SCORERS = {"joint": "answer_spans", "independent": "answer_boundaries"}  # data.scorer -> head


class AnswerExtractionObjective(FinetuningObjective):
    """Encoder with the head of `data.scorer`."""

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        scorer = config.data["scorer"]
        if scorer not in SCORERS:
            raise InputError(f"data.scorer={scorer!r}: unknown. Use {' or '.join(SCORERS)}.")
        self.heads = (SCORERS[scorer],)  # whose names the superclass checks
        super().__init__(config, batch_size_multiple)
        self.eval_outputs = (f"{SCORERS[scorer]}_logits",)

    def check_lengths(self) -> None:
        """Raise InputError if windows would skip tokens."""
        check_doc_stride(self.config.max_seq_length, self.config.data["doc_stride"])

    @property
    def extracts_answers(self) -> bool:
        """True."""
        return True

    @property
    def sequence_shape(self) -> PackedShape:
        """Tokens and examples that a sequence holds at most."""
        num_windows = MAX_WINDOWS_PER_SEQUENCE if self.config.packing else 1
        return PackedShape(self.config.max_seq_length, num_windows)

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return span_targets(np.zeros(0, np.int32), np.zeros(0, np.int32))

    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of a forward pass, with the products of a joint scorer."""
        hidden, encoder = self.config.model.output_size, super().forward_flops(batch_size)
        if self.config.data["scorer"] != "joint":
            return encoder
        multiply_adds = 2 * hidden**2 + MAX_ANSWER_LENGTH * hidden  # of a token
        return encoder + 2 * batch_size * self.config.max_seq_length * multiply_adds
