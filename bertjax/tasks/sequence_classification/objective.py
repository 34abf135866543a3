"""Objective of sequence classification and regression."""

import dataclasses
from collections.abc import Mapping

from bertjax.config.config import Config
from bertjax.tasks.finetuning import FinetuningObjective, check_num_labels
from bertjax.tasks.sequence_classification.data import columns_from_config
from bertjax.tasks.task import check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import check_truncation, make_target
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
)


class SequenceClassificationObjective(FinetuningObjective):
    """Encoder with a classifier on the pooled vector.

    Attributes:
      problem_type: see `data.problem_type`.
    """

    heads = ("sequence_classification",)
    eval_outputs = ("sequence_classification_logits",)
    LOSS_INPUTS = ("sequence_classification", "labels", "labels_weights")

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        columns, glue = columns_from_config(config), config.data["glue"]
        if not config.model.num_labels and (glue or columns.problem_type == "regression"):
            num_labels = len(find_glue_task(glue).labels) if glue else 0
            model = dataclasses.replace(config.model, num_labels=num_labels or 1)
            config = dataclasses.replace(config, model=model)
        super().__init__(config, batch_size_multiple)
        check_truncation(config.data["truncation"], bool(columns.text_pair))
        if columns.text_pair:
            self.segments = "the texts of a pair"
            check_type_vocab_size(config.model, self.segments)
        self.problem_type = columns.problem_type
        smoothing = config.data["label_smoothing"]
        if smoothing and self.problem_type != "single_label_classification":
            raise InputError(
                f"data.label_smoothing={smoothing}: data.problem_type={self.problem_type} has no "
                "single label to smooth. Set 0."
            )
        check_num_labels(config)

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        no_examples = SequenceClassificationDataset("", [], [])
        names = [""] * self.config.model.num_labels
        return {"labels": make_target(no_examples, names, self.problem_type)}
