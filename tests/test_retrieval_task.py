"""Evaluation of embeddings by retrieval: detection, prompts, scores, the run file, export."""

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import toy_embeddings
import toy_tasks
from etils import epath
from processes import run
from toy_retrieval import DOCUMENTS, write_beir

import bertjax
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.convert import convert
from bertjax.tasks.embeddings.retrieval.evaluation import RetrievalEvalSet
from bertjax.tasks.embeddings.retrieval.metrics import ranking_metrics
from bertjax.tasks.embeddings.task import EmbeddingsTask
from bertjax.tasks.task import Evaluation
from bertjax.training.evaluator import evaluate
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import read_retrieval_dataset
from data_pipelines.finetuning.embeddings.run_files import RUN_FILE, read_run

TOP_K = {"data__top_k": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    write_beir(path / "beir")
    return path


def prepare(folder: pathlib.Path, **overrides: Any) -> EmbeddingsTask:
    overrides = {"data__eval_file": "beir", "eval_batch_size": 8, **TOP_K, **overrides}
    return toy_embeddings.prepare(folder, **overrides)


def evaluate_random_model(task: EmbeddingsTask) -> tuple[Evaluation, dict[str, np.ndarray]]:
    """Return the evaluation, and the unit vector of each text."""
    (eval_set,) = task.eval_sets()
    assert isinstance(eval_set, RetrievalEvalSet)
    apply = jax.jit(task.objective.apply, static_argnums=(2, 3))
    params = task.objective.init_params(jax.random.key(0))
    outputs, vectors = [], {}
    for number, batch in enumerate(eval_set.batches()):
        whole = jax.device_get(apply(params, batch, None, None))
        outputs.append(eval_set.keep_outputs(number, whole))
        for row, slot in np.argwhere(batch["text_slots_weights"] > 0):
            ids = batch["input_ids"][row][batch["example_ids"][row] == slot + 1]
            vectors[task.tokenizer.decode(ids.tolist())] = whole["embeddings"][row, slot]
    assert sum(len(batch["embeddings"]) for batch in outputs) == 35  # no empty slots
    return eval_set.evaluation({}, outputs), vectors


@pytest.mark.seconds
def test_evaluation_ranks_documents_by_cosines(folder, tmp_path) -> None:
    task = prepare(folder)
    evaluation, vectors = evaluate_random_model(task)
    data = read_retrieval_dataset(epath.Path(folder / "beir"), "test")
    (tmp_path / "run").write_text(evaluation.files[RUN_FILE])
    ranked = read_run(tmp_path / "run", data)
    assert [len(ranking) for ranking in ranked.values()] == [20] * 10
    by_text = {text.strip("[CLSEP] "): vector for text, vector in vectors.items()}
    for query, text in zip(data.query_ids, data.queries, strict=True):
        cosines = {
            d: float(by_text[text] @ by_text[DOCUMENTS[int(d[1:])]]) for d, _ in ranked[query]
        }
        for document, score in ranked[query]:
            assert score == pytest.approx(cosines[document], abs=1e-5)
        scores = [score for _, score in ranked[query]]
        assert scores == sorted(scores, reverse=True)
    # The scores in the file are those of the metrics: trec_eval computes the same from it.
    assert evaluation.scores == ranking_metrics(ranked, data.qrels, 20)
    assert {*evaluation.scores} == {*task.eval_sets()[0].score_names}  # type: ignore[attr-defined]
    assert evaluation.scores["recall_10"] == pytest.approx(1, abs=0.1)  # equal texts
    assert evaluation.examples[0].startswith("ba me → d")


@pytest.mark.seconds
def test_evaluation_has_metrics_of_matryoshka_dimensions(folder) -> None:
    evaluation, _ = evaluate_random_model(prepare(folder, data__matryoshka_dims="64,2"))
    scores = evaluation.scores
    assert scores["ndcg_10_64"] == scores["ndcg_10"] != scores["ndcg_10_2"]


@pytest.mark.seconds
def test_documents_with_the_id_of_the_query_are_left_out(folder, tmp_path) -> None:
    corpus = [{"_id": f"q{i}", "text": text} for i, text in enumerate(DOCUMENTS)]
    queries = [{"_id": f"q{i}", "text": DOCUMENTS[i]} for i in range(3)]
    path = write_beir(tmp_path / "own", corpus, queries, [f"q{i}\tq{i + 5}\t1" for i in range(3)])
    evaluation, _ = evaluate_random_model_of(folder, path)
    for line in evaluation.files[RUN_FILE].splitlines():
        query, _, document, *_ = line.split()
        assert query != document
    assert len(evaluation.files[RUN_FILE].splitlines()) == 3 * 20


def evaluate_random_model_of(folder: pathlib.Path, path: pathlib.Path) -> tuple[Evaluation, Any]:
    task = prepare(folder, data__eval_file=path)
    (eval_set,) = task.eval_sets()
    assert isinstance(eval_set, RetrievalEvalSet)
    apply = jax.jit(task.objective.apply, static_argnums=(2, 3))
    params = task.objective.init_params(jax.random.key(0))
    outputs = [
        eval_set.keep_outputs(number, jax.device_get(apply(params, batch, None, None)))
        for number, batch in enumerate(eval_set.batches())
    ]
    return eval_set.evaluation({}, outputs), params


def test_prompts_precede_queries_documents_anchors_and_positives(folder) -> None:
    prompts = {"data__query_prompt": "'ki ki '", "data__document_prompt": "'lu '"}
    task = prepare(folder, **prompts)
    (eval_set,) = task.eval_sets()
    texts = [
        task.format_sequence(batch, row)
        for batch in eval_set.batches()
        for row in range(len(batch["input_ids"]))
    ]
    lines = [line for text in texts for line in text.splitlines()]
    assert sum(": [CLS] ki ki " in line for line in lines) == 10
    assert sum(": [CLS] lu " in line for line in lines) == 25
    batch = task.train_batch(0)
    lines = [
        line
        for row in range(len(batch["input_ids"]))
        for line in task.format_sequence(batch, row).splitlines()
    ]
    assert all((": [CLS] ki ki " in line) == ("text 1:" in line) for line in lines)
    assert all((": [CLS] lu " in line) == ("text 2:" in line) for line in lines)
    scored = prepare(folder, data__train_file="scored.csv", batch_size=8, **prompts)
    batch = scored.train_batch(0)
    rows = range(len(batch["input_ids"]))
    assert "lu" not in "".join(scored.format_sequence(batch, row) for row in rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__top_k": 9}, "data.top_k=9: less than the 10 documents that ndcg_10 reads. Use 10"),
        ({"data__top_k": 26}, "data.top_k=26: .*beir has 25 documents. Use at most 25."),
        ({"data__qrels": "dev"}, ".*dev.tsv: no such file. Name another split: test."),
        ({"data__eval_file": "gone"}, ".*gone: no such file. Set data.dir to its directory, or"),
        (
            {
                "data__train_file": "texts.jsonl",
                "data__query_prompt": "x",
                "model__hidden_dropout_prob": 0.1,
            },
            "data.query_prompt='x': a text alone is neither a query nor a document. Leave it out",
        ),
        ({"best_metric": "ndcg_5"}, "best_metric='ndcg_5': is not a score of this task. Use one"),
    ],
)
def test_invalid_options_are_rejected(folder, overrides, message, tmp_path) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        prepare(folder, **overrides)
        fields = {"data__eval_file": "beir", "steps": 2, "optimizer__warmup": 1, **TOP_K}
        config = toy_tasks.configuration("embeddings", folder, **fields, **overrides)
        make_trainer(config, tmp_path / "run")


