"""Retrieval data sets and run files, exact search, and metrics of rankings."""

import json
import pathlib

import jax
import numpy as np
import pytest
from etils import epath
from toy_retrieval import DOCUMENTS, write_beir

from bertjax.tasks.embeddings.retrieval import search as search_module
from bertjax.tasks.embeddings.retrieval.metrics import metric_names, ranking_metrics
from bertjax.tasks.embeddings.retrieval.search import search
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import (
    RetrievalDataset,
    is_retrieval_directory,
    read_retrieval_dataset,
)
from data_pipelines.finetuning.embeddings.run_files import format_run, rank, read_run

GOLDENS = pathlib.Path(__file__).parent / "goldens"
CASES = json.loads((GOLDENS / "ranking_metrics.json").read_text())


def read(path: pathlib.Path, split: str = "test") -> RetrievalDataset:
    return read_retrieval_dataset(epath.Path(path), split)


# Data sets


def test_read_retrieval_dataset_joins_titles_and_keeps_judged_queries(tmp_path, caplog) -> None:
    corpus = [
        {"_id": 7, "title": "T", "text": " a\n", "metadata": {}},
        {"_id": "b", "title": "", "text": " no title"},
        {"_id": "c", "text": ""},
    ]
    queries = [{"_id": f"q{i}", "text": f"text {i}"} for i in range(3)]
    with caplog.at_level("INFO"):
        data = read(write_beir(tmp_path, corpus, queries, ["q2\t7\t2", "q0\tb\t1", "q2\tc\t-1"]))
    assert data.document_ids == ["7", "b", "c"] and data.documents == ["T  a", "no title", ""]
    assert data.query_ids == ["q0", "q2"] and data.queries == ["text 0", "text 2"]
    assert data.qrels == {"q2": {"7": 2, "c": -1}, "q0": {"b": 1}}
    assert "test.tsv: judges 2 of 3 queries." in caplog.text


def test_is_retrieval_directory_needs_one_of_the_files(tmp_path) -> None:
    (tmp_path / "train.jsonl").touch()
    assert not is_retrieval_directory(epath.Path(tmp_path))
    assert not is_retrieval_directory(epath.Path(tmp_path / "gone"))
    (tmp_path / "queries.jsonl").touch()
    assert is_retrieval_directory(epath.Path(tmp_path))


DOCUMENT, QUERY = {"_id": "d", "text": "a"}, {"_id": "q", "text": "b"}


@pytest.mark.parametrize(
    ("corpus", "queries", "qrels", "message"),
    [
        ([], [QUERY], ["q\td\t1"], "corpus.jsonl: no rows. Give a file with examples"),
        ([DOCUMENT], [], ["q\td\t1"], "queries.jsonl: no rows"),
        ([DOCUMENT], [QUERY], [], "test.tsv: no rows"),
        ([DOCUMENT, DOCUMENT], [QUERY], ["q\td\t1"], "corpus.jsonl:2: id 'd' is also at .*:1"),
        ([DOCUMENT], [QUERY, QUERY], ["q\td\t1"], "queries.jsonl:2: id 'q' is also at .*:1. Give"),
        ([DOCUMENT], [QUERY], ["q\tx\t1"], "test.tsv:2: 'x' is no _id in corpus.jsonl. Remove the"),
        ([DOCUMENT], [QUERY], ["x\td\t1"], "test.tsv:2: 'x' is no _id in queries.jsonl. Remove"),
        ([DOCUMENT], [QUERY], ["q\td\t0"], "test.tsv: no document has a positive score"),
        ([DOCUMENT], [QUERY], ["q\td\t0.5"], "test.tsv:2: score '0.5' is no whole number. Write 1"),
        ([DOCUMENT], [QUERY], ["q\td\t1"] * 2, "test.tsv:3: query 'q' has document 'd' twice"),
        ([{"_id": "a b", "text": "a"}], [QUERY], ["q\td\t1"], "corpus.jsonl:1: _id 'a b' has a sp"),
        ([{"text": "a"}], [QUERY], ["q\td\t1"], "corpus.jsonl:1: no column '_id', only 'text'"),
        ([{"_id": "d"}], [QUERY], ["q\td\t1"], "corpus.jsonl:1: no column 'text', only '_id'"),
        ([{"_id": "d", "text": None}], [QUERY], ["q\td\t1"], "corpus.jsonl:1: column 'text' is N"),
        ([DOCUMENT], [{"_id": "q", "text": " "}], ["q\td\t1"], "queries.jsonl:1: column 'text' is"),
        ([DOCUMENT], [QUERY], ["q\td"], "test.tsv:2: 2 fields|test.tsv"),
    ],
)  # fmt: skip
def test_read_retrieval_dataset_rejects(tmp_path, corpus, queries, qrels, message) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(write_beir(tmp_path, corpus, queries, qrels))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("corpus.jsonl", "corpus.jsonl: no such file. A retrieval data set has corpus.jsonl, quer"),
        ("queries.jsonl", "queries.jsonl: no such file. A retrieval data set has"),
        ("qrels/test.tsv", "qrels/test.tsv: no such file. Name another split: dev, train."),
    ],
)
def test_read_retrieval_dataset_rejects_a_missing_file(tmp_path, name, message) -> None:
    for split in ("dev", "train", "test"):
        write_beir(tmp_path, split=split)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_qrels_without_a_header_are_rejected(tmp_path) -> None:
    write_beir(tmp_path, [DOCUMENT], [QUERY], ["q\td\t1"])
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\t1\nq\te\t1\n")
    with pytest.raises(InputError, match=r"test.tsv:2: no column 'query-id', only 'q'"):
        read(tmp_path)


