"""Reranking of a retrieval by a classifier of pairs: its scores, its command, its errors."""

import json
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import toy_embeddings
import toy_tasks
from etils import epath
from processes import run
from random_models import draw_model
from toy_retrieval import DOCUMENTS, write_beir

import bertjax
from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import write_modules
from bertjax.formats.tensors import PoolingConfig
from bertjax.inference import reranking
from bertjax.inference.convert import convert
from bertjax.inference.reranking import open_reranker, rerank, search_documents
from bertjax.model.bert_config import BertConfig
from bertjax.tasks.embeddings.retrieval.metrics import ranking_metrics
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import RetrievalDataset, read_retrieval_dataset
from data_pipelines.finetuning.embeddings.run_files import (
    RUN_FILE,
    Ranking,
    format_run,
    rank,
    read_run,
)

TOP_K = 12
# A document is relevant if it has the first word of the query.
RELEVANT = {word: [i for i, text in enumerate(DOCUMENTS) if text.startswith(word)] for word in
            toy_tasks.WORDS[:5]}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a directory of toy data, a retrieval data set, a run file and pairs to train on."""
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    queries = [{"_id": f"q{i}", "text": word} for i, word in enumerate(RELEVANT)]
    qrels = [f"q{i}\td{d}\t1" for i, docs in enumerate(RELEVANT.values()) for d in docs]
    write_beir(path / "beir", queries=queries, qrels=qrels)
    draw = np.random.default_rng(0)
    first = {f"q{i}": rank({f"d{d}": draw.random() for d in range(25)}, 20) for i in range(5)}
    (path / "first.trec").write_text(format_run(first))
    pairs = [(word, text, int(text.startswith(word))) for word in RELEVANT for text in DOCUMENTS]
    for name, labels in (("pairs", ("0", "1")), ("named", ("yes", "no"))):
        rows = [{"query": q, "document": d, "label": labels[y]} for q, d, y in pairs]
        relevant = [row for row in rows if row["label"] == labels[1]]
        toy_tasks.write_lines(path / f"{name}.jsonl", rows + 3 * relevant)
    rows = [{"query": q, "document": d, "score": y} for q, d, y in pairs]
    toy_tasks.write_lines(path / "graded.jsonl", rows)
    return path


@pytest.fixture(scope="module")
def data(folder) -> RetrievalDataset:
    return read_retrieval_dataset(epath.Path(folder / "beir"), "test")


@pytest.fixture(scope="module")
def first(folder, data) -> dict[str, Ranking]:
    return read_run(folder / "first.trec", data)


def train(folder: pathlib.Path, path: pathlib.Path, file: str) -> pathlib.Path:
    kind = "regression" if file == "graded.jsonl" else "single_label"
    fields = {"data__train_file": file, "data__eval_file": file, "steps": 2}
    fields |= {"data__text": "query", "data__text_pair": "document", "data__label": "label"}
    if kind == "regression":
        fields["data__label"] = "score"
    fields["optimizer__warmup"] = 1
    make_trainer(toy_tasks.configuration(kind, folder, **fields), path).train()
    return path


@pytest.fixture(scope="module")
def reranker(folder, tmp_path_factory) -> pathlib.Path:
    return train(folder, tmp_path_factory.mktemp("run") / "pairs", "pairs.jsonl")


@pytest.mark.slow
def test_rerank_orders_the_first_documents_by_the_classifier(reranker, data, first) -> None:
    result = rerank(open_reranker(reranker), data, first, TOP_K)
    lines = [line.split() for line in result.files[RUN_FILE].splitlines()]
    assert len(lines) == 5 * TOP_K
    model = bertjax.load(reranker)
    for query, text in zip(data.query_ids, data.queries, strict=True):
        ranked = {line[2]: float(line[4]) for line in lines if line[0] == query}
        assert {*ranked} == {document for document, _ in first[query][:TOP_K]}
        assert [*ranked.values()] == sorted(ranked.values(), reverse=True)
        answers = model.predict(
            [{"query": text, "document": DOCUMENTS[int(name[1:])]} for name in ranked],
            return_all_scores=True,
        )
        probabilities = [answer["scores"]["1"] for answer in answers]
        expected = 1 / (1 + np.exp(-np.array([*ranked.values()])))
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert result.first_stage == ranking_metrics(first, data.qrels, TOP_K)
    # The same documents in another order.
    assert result.scores[f"recall_{TOP_K}"] == result.first_stage[f"recall_{TOP_K}"]


@pytest.mark.slow
def test_rerank_by_a_number_and_by_a_named_label(folder, data, first, tmp_path) -> None:
    graded = train(folder, tmp_path / "graded", "graded.jsonl")
    result = rerank(open_reranker(graded), data, first, TOP_K)
    line = result.files[RUN_FILE].splitlines()[0].split()
    pair = {"query": data.queries[0], "document": DOCUMENTS[int(line[2][1:])]}
    assert bertjax.load(graded).predict(pair)["score"] == pytest.approx(float(line[4]), abs=1e-5)
    with pytest.raises(InputError, match="--relevant-label=yes: the model predicts a number"):
        rerank(open_reranker(graded, "yes"), data, first, TOP_K)
    named = train(folder, tmp_path / "named", "named.jsonl")
    message = r"--relevant-label='': the labels are no and yes. Name the one of relevant"
    with pytest.raises(InputError, match=message):
        rerank(open_reranker(named), data, first, TOP_K)
    yes, no = (rerank(open_reranker(named, label), data, first, TOP_K) for label in ("yes", "no"))
    scores = [
        {
            tuple(line.split()[:3:2]): float(line.split()[4])
            for line in r.files[RUN_FILE].splitlines()
        }
        for r in (yes, no)
    ]
    assert scores[0] == {pair: -score for pair, score in scores[1].items()}
    convert(named, tmp_path / "hf", "bertjax", "hf")
    exported = rerank(open_reranker(tmp_path / "hf", "yes"), data, first, TOP_K)
    assert exported.scores == pytest.approx(yes.scores)


@pytest.mark.slow
def test_models_that_score_no_pairs_are_rejected(folder, data, first, tmp_path) -> None:
    fields = {"steps": 2, "optimizer__warmup": 1}
    rejected = {
        "single_label": "the model reads one text. Train it on pairs of query and document",
        "embeddings": "the model embeds texts. Name a model of sequence classification",
    }
    for kind, message in rejected.items():
        config = toy_tasks.configuration(kind, folder, **fields)
        make_trainer(config, tmp_path / kind).train()
        with pytest.raises(InputError, match=message):
            rerank(open_reranker(tmp_path / kind), data, first, TOP_K)
    three = {"data__text": "text", "data__text_pair": "mood", "data__label": "label"}
    rows = [{"text": "ba", "mood": "do", "label": label} for label in "abc" * 6]
    toy_tasks.write_lines(folder / "three.jsonl", rows)
    files = {"data__train_file": "three.jsonl", "data__eval_file": "three.jsonl"}
    config = toy_tasks.configuration("single_label", folder, **three, **files, **fields)
    make_trainer(config, tmp_path / "three").train()
    with pytest.raises(InputError, match="the model has 3 labels"):
        rerank(open_reranker(tmp_path / "three"), data, first, TOP_K)


@pytest.mark.parametrize(
    ("top_k", "message"),
    [
        (9, "--top-k=9: less than the 10 documents that ndcg_10 reads. Use 10 or more."),
        (21, "--top-k=21: the run has at most 20 documents of a query. Use at most 20."),
        (26, "--top-k=26: .*beir has 25 documents. Use at most 25."),
    ],
)
def test_rerank_rejects_top_k(top_k: int, message: str, data, first) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        rerank(lambda pairs: None, data, first, top_k)


@pytest.mark.slow
def test_command_searches_reranks_and_writes_scores(reranker, folder, tmp_path) -> None:
    fields = {"steps": 2, "optimizer__warmup": 1, "data__query_prompt": "'ki '"}
    config = toy_tasks.configuration("embeddings", folder, **fields)
    make_trainer(config, tmp_path / "similar").train()
    words = ["rerank", "--checkpoint", reranker, "--data", folder / "beir", "--top-k", TOP_K]
    command = [*words, "--retriever", tmp_path / "similar", "--output", tmp_path / "scores"]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert json.loads(done.stdout) == scores and "first stage" in done.stderr
    data = read_retrieval_dataset(epath.Path(folder / "beir"), "test")
    ranked = read_run(tmp_path / "scores" / RUN_FILE, data)
    assert scores == ranking_metrics(ranked, data.qrels, TOP_K)
    first = search_documents(tmp_path / "similar", data, "test", TOP_K)
    exported = tmp_path / "hf"
    convert(tmp_path / "similar", exported, "bertjax", "hf")
    assert {*search_documents(exported, data, "test", TOP_K)} == {*first}
    for query, ranking in first.items():
        assert {name for name, _ in ranking} == {name for name, _ in ranked[query]}
    again = run(*command)
    assert again.returncode == 2 and "has scores.json. Name another directory." in again.stderr
    for option, problem in (
        (["--retriever", reranker], "no model of embeddings. Name a run of embeddings"),
        (["--run", folder / "gone.trec"], "gone.trec: no such file"),
        (
            ["--run", folder / "first.trec", "--qrels", "dev"],
            "no such file. Name another split: test",
        ),
    ):
        failed = run(*words, *option, "--output", tmp_path / "other")
        assert failed.returncode == 2 and problem in failed.stderr, failed.stderr
        assert failed.stderr.count("\n") == 1 and not (tmp_path / "other").exists()


def test_search_documents_reads_all_positions_of_a_model_of_unknown_length(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
) -> None:
    config = BertConfig(128, 1, 64, 1, max_position_embeddings=256)
    path = epath.Path(tmp_path)
    huggingface.write(draw_model(config, toy_tasks.TOKENIZER), path)
    write_modules(path, PoolingConfig(path, "mean", True, None), 64)
    (tmp_path / "tokenizer_config.json").unlink()
    lengths = []

    def evaluate(config: Config, _: object) -> SimpleNamespace:
        lengths.append(config.max_seq_length)
        return SimpleNamespace(files={RUN_FILE: (folder / "first.trec").read_text()})

    monkeypatch.setattr(reranking, "evaluate", evaluate)
    data = read_retrieval_dataset(epath.Path(folder / "beir"), "test")
    search_documents(tmp_path, data, "test", TOP_K)
    assert lengths == [256]
