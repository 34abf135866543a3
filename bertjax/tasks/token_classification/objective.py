"""Objective of token classification."""

from collections.abc import Mapping

import numpy as np

from bertjax.config.config import Config
from bertjax.tasks.finetuning import FinetuningObjective, check_num_labels
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.word_alignment import token_label_target


class TokenClassificationObjective(FinetuningObjective):
    """Encoder with a score of each tag for each token."""

    heads = ("token_classification",)
    eval_outputs = ("token_classification_logits",)
    LOSS_INPUTS = ("token_classification", "token_labels", "token_labels_weights")

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        check_num_labels(config)

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return token_label_target(0, np.zeros(0, np.int64), np.zeros(0, np.int32))
