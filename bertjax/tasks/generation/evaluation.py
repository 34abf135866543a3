"""Evaluation of generation: how probable a model finds the targets, and what it generates."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.generation.objective import GenerationObjective
from bertjax.tasks.generation.pipeline import GenerationPipeline
from bertjax.tasks.generation.text_scores import bleu, check_bleu, rouge_l
from bertjax.tasks.pipeline import HostBatch, Outputs, PredictInput, RunFunction
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.generation.masked_targets import cut_targets, mask_last_tokens
from data_pipelines.finetuning.generation.pairs import GenerationDataset, encode_pairs
from data_pipelines.finetuning.packed_examples import PackedLayout
from data_pipelines.vocabulary.tokenization import Tokenizer

TEXT_SCORES = ("bleu", "rouge_l")
_log = logging.getLogger("bertjax")


class GenerationEvalSet(PackedEvalSet):
    """Eval set of pairs.

    Args:
      name: name of the data set.
      data: its pairs.
      tokenizer: tokenizer of the model.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.

    Attributes:
      num_generated: sources to generate targets for.

    Raises:
      InputError: targets are to be generated, and sacrebleu is not installed.
    """

    def __init__(
        self,
        name: str,
        data: GenerationDataset,
        tokenizer: Tokenizer,
        objective: GenerationObjective,
        *packing: Any,
    ) -> None:
        self.name, self._data = name, data
        self._has_own_loss = bool(objective.config.loss)
        self._pipeline = GenerationPipeline(objective, tokenizer)
        wanted = objective.config.data["num_generated"]
        self.num_generated = len(data.sources[: None if wanted < 0 else wanted])
        if self.num_generated:
            check_bleu(f"data.num_generated={wanted}")
        examples = encode_dataset(name, data, tokenizer, objective)
        self._weights: np.ndarray | None = None  # of masked targets
        if objective.config.model.predicts_masks:
            examples, self._weights = cut_targets(examples)
        super().__init__(examples, objective.sequence_shape, *packing)

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        perplexity = () if self._has_own_loss else ("mlm_perplexity",)
        return "mlm_accuracy", *perplexity, *(TEXT_SCORES if self.num_generated else ())

    def build_batch(self, layout: PackedLayout) -> HostBatch:
        """Return the batch of a layout; with masked targets one [MASK] ends each of them."""
        batch = super().build_batch(layout)
        if self._weights is None:
            return batch
        mask_id = self._pipeline.tokenizer.mask_id
        return mask_last_tokens(batch, layout, self._examples, self._weights, mask_id)

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the share of target tokens that are most probable, and their perplexity."""
        scores = {"mlm_accuracy": means["mlm_accuracy"]}
        if not self._has_own_loss:  # which need not be a cross-entropy
            scores["mlm_perplexity"] = float(np.exp(means["mlm_loss"]))
        return Evaluation(scores)

    def evaluate_generated(self, run: RunFunction) -> Evaluation:
        """Return BLEU and ROUGE-L of the targets that a model generates for the first sources.

        The files are `predictions`, a list of source, target and generated text, and `bleu`, see
        `bertjax.tasks.generation.text_scores.bleu`.
        """
        count, tokenizer = self.num_generated, self._pipeline.tokenizer
        sources, targets = self._data.sources[:count], self._data.targets[:count]
        inputs = [PredictInput(f"{self.name}[{i}]", source) for i, source in enumerate(sources)]
        texts = [answer["generated_text"] for answer in self._pipeline.predict(run, inputs)]
        result = bleu(texts, targets, lowercase=not tokenizer.cased)
        scores = {
            "bleu": result["score"],
            "rouge_l": rouge_l(texts, targets, strip_accents=not tokenizer.cased),
        }
        rows = list(zip(sources, targets, texts, strict=True))
        names = "source", "target", "generated_text"
        predictions = [dict(zip(names, row, strict=True)) for row in rows]
        examples = [
            f"{source} → {text or '-'} ({target})"
            for source, target, text in rows[:NUM_EXAMPLES_SHOWN]
        ]
        files = {"predictions": predictions, "bleu": result}
        return Evaluation(scores, files, examples=examples)


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
