"""Evaluation of generated texts: that of the predictor, on any mesh, and what is rejected."""

import dataclasses
import functools
import importlib.util
import json
import pathlib
from typing import Any

import pytest
import toy_tasks
from conftest import free_port, process_environment
from processes import Command
from program import become_child
from random_models import draw_model
from run_outputs import metrics
from test_interface import SHAPE

import bertjax
from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.sweeps.grid import Trial
from bertjax.sweeps.sweep import sweep
from bertjax.tasks import registry
from bertjax.tasks.generation.text_scores import bleu, rouge_l
from bertjax.training.evaluator import check_best_metric, evaluate
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError

COUNT = 40  # sources of the eval split for which a target is generated
needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None, reason="needs pip install 'bertjax[generation]'"
)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(folder)
    rows = [json.loads(line) for line in (folder / "pairs-dev.jsonl").open()]
    for row in rows:
        row["target"] = f"{row['target']} no me ra si"
    toy_tasks.write_lines(folder / "pairs-dev.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("model")
    shape = dataclasses.replace(SHAPE, num_labels=0, decoder="prefix", dtype="float32")
    drawn = draw_model(shape, toy_tasks.TOKENIZER, "mlm")
    drawn.params["mlm"]["bias"][:] *= 20  # so that several tokens are likely
    huggingface.write(drawn, path)  # type: ignore[arg-type]
    return path


def configuration(toys: pathlib.Path, model: object = "", **fields: object) -> Config:
    fields = {"data__num_generated": COUNT, **fields}
    if model:
        fields |= {"max_seq_length": 32}
    return toy_tasks.configuration("generation", toys, model, **fields)


@needs_sacrebleu
@pytest.mark.slow  # compiles decoding for two meshes
@pytest.mark.parametrize(
    "fields",
    [
        {"mesh__data": 8},
        {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "decoding__num_beams": 3},
    ],
)
def test_evaluation_scores_what_the_predictor_generates(toys, model, fields) -> None:
    options = {"num_beams": fields.get("decoding__num_beams", 1), "max_new_tokens": 12}
    result = evaluate(configuration(toys, model, **fields), model)
    predictions = result.files["predictions"]
    rows = [json.loads(line) for line in (toys / "pairs-dev.jsonl").open()][:COUNT]
    assert [(p["source"], p["target"]) for p in predictions] == [
        (row["source"], row["target"]) for row in rows
    ]
    texts = [p["generated_text"] for p in predictions]
    answers = bertjax.load(model).generate([row["source"] for row in rows], **options)
    assert texts == [answer["generated_text"] for answer in answers]
    targets = [row["target"] for row in rows]
    assert result.files["bleu"] == bleu(texts, targets, lowercase=True)
    assert result.scores["bleu"] == result.files["bleu"]["score"]
    assert result.scores["rouge_l"] == rouge_l(texts, targets, strip_accents=True)
    assert result.examples[0].startswith(f"{rows[0]['source']} → ")


@pytest.mark.seconds
def test_evaluations_generate_nothing_by_default(toys, model) -> None:
    result = evaluate(configuration(toys, model, data__num_generated=0), model)
    assert result.scores.keys() == {"loss", "mlm_loss", "mlm_accuracy", "mlm_perplexity"}
    assert not result.files


@pytest.mark.seconds
@needs_sacrebleu
def test_several_eval_sets_have_their_own_texts_and_a_mean(toys, model) -> None:
    config = configuration(toys, model, data__num_generated=5, data__eval_file="pairs*.jsonl")
    result = evaluate(config, model)
    names = [name for name in result.scores if name.endswith("/bleu")]
    assert len(names) == 2
    assert result.scores["rouge_l"] == pytest.approx(
        sum(result.scores[name.replace("bleu", "rouge_l")] for name in names) / 2
    )
    for name in names:
        assert len(result.files[name.replace("/bleu", ".predictions")]) == 5


@needs_sacrebleu
@pytest.mark.slow  # starts processes
def test_two_processes_generate_the_same_texts(toys, model, tmp_path) -> None:
    expected = evaluate(configuration(toys, model), model)
    line = ["evaluate", "--checkpoint", model, "--output", tmp_path / "scores"]
    line += toy_tasks.arguments("generation", toys, model, data__num_generated=COUNT)
    line += ["--config.max_seq_length=32"]
    line += ["--coordinator-address", f"localhost:{free_port()}", "--num-processes", 2]
    flags = process_environment(2) | {"JAX_PLATFORMS": "cpu"}
    commands = []
    for process_id in range(2):
        begin = functools.partial(become_child, tmp_path / f"opened.{process_id}", True)
        arguments = map(str, [*line, "--process-id", process_id])
        commands.append(Command(*arguments, begin=begin, **flags))
    outputs = [command.communicate() for command in commands]
    assert [command.poll() for command in commands] == [0, 0], outputs
    files = {
        name: json.loads((tmp_path / "scores" / f"{name}.json").read_text())
        for name in ("predictions", "bleu", "scores")
    }
    assert files["predictions"] == expected.files["predictions"]
    assert files["bleu"] == expected.files["bleu"]
    assert files["scores"] == pytest.approx(expected.scores, rel=1e-5)


@needs_sacrebleu
@pytest.mark.slow  # trains, and compiles decoding twice
def test_training_keeps_the_best_bleu(toys, tmp_path) -> None:
    fields: dict[str, Any] = {"steps": 40, "eval_every": 20, "best_metric": "rouge_l"}
    config = configuration(toys, data__num_generated=10, **fields)
    make_trainer(config, tmp_path / "run").train()
    scores = [line for line in metrics(tmp_path / "run") if line["split"] == "eval"]
    assert [line["step"] for line in scores] == [20, 40]
    final = configuration(toys, tmp_path / "run", data__num_generated=10)
    best = max(line["rouge_l"] for line in scores)
    assert evaluate(final, tmp_path / "run").scores["rouge_l"] == pytest.approx(best)


@needs_sacrebleu
def test_best_metric_may_be_a_score_of_generated_texts(toys) -> None:
    for count, is_known in ((0, False), (3, True)):
        config = configuration(toys, data__num_generated=count, best_metric="bleu")
        task = registry.find_task(config.task)(config)
        if is_known:
            check_best_metric(config, task, ["mlm_loss"])
            continue
        with pytest.raises(InputError, match=r"^best_metric='bleu': is not a score of this task"):
            check_best_metric(config, task, ["mlm_loss"])


@pytest.mark.seconds
@needs_sacrebleu
def test_ensembles_and_parallel_runs_generate_no_texts(toys, model, tmp_path) -> None:
    message = r"^data\.num_generated=-1: texts of an ensemble's models have no average\. Set 0\.$"
    config = configuration(toys, model, data__num_generated=-1)
    with pytest.raises(InputError, match=message):
        evaluate(config, model, model)
    with pytest.raises(InputError, match=r"^data\.num_generated=-1: parallel runs are evaluated"):
        sweep([Trial({}, config)], config, tmp_path / "sweep")


@pytest.mark.seconds
def test_invalid_number_of_generated_texts_is_rejected(toys, model) -> None:
    with pytest.raises(InputError, match=r"^data\.num_generated=-2: no number of sources"):
        evaluate(configuration(toys, model, data__num_generated=-2), model)


def test_missing_library_is_reported_before_compilation(toys, model, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"^data\.num_generated={COUNT}: needs sacrebleu"):
        evaluate(configuration(toys, model), model)
