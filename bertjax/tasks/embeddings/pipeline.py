"""Pipeline that embeds texts."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.embeddings.data import PROMPTS
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective, make_targets
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import (
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    require_text,
    truncation_mark,
)
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.log import warn_once

Context = tuple[list[str], PackedEvalSet, frozenset[int]]  # texts, and indices of truncated ones


def warn_unused_prompts(query_prompt: str, document_prompt: str) -> None:
    """Log once that the prompts of a run are not put before texts that are embedded alone."""
    prompts = zip(PROMPTS, (query_prompt, document_prompt), strict=True)
    if fields := ", ".join(f"data.{name}={prompt!r}" for name, prompt in prompts if prompt):
        warn_once(
            ("prompts", query_prompt, document_prompt),
            f"{fields}: put before texts in training and in evaluations of retrieval, not here. "
            "Write the prompt before each text that needs it.",
        )


class EmbeddingsPipeline(Pipeline[Context]):
    """Embedding of a text."""

    method = "encode"
    description = "embeds texts"
    objective: TrainedEmbeddingsObjective

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the key of the text."""
        return {"text"}

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches of the texts."""
        warn_unused_prompts(*(self.config.data[name] for name in PROMPTS))
        texts = [require_text(item) for item in inputs]
        dataset = SequenceClassificationDataset("input", [], texts)
        encoded = encode_texts(dataset, self.tokenizer, self.config.max_seq_length, "head")
        scores = np.zeros(len(texts)) if self.objective.reads_scores else None
        rows = encoded.examples
        targets = make_targets(len(texts), scores)
        examples = Examples(rows.ids, rows.lengths, rows.prefix_lengths, targets)
        eval_set = PackedEvalSet(examples, self.objective.sequence_shape)
        return eval_set.batches(), (texts, eval_set, frozenset(encoded.truncated))

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield each text with its embedding, a list of H numbers."""
        texts, eval_set, truncated = context
        embeddings = eval_set.unpack_outputs(outputs, "embeddings", "example")
        for number, (text, embedding) in enumerate(zip(texts, embeddings, strict=True)):
            answer: dict[str, Any] = {"text": text, "embedding": embedding.tolist()}
            yield answer | truncation_mark(number in truncated)
