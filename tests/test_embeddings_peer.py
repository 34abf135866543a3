"""Comparison with sentence-transformers: what both sides see, figures, SQuAD as retrieval."""

import json
import pathlib
import subprocess
import sys

import pytest
import toy_embeddings
import toy_tasks
from conftest import PEERS, process_environment
from etils import epath
from toy_retrieval import write_beir

from bertjax.inference.convert import convert
from bertjax.training.setup import make_trainer
from data_pipelines.finetuning.embeddings.beir import read_retrieval_dataset
from experiments.bench import embeddings_peer
from experiments.bench.squad_retrieval import write_squad_retrieval

ROOT = pathlib.Path(__file__).parent.parent


def squad(*paragraphs: tuple[str, str, int]) -> str:
    """Return a file of SQuAD with an article for each title, paragraph and number of questions."""
    articles = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": text,
                    "qas": [
                        {"id": f"{title}{i}{len(text)}", "question": f" who {i}?"}
                        for i in range(count)
                    ],
                }
            ],
        }
        for title, text, count in paragraphs
    ]
    return json.dumps({"data": articles})


def test_squad_retrieval_has_the_layout_of_beir(tmp_path) -> None:
    (tmp_path / "train.json").write_text(squad(("A_b", "one", 2), ("C", "two ", 1), ("D", "no", 9)))
    (tmp_path / "dev.json").write_text(squad(("E", "x", 1), ("F_g", "y.", 2), ("E", "x", 0)))
    output = tmp_path / "out"
    counts = write_squad_retrieval(tmp_path / "train.json", 2, tmp_path / "dev.json", output)
    assert counts == {"corpus": 2, "queries": 3, "train": 3}
    data = read_retrieval_dataset(epath.Path(output), "test")
    assert data.documents == ["E x", "F g y."] and data.queries == ["who 0?", "who 0?", "who 1?"]
    assert data.qrels == {"E01": {"p0": 1}, "F_g02": {"p1": 1}, "F_g12": {"p1": 1}}
    rows = [json.loads(line) for line in (output / "train.jsonl").read_text().splitlines()]
    assert rows == [
        {"anchor": "who 0?", "positive": "A b one"},
        {"anchor": "who 1?", "positive": "A b one"},
        {"anchor": "who 0?", "positive": "C two"},
    ]


@pytest.mark.parametrize("file", ["translations.jsonl", "scored.csv"])
def test_recipe_has_the_texts_of_every_step(tmp_path, file: str) -> None:
    toy_embeddings.write_data(tmp_path)
    write_beir(tmp_path / "beir")
    fields = {"steps": 3, "optimizer__warmup": 1, "batch_size": 4, "data__train_file": file}
    fields |= {"data__eval_file": "beir", "data__top_k": 20}
    config = toy_tasks.configuration("embeddings", tmp_path, **fields)
    recipe = embeddings_peer.make_recipe(config)
    assert len(recipe["steps"]) == 3 and len(recipe["learning_rates"]) == 4
    assert {len(step) for step in recipe["steps"]} == {4}
    if file == "translations.jsonl":
        assert recipe["scores"] is None
        for step in recipe["steps"]:  # no text twice
            texts = [text for row in step for text in recipe["texts"][row]]
            assert len({*texts}) == len(texts) == 8
    else:
        assert recipe["scores"] == [i / 8 for i in range(8)]
    assert len(recipe["retrieval"]["documents"]) == 25 and recipe["retrieval"]["top_k"] == 20


def test_collect_figures_counts_texts_by_processor_time() -> None:
    cost = embeddings_peer.Cost(120.0, 60.0)
    intervals = [[2, 0.5, 1.0], [4, 0.25, 2.0]]
    figures = embeddings_peer.collect_figures({"spearman": 0.5, "step": 4}, cost, intervals, 8, 2)
    assert figures["texts/CPU s"] == pytest.approx(4 * 8 * 2 / 60)
    assert figures["spearman"] == 0.5 and figures["CPU minutes"] == 1 and "step" not in figures


@pytest.mark.minutes
@pytest.mark.skipif(not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch")
@pytest.mark.parametrize("file", ["translations.jsonl", "scored.csv"])
def test_both_sides_learn_the_same(tmp_path, file: str) -> None:
    if not toy_embeddings.has_sentence_transformers(PEERS[0]):
        pytest.skip(f"{PEERS[0]} has no sentence-transformers")
    toy_embeddings.write_data(tmp_path)
    write_beir(tmp_path / "beir")
    start = toy_tasks.configuration("embeddings", tmp_path, steps=2, optimizer__warmup=1)
    make_trainer(start, tmp_path / "start").train()
    convert(tmp_path / "start", tmp_path / "hf", "bertjax", "hf")
    arguments = toy_tasks.arguments(
        "embeddings",
        tmp_path,
        tmp_path / "hf",
        data__train_file=file,
        data__eval_file="beir" if file == "translations.jsonl" else "scored.csv",
        data__top_k=20,
        steps=8,
        batch_size=8,
        log_every=1,
        optimizer__warmup=2,
        model__hidden_dropout_prob=0.0,
        model__attention_probs_dropout_prob=0.0,
    )
    command = [sys.executable, "-m", "experiments.bench.embeddings_peer", "--peer-python", PEERS[0]]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out"), *arguments],
        capture_output=True,
        text=True,
        env=process_environment() | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = {
        path.name.partition("-0")[0]: json.loads(path.read_text())
        for path in (tmp_path / "out").glob("*.json")
    }
    ours, theirs = results["bertjax"], results["sentence-transformers"]
    losses = {step: loss for step, loss, _ in theirs["intervals"]}
    for step, loss, _ in ours["intervals"]:  # without dropout nothing is drawn
        assert loss == pytest.approx(losses[step], rel=2e-4), step
    metric = "spearman" if file == "scored.csv" else "mrr_10"
    assert ours["figures"][metric] == pytest.approx(theirs["figures"][metric], abs=2e-3)
    assert "texts/CPU s" in done.stdout and "speedup over sentence-transformers" in done.stdout
