"""Evaluation of embeddings by retrieval: documents are ranked by their cosines with a query."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.embeddings.data import PROMPTS, encode_each
from bertjax.tasks.embeddings.embedded_texts import EmbeddedTextsEvalSet
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.embeddings.retrieval.metrics import CUTOFF, metric_names, ranking_metrics
from bertjax.tasks.embeddings.retrieval.search import search
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import RetrievalDataset
from data_pipelines.finetuning.embeddings.run_files import RUN_FILE, Ranking, format_run
from data_pipelines.vocabulary.tokenization import Tokenizer


class RetrievalEvalSet(EmbeddedTextsEvalSet):
    """Queries and documents with judgments.

    Args:
      name: name of the data set.
      data: its queries and documents.
      tokenizer: tokenizer of the model.
      objective: objective of the model, whose configuration has the prompts and `top_k`.
      packing: the last arguments of `PackedEvalSet`.

    Raises:
      InputError: `top_k` is less than `CUTOFF`, or there are fewer documents.
    """

    def __init__(
        self,
        name: str,
        data: RetrievalDataset,
        tokenizer: Tokenizer,
        objective: TrainedEmbeddingsObjective,
        *packing: Any,
    ) -> None:
        config = objective.config
        self.name, self._data, self._dims = name, data, objective.loss.dims
        self._top_k = check_top_k(config.data["top_k"], data)
        # trec_eval prefers the larger of two ids with equal scores; `search` the lower index.
        ids = [document.encode(errors="surrogatepass") for document in data.document_ids]
        order = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
        self._document_ids = [data.document_ids[i] for i in order]
        query_prompt, document_prompt = (config.data[name] for name in PROMPTS)
        texts = [f"{query_prompt}{query}" for query in data.queries]
        texts += [f"{document_prompt}{data.documents[i]}" for i in order]
        scores = np.zeros(len(texts)) if objective.reads_scores else None
        examples = encode_each(name, texts, tokenizer, config, scores)
        super().__init__(examples, objective.sequence_shape, *packing)

    @property
    def primary_metrics(self) -> tuple[str, ...]:
        """Scores that are averaged over eval sets, the one that ranks runs first."""
        return metric_names(self._top_k)

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        names = metric_names(self._top_k)
        return [*names, *(f"{name}_{dim}" for dim in self._dims for name in names)]

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the metrics of `ranking_metrics`; the file is a run, the best `top_k` documents.

        With Matryoshka dimensions, `ndcg_10_D` is that of the first D components.
        """
        vectors = self.join(outputs)
        run = self._rank(vectors)
        scores = ranking_metrics(run, self._data.qrels, self._top_k)
        for dim in self._dims:
            part = ranking_metrics(self._rank(vectors[:, :dim]), self._data.qrels, self._top_k)
            scores |= {f"{name}_{dim}": value for name, value in part.items()}
        examples = [
            f"{query} → "
            + ", ".join(
                f"{document} ({score:.3f}, grade {self._data.qrels[name].get(document, 0)})"
                for document, score in run[name][:3]
            )
            for name, query in zip(self._data.query_ids, self._data.queries, strict=True)
        ][:NUM_EXAMPLES_SHOWN]
        return Evaluation(scores, {RUN_FILE: format_run(run)}, examples=examples)

    def _rank(self, vectors: np.ndarray) -> dict[str, Ranking]:
        """Return the ranked documents of each query, from the vectors of queries and documents."""
        lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
        units = vectors / np.maximum(lengths, 1e-12)
        queries, documents = np.split(units, [len(self._data)])
        # One more for queries whose own document is left out.
        neighbors = search(queries, documents, min(self._top_k + 1, len(documents)))
        run: dict[str, Ranking] = {}
        for query, scores, indices in zip(self._data.query_ids, *neighbors, strict=True):
            ranked = zip(scores.tolist(), indices.tolist(), strict=True)
            pairs = [(self._document_ids[index], score) for score, index in ranked]
            run[query] = [pair for pair in pairs if pair[0] != query][: self._top_k]
        return run


def check_top_k(top_k: int, data: RetrievalDataset, field: str = "data.top_k") -> int:
    """Return the number of documents to rank.

    Raises:
      InputError: it is less than `CUTOFF`, or the data have fewer documents; `field` names it.
    """
    if top_k < CUTOFF:
        raise InputError(
            f"{field}={top_k}: less than the {CUTOFF} documents that ndcg_{CUTOFF} reads. Use "
            f"{CUTOFF} or more."
        )
    data.check_top_k(top_k, field)
    return top_k