# Run files


def test_run_file_reads_back_as_it_was_written(tmp_path) -> None:
    data = read(write_beir(tmp_path))
    random = np.random.default_rng(0)
    run = {
        query: rank(dict(zip(data.document_ids, random.normal(size=25), strict=True)), 20)
        for query in data.query_ids[::-1]
    }
    (tmp_path / "run.trec").write_text(format_run(run, "name"))
    again = read_run(tmp_path / "run.trec", data)
    assert [*again] == data.query_ids
    for query, ranking in run.items():
        assert [name for name, _ in again[query]] == [name for name, _ in ranking]
        scores = [np.float32(score) for _, score in ranking]
        assert [np.float32(score) for _, score in again[query]] == scores


def test_rank_compares_in_float32_and_prefers_larger_ids() -> None:
    scores = {"d2": 1.0, "d10": 1.0 + 1e-12, "d1": 1.0, "é": 1.0, "z": 0.5}
    assert [name for name, _ in rank(scores)] == ["é", "d2", "d10", "d1", "z"]
    assert [name for name, _ in rank(scores, 2)] == ["é", "d2"]


def test_read_run_ignores_ranks_order_and_queries_without_judgments(tmp_path) -> None:
    data = read(write_beir(tmp_path))
    lines = ["q1 Q0 d3 1 0.5 x", "", "q11\tQ0\tgone\t1\t9\tx", "q1 Q0 d4 2 7e-1 x"]
    (tmp_path / "run").write_text("\n".join(lines))
    assert read_run(tmp_path / "run", data) == {"q1": [("d4", 0.7), ("d3", 0.5)]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 d3 0.5", ":1: 3 columns. Write QUERY Q0 DOCUMENT RANK SCORE NAME."),
        ("q1 Q0 d3 1 best x", ":1: score 'best' is no finite number. Write QUERY"),
        ("q1 Q0 d3 1 nan x", ":1: score 'nan' is no finite number"),
        ("q1 Q0 gone 1 1 x", ":1: document 'gone' is no _id in .*/corpus.jsonl. Name the data set"),
        ("q1 Q0 d3 1 1 x\nq1 Q0 d3 2 0 x", ":2: query 'q1' has document 'd3' twice. Remove a line"),
        ("q99 Q0 d3 1 1 x", ": has no query that .* judges. Name the data set and the split"),
        ("", ": has no query that .* judges"),
    ],
)
def test_read_run_rejects(tmp_path, text: str, message: str) -> None:
    data = read(write_beir(tmp_path))
    (tmp_path / "run.trec").write_text(text)
    with pytest.raises(InputError, match=f"run.trec{message}"):
        read_run(tmp_path / "run.trec", data)
    with pytest.raises(InputError, match="gone: no such file"):
        read_run(tmp_path / "gone", data)


# Search


def brute_force(queries: np.ndarray, documents: np.ndarray, k: int) -> tuple:
    products = queries.astype(np.float64) @ documents.T.astype(np.float64)
    order = np.lexsort([np.broadcast_to(np.arange(len(documents)), products.shape), -products])
    return np.take_along_axis(products, order[:, :k], axis=1), order[:, :k]


