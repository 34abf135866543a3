"""Pipeline that embeds texts."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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

Context = tuple[list[str], PackedEvalSet, frozenset[int]]  # texts, and indices of truncated ones


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