def test_runs_are_ranked_by_ndcg_beside_pairs(folder) -> None:
    assert prepare(folder).primary_metrics[0] == "ndcg_10"
    (folder / "more").mkdir(exist_ok=True)
    write_beir(folder / "more" / "a")
    (folder / "more" / "b.csv").write_text("".join(toy_embeddings.SCORED))
    task = prepare(folder, data__eval_file="more/*")
    assert {"ndcg_10", "spearman", "mrr_10"} < {*task.primary_metrics}
    assert [eval_set.name for eval_set in task.eval_sets()] == ["a", "b"]


# The whole way: train, evaluate by the command, export


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> pathlib.Path:
    fields = {"steps": 4, "optimizer__warmup": 1, "data__query_prompt": "'ki '", **TOP_K}
    fields |= {"data__eval_file": "beir", "best_metric": "ndcg_10", "eval_every": 2}
    path = tmp_path_factory.mktemp("trained") / "run"
    make_trainer(toy_tasks.configuration("embeddings", folder, **fields), path).train()
    return path


@pytest.mark.slow
def test_evaluate_detects_the_layout_and_writes_a_run_file(trained, folder, tmp_path) -> None:
    config = f"embeddings:data={folder / 'beir'}"
    command = ["evaluate", "--checkpoint", trained, "--config", config, "--config.data.top_k=20"]
    done = run(*command, "--config.max_seq_length=32", "--output", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())
    data = read_retrieval_dataset(epath.Path(folder / "beir"), "test")
    ranked = read_run(tmp_path / "scores" / RUN_FILE, data)
    assert scores == ranking_metrics(ranked, data.qrels, 20)
    # The prompt is that of the run, as its pooling is.
    model = bertjax.load(trained)
    vectors = model.encode([f"ki {data.queries[0]}", data.documents[0]])
    assert dict(ranked["q0"])["d0"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    evals = [line for line in lines if line["split"] == "eval"]
    assert [line["step"] for line in evals] == [2, 4]
    best = max(line["ndcg_10"] for line in evals)
    assert best == pytest.approx(scores["ndcg_10"], abs=1e-6)


@pytest.mark.slow
def test_export_has_the_prompts(trained, folder, tmp_path) -> None:
    convert(trained, tmp_path / "hf", "bertjax", "hf")
    pooling = find_pooling_config(tmp_path / "hf")
    assert pooling and (pooling.query_prompt, pooling.document_prompt) == ("ki ", "")
    settings = json.loads((tmp_path / "hf" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "ki "}
    fields = {"data__eval_file": "beir", **TOP_K}
    ours, theirs = (
        evaluate(toy_tasks.configuration("embeddings", folder, model, **fields), model).scores
        for model in (trained, tmp_path / "hf")
    )
    assert ours == pytest.approx(theirs, abs=1e-6)
