"""Scores of sentence-transformers as bertjax defines them."""

import pytest

from bertjax.tasks.embeddings.retrieval.metrics import ranking_metrics
from experiments.bench.peers import torch_embeddings

TOP_K = 10


@pytest.mark.parametrize("grade", [1, 2])
def test_comparable_scores_count_queries_without_relevant_documents(grade: int) -> None:
    run = {query: [("a", 2.0), ("b", 1.0)] for query in ("first", "second", "third")}
    qrels = {"first": {"a": grade}, "second": {"b": 1, "a": -1}}
    means = ranking_metrics(run, qrels, TOP_K)
    qrels |= {"third": {"a": 0}, "fourth": {}}
    scores = torch_embeddings.comparable_scores(means, qrels)
    expected = ranking_metrics(run, qrels, TOP_K)
    if grade > 1:  # the peer's evaluator ignores grades
        del expected["ndcg_10"]
    assert scores == pytest.approx(expected)