@pytest.mark.seconds
@pytest.mark.parametrize(("documents_per_block", "queries_per_block"), [(64, 16), (7, 3), (1, 1)])
def test_search_finds_the_largest_products_whatever_the_blocks(
    documents_per_block: int, queries_per_block: int
) -> None:
    random = np.random.default_rng(0)
    # Small whole numbers: products are exact, and many are equal.
    queries, documents = (random.integers(-2, 3, (n, 4)).astype(np.float32) for n in (10, 50))
    for k in (1, 9, 50):
        neighbors = search(queries, documents, k, documents_per_block, queries_per_block)
        scores, indices = brute_force(queries, documents, k)
        np.testing.assert_array_equal(neighbors.scores, scores)
        np.testing.assert_array_equal(neighbors.indices, indices)
        assert neighbors.indices.dtype == np.int32 and neighbors.scores.dtype == np.float32


def test_search_takes_zero_and_negative_zero_for_equal() -> None:
    documents = np.array([[-0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]], np.float32)
    neighbors = search(np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32), documents, 3)
    assert neighbors.indices.tolist() == [[0, 1, 2], [2, 0, 1]]


def test_search_compiles_one_program_and_holds_few_blocks(monkeypatch) -> None:
    random = np.random.default_rng(1)
    documents = random.normal(size=(1000, 8)).astype(np.float32)
    placed: list = []
    put = jax.device_put
    monkeypatch.setattr(
        search_module.jax, "device_put", lambda array: placed.append(array.shape) or put(array)
    )
    before = search_module._merge_block._cache_size()
    neighbors = search(documents[:5], documents, 3, documents_per_block=64)
    assert search_module._merge_block._cache_size() == before + 1
    assert placed == [(5, 8), *[(64, 8)] * 16]  # never the whole corpus
    np.testing.assert_array_equal(neighbors.indices, brute_force(documents[:5], documents, 3)[1])


# Metrics


@pytest.mark.parametrize("case", CASES, ids=["relevant", "binary", "graded"])
def test_ranking_metrics_are_those_of_trec_eval(case) -> None:
    run = {query: rank(scores) for query, scores in case["run"].items()}
    metrics = ranking_metrics(run, case["qrels"], 20)
    assert {*metrics} == {*case["metrics"]} == {*metric_names(20)}
    for name, value in case["metrics"].items():
        assert metrics[name] == pytest.approx(value, abs=1e-12), name


def test_ranking_metrics_of_perfect_and_missing_rankings() -> None:
    qrels = {"a": {"x": 3, "y": 1, "z": 0}, "b": {"x": 1}}
    perfect = {"a": [("x", 2.0), ("y", 1.0)], "b": [("x", 1.0)]}
    metrics = ranking_metrics(perfect, qrels, 10)
    assert metrics.pop("recall_1") == 0.75
    assert {*metrics.values()} == {1.0}
    assert {*ranking_metrics({}, qrels, 10).values()} == {0.0}
    half = ranking_metrics({"a": perfect["a"]}, qrels, 10)
    assert half["mrr_10"] == half["ndcg_10"] == 0.5


def test_ranking_metrics_depend_on_the_cutoffs() -> None:
    ranking = [(f"d{i}", -float(i)) for i in range(30)]
    metrics = ranking_metrics({"q": ranking}, {"q": {"d10": 1, "d20": 1}}, 15)
    assert metrics["ndcg_10"] == metrics["mrr_10"] == metrics["recall_10"] == 0
    assert metrics["recall_15"] == 0.5 and metrics["map_15"] == pytest.approx(1 / 22)


def test_check_top_k_leaves_out_a_query_that_is_a_document(tmp_path) -> None:
    data = read(write_beir(tmp_path))
    data.check_top_k(25, "data.top_k")
    with pytest.raises(InputError, match=r"^data.top_k=26: .* has 25 documents. Use at most 25."):
        data.check_top_k(26, "data.top_k")
    corpus = [{"_id": f"q{i}", "text": text} for i, text in enumerate(DOCUMENTS)]
    data = read(write_beir(tmp_path, corpus, qrels=["q0\tq1\t1"]))
    with pytest.raises(InputError, match="has 24 documents but the one with a query's id"):
        data.check_top_k(25, "data.top_k")
