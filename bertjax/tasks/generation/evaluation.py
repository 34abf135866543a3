"""Evaluation of generation: how probable a model finds the targets."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.generation.objective import GenerationObjective
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.task import Evaluation
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.generation import GenerationDataset, encode_pairs
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")


class GenerationEvalSet(PackedEvalSet):
    """Eval set of pairs.

    Args:
      name: name of the data set.
      data: its pairs.
      tokenizer: tokenizer of the model.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.
    """

    score_names = ("mlm_accuracy", "mlm_perplexity")

    def __init__(
        self,
        name: str,
        data: GenerationDataset,
        tokenizer: Tokenizer,
        objective: GenerationObjective,
        *packing: Any,
    ) -> None:
        self.name = name
        examples = encode_dataset(name, data, tokenizer, objective)
        super().__init__(examples, objective.sequence_shape, *packing)

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the share of target tokens that are most probable, and their perplexity."""
        perplexity = float(np.exp(means["mlm_loss"]))
        return Evaluation({"mlm_accuracy": means["mlm_accuracy"], "mlm_perplexity": perplexity})


def encode_dataset(
    name: str, data: GenerationDataset, tokenizer: Tokenizer, objective: GenerationObjective
) -> Examples:
    """Return the pairs as examples; log how many were truncated."""
    lengths = objective.max_source_length, objective.max_target_length
    examples, num_sources, num_targets = encode_pairs(data, tokenizer, *lengths)
    if num_sources or num_targets:
        _log.warning(
            "%s: truncated %d sources and %d targets of %d pairs to data.max_target_length=%d "
            "tokens and the rest of max_seq_length=%d.",
            name,
            num_sources,
            num_targets,
            len(data.sources),
            objective.max_target_length,
            objective.config.max_seq_length,
        )
    return examples
