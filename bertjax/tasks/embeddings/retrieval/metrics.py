"""Metrics of rankings, as trec_eval defines them; those of BEIR.

They are written out, as pytrec-eval has no reciprocal rank with a cutoff and would make every
evaluation of a training run depend on an extension module. `tests/goldens` has its figures.
"""

from collections.abc import Sequence

import numpy as np

from data_pipelines.finetuning.embeddings.beir import Qrels
from data_pipelines.finetuning.embeddings.run_files import Run

CUTOFF = 10  # of nDCG and the reciprocal rank, as published results of BEIR have it


def metric_names(top_k: int) -> tuple[str, ...]:
    """Return the names of the metrics of `top_k` ranked documents, the most cited first."""
    recalls = dict.fromkeys(f"recall_{k}" for k in (1, CUTOFF, top_k))
    return (f"ndcg_{CUTOFF}", f"mrr_{CUTOFF}", f"map_{top_k}", *recalls)


def ranking_metrics(run: Run, qrels: Qrels, top_k: int) -> dict[str, float]:
    """Return the means over all judged queries; a query without ranked documents counts as 0.

    - `ndcg_10`: discounted cumulative gain over that of the best ranking. The gain of a document is
      its grade, divided by log2(1 + rank) (Jarvelin and Kekalainen 2002).
    - `mrr_10`: reciprocal of the rank of the first relevant document, 0 beyond rank 10.
    - `map_K`: mean of the precisions at the ranks of the relevant documents, 0 for those beyond K.
    - `recall_K`: share of the relevant documents at the first K ranks.

    Args:
      run: ranked documents of each query; at most `top_k` count.
      qrels: grades of the documents of each query; others have grade 0.
      top_k: K, at least `CUTOFF`.
    """
    gains = np.zeros((len(qrels), top_k))
    ideal = np.zeros((len(qrels), CUTOFF))
    num_relevant = np.zeros(len(qrels))
    for row, (query, grades) in enumerate(qrels.items()):
        ranked = [grades.get(document, 0) for document, _ in run.get(query, ())[:top_k]]
        gains[row, : len(ranked)] = ranked
        best = _positive(sorted(grades.values(), reverse=True))
        ideal[row, : len(best[:CUTOFF])] = best[:CUTOFF]
        num_relevant[row] = len(best)
    gains = np.maximum(gains, 0)
    is_relevant = gains > 0
    ranks = np.arange(1, top_k + 1)
    hits = np.cumsum(is_relevant, axis=1)
    discounts = 1 / np.log2(1 + ranks[:CUTOFF])
    reciprocals = (is_relevant / ranks)[:, :CUTOFF].max(axis=1)
    precisions = (hits / ranks * is_relevant).sum(axis=1)
    values = {
        f"ndcg_{CUTOFF}": _ratio(gains[:, :CUTOFF] @ discounts, ideal @ discounts),
        f"mrr_{CUTOFF}": reciprocals,
        f"map_{top_k}": _ratio(precisions, num_relevant),
        **{f"recall_{k}": _ratio(hits[:, k - 1], num_relevant) for k in (1, CUTOFF, top_k)},
    }
    return {name: float(values[name].mean()) for name in metric_names(top_k)}


def _positive(grades: Sequence[int]) -> list[int]:
    return [grade for grade in grades if grade > 0]


def _ratio(values: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return values / totals, 0 for a query without relevant documents."""
    return values / np.where(totals > 0, totals, 1)
