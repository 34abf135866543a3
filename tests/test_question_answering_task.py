"""Fine-tuning on question answering, from files to answers."""

import dataclasses
import functools
import json
import pathlib
import random
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from conftest import in_test_all
from processes import Command, hold, run
from random_models import draw_model
from run_outputs import answers_of, metrics, params_of
from toy_squad import TOKENIZER, arguments, configuration, questions

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.inference.convert import convert
from bertjax.mesh.device_mesh import AXES
from bertjax.model.bert_config import BertConfig
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.reports.writer import write_report
from bertjax.sweeps.grid import make_trials
from bertjax.sweeps.sweep import sweep
from bertjax.tasks.question_answering.metrics import score_files
from bertjax.tasks.question_answering.task import QuestionAnsweringTask
from bertjax.training.evaluator import evaluate
from bertjax.training.initialization import PretrainedModel
from bertjax.training.setup import make_trainer
from bertjax.workdir.run_record import CALIBRATION_FILE


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Data of both versions, and a published model to initialize from."""
    path = tmp_path_factory.mktemp("squad")
    for version, name in ((1, "1.1"), (2, "2.0")):
        for split, count in (("train", 64), ("dev", 24)):
            (path / f"{split}-v{name}.json").write_text(json.dumps(questions(version, count)))
    bare = questions(1, 4)
    bare["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (path / "bare.json").write_text(json.dumps(bare))
    config = BertConfig(len(TOKENIZER.tokens), 2, 64, 2, max_position_embeddings=64)
    (path / "model").mkdir()
    huggingface.write(draw_model(config, TOKENIZER, "pooler"), path / "model")
    return path


@pytest.fixture(scope="module", params=[2, *in_test_all(1)])
def trained(request, folder, tmp_path_factory) -> tuple[int, pathlib.Path]:
    """The version, and a trained run."""
    workdir = tmp_path_factory.mktemp(f"run{request.param}")
    done = run("train", "--workdir", workdir, *arguments(folder, request.param))
    assert done.returncode == 0, done.stderr
    assert "model (encoder); random: question_answering." in done.stderr
    return request.param, workdir


@pytest.fixture(scope="module")
def evaluated(trained, folder, tmp_path_factory) -> tuple[int, pathlib.Path, dict]:
    """The version, the output directory of an evaluation, and its printed scores."""
    version, workdir = trained
    output = tmp_path_factory.mktemp("scores")
    given = ["--checkpoint", workdir, "--output", output, *arguments(folder, version)]
    done = run("evaluate", *given)
    assert done.returncode == 0, done.stderr
    page, table = done.stderr.split("; compiling ...\n")
    assert page.endswith(f"{PretrainedModel(workdir).path} on eval, 8 sequences a batch")
    assert re.search(r"^exact +\d+\.\d+$", table, re.MULTILINE)
    assert f".json to {output}. Next: " in table and "scores.json" in table
    return version, output, json.loads(done.stdout)


@pytest.mark.slow
def test_evaluate_writes_answers_and_official_scores(trained, evaluated, folder) -> None:
    version, output, scores = evaluated
    assert scores == json.loads((output / "scores.json").read_text())
    assert scores["total"] == 24 and scores["f1"] > 50
    names = {"scores", "evaluation", "predictions", "nbest_predictions"}
    names |= {"null_odds"} if version == 2 else set()
    assert {path.stem for path in output.glob("*.json")} == names
    if version == 2:
        assert {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh"} <= scores.keys()

    data = folder / f"dev-v{version}.{2 - version}.json"
    official = score_files(data, output / "predictions.json")
    assert (official["exact"], official["f1"]) == (scores["exact"], scores["f1"])
    lines = (trained[1] / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["f1"] == pytest.approx(scores["f1"], abs=0.01)


@pytest.mark.slow
def test_report_of_an_evaluation_shows_scores(trained, evaluated) -> None:
    _, output, scores = evaluated
    page = write_report(output).read_text()
    assert f"<b>{scores['f1']:.1f}</b><span>F1</span>" in page and str(trained[1]) in page
    (output / "nbest_predictions.json").rename(output / "elsewhere.json")
    with pytest.raises(ValueError, match=r"nbest_predictions\.json: cannot be read"):
        write_report(output)
    (output / "elsewhere.json").rename(output / "nbest_predictions.json")


@pytest.mark.slow
def test_evaluate_averages_logits_of_checkpoints(folder, tmp_path, capsys) -> None:
    workdirs = [tmp_path / name for name in "ab"]
    for seed, workdir in enumerate(workdirs):
        make_trainer(configuration(folder, 1, seed=seed, steps=3, eval_every=3), workdir).train()
    alone = [evaluate(configuration(folder, 1), workdir) for workdir in workdirs]
    given = ["--checkpoint", *map(str, workdirs), "--output", str(tmp_path / "both")]
    assert main(["evaluate", *given, *arguments(folder, 1)]) == 0
    losses = [evaluation.scores["loss"] for evaluation in alone]
    assert losses[0] != losses[1]
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert loss == pytest.approx(sum(losses) / 2, abs=1e-5)

    shared = 0
    both = json.loads((tmp_path / "both" / "nbest_predictions.json").read_text())
    first, second = (evaluation.files["nbest_predictions"] for evaluation in alone)
    for name, candidates in both.items():
        for best in candidates:
            logits = [
                next((c["start_logit"] for c in answers[name] if c["start"] == best["start"]), None)
                for answers in (first, second)
            ]
            if None not in logits:
                assert best["start_logit"] == pytest.approx(sum(logits) / 2, abs=1e-4)
                shared += 1
    assert shared > 24


@pytest.mark.slow
def test_evaluate_scores_several_eval_sets(trained, folder, tmp_path, capsys, caplog) -> None:
    version, workdir = trained
    for name, count in (("xx.de", 8), ("xx.fr", 16)):
        (folder / f"{name}.json").write_text(json.dumps(questions(version, count)))
    given = ["--checkpoint", str(workdir), "--output", str(tmp_path)]
    given += arguments(folder, version, data__eval_file="xx.*.json")
    assert main(["evaluate", *given]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["eval", "xx.de", "xx.fr", "mean"]
    assert "data.eval_file='xx.*.json' here, '' there." in caplog.text
    assert (scores["xx.de/total"], scores["xx.fr/total"]) == (8, 16)
    assert scores["f1"] == pytest.approx((scores["xx.de/f1"] + scores["xx.fr/f1"]) / 2)
    assert len(json.loads((tmp_path / "xx.fr.predictions.json").read_text())) == 16
    assert "<td>xx.de</td>" in write_report(tmp_path).read_text()


@pytest.mark.slow
def test_predict_returns_answer_offsets(trained, folder, capsys) -> None:
    version, workdir = trained
    context = "Anna lives in Oslo. Bob lives in Rome."
    command = ["predict", "--checkpoint", str(workdir)]
    assert (
        main([*command, "--field", "question=Where lives bob?", "--field", f"context={context}"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == context[answer["start"] : answer["end"]]
    assert ("null_odds" in answer) == (version == 2)
    fields = ["--field", "question=Where lives bob?", "--field", f"context={context}"]
    assert main([*command, *fields, "--return-all-scores"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    assert candidates[0]["logit"] == max(c["logit"] for c in candidates) and len(candidates) > 1
    assert all(c["answer"] == context[c["start"] : c["end"]] for c in candidates)
    assert main([*command, "--field", "question=Where lives bob?"]) == 2
    assert "line 1: this is no" in capsys.readouterr().err
    assert main([*command, "--field", "Where lives bob?"]) == 2
    assert "--field=Where lives bob?: not of the form KEY=TEXT" in capsys.readouterr().err

    line = json.dumps({"question": "Where lives bob?", "context": context})
    first, second = answers_of(workdir, [line, line])
    assert first == answer and second == answer | {"id": "2"}
    with (folder / f"dev-v{version}.{2 - version}.json").open() as file:
        answers = {each["id"]: each for each in answers_of(workdir, file)}
    assert answers.keys() == {str(number) for number in range(24)}


@pytest.mark.slow
def test_converted_copy_predicts_as_the_run(trained, tmp_path, caplog) -> None:
    version, workdir = trained
    convert(workdir, tmp_path / "copy", "bertjax", "bertjax")
    line = json.dumps({"question": "Where lives bob?", "context": "Bob lives in Rome. " * 9})
    copied, own = (answers_of(path, [line]) for path in (tmp_path / "copy", workdir))
    assert copied == own and ("null_odds" in own[0]) == (version == 2)
    assert (tmp_path / "copy" / CALIBRATION_FILE).exists() == (version == 2)
    assert "has no null_score_diff_threshold" not in caplog.text


@pytest.mark.slow
def test_calibration_is_saved_with_evaluated_checkpoint(folder, tmp_path) -> None:
    config = configuration(folder, 2, steps=2, checkpoint_every=1, eval_every=2)
    make_trainer(config, tmp_path).train()
    first, second = map(Checkpointer(tmp_path / "checkpoints").path, (1, 2))
    assert not (first / CALIBRATION_FILE).exists() and (second / CALIBRATION_FILE).exists()


@pytest.mark.slow
def test_best_run_of_a_sweep_has_the_threshold_of_its_evaluation(folder, tmp_path) -> None:
    base = configuration(folder, 2, steps=2, eval_every=2, checkpoint_every=2)

    def load(point: Mapping[str, str]) -> Config:
        return dataclasses.replace(base, data_seed=int(point["data_seed"]))

    result = sweep(make_trials(load, ["data_seed=1,2"], 1), base, tmp_path)
    (best,) = (entry for entry in result["runs"] if entry["name"] == result["best"])
    threshold = best["scores"]["null_score_diff_threshold"]
    assert PretrainedModel(tmp_path / "best").calibration == {
        "null_score_diff_threshold": pytest.approx(threshold)
    }


@pytest.mark.slow
def test_null_regression_is_learned(folder, tmp_path) -> None:
    fields = {"data.null_score": "regression"}
    make_trainer(configuration(folder, 2, **fields), tmp_path / "run").train()
    scores = evaluate(configuration(folder, 2, **fields), tmp_path / "run").scores
    assert scores["null_score_loss"] < 0.1 and scores["best_f1"] > 70


def prepared(task: QuestionAnsweringTask) -> Iterator[dict[str, Any]]:
    """Yield batches of a task prepared for one step."""
    task.prepare(1)
    return iter(task.train_batches(0, 1))


def test_processes_share_all_windows_of_a_batch(folder) -> None:
    batches = [
        next(prepared(QuestionAnsweringTask(configuration(folder, 1, batch_size=17), 3, process)))
        for process in range(3)
    ]
    assert sum(batch["answer_positions_weights"].sum() for batch in batches) == 17


@pytest.mark.parametrize(("packing", "windows"), [(True, 8), (False, 1)])
def test_packing_sets_windows_per_sequence(folder, packing: bool, windows: int) -> None:
    task = QuestionAnsweringTask(
        configuration(folder, 1, batch_size=16, max_seq_length=64, packing=packing)
    )
    (training,) = prepared(task)
    (eval_set,) = task.eval_sets()
    for batch in (training, *eval_set.batches()):
        assert batch["answer_positions_weights"].shape[1] == windows
        assert (batch["answer_positions_weights"].sum(1).max() > 1) == packing
    assert training["answer_positions_weights"].sum() == 16
    shapes = task.objective.batch_shapes(task.objective.batch_size)
    assert {n: x.shape for n, x in shapes.items()} == {n: x.shape for n, x in training.items()}


def test_evaluate_rejects_output_that_is_a_file(folder, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("mine")
    given = ["--checkpoint", "none", "--output", str(tmp_path / "file"), *arguments(folder, 1)]
    assert main(["evaluate", *given]) == 2
    assert "file: is a file. Name a directory." in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_predict_escapes_lone_surrogates(trained, capsys) -> None:
    _, workdir = trained
    asked = ["--field", "question=Where lives bob?", "--field", "context=\ud83d"]
    assert main(["predict", "--checkpoint", str(workdir), *asked]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] in ("\ud83d", "")


@pytest.mark.slow
def test_evaluate_rejects_incompatible_models(folder, tmp_path) -> None:
    convert(folder / "model", tmp_path / "encoder", "hf", "bertjax")
    with pytest.raises(ValueError, match=r"has hidden_act='gelu'\. Set model.hidden_act='gelu'"):
        evaluate(configuration(folder, 1, model__hidden_act="relu"), tmp_path / "encoder")
    with pytest.raises(ValueError, match="has no question answering head"):
        evaluate(configuration(folder, 1), tmp_path / "encoder")
    (tmp_path / "vocab.txt").write_text("\n".join([*TOKENIZER.tokens[:-1], "other"]))
    other = configuration(folder, 1, data__vocab=tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="the model has another vocabulary than the data"):
        evaluate(other, tmp_path / "encoder")


@pytest.mark.slow
def test_preflight_reports_steps_and_batch_size(folder) -> None:
    config = configuration(folder, 1, steps="3 epochs", batch_size=16)
    verdict = preflight(config, Topology("cpu:8"))
    assert verdict.steps == 3 * 64 // 16 and verdict.train.per_device_batch_size == 2


@pytest.mark.slow
def test_preflight_accepts_indivisible_batch_size(folder) -> None:
    config = configuration(folder, 1, batch_size=10, gradient_accumulation_steps=2)
    assert preflight(config, Topology("cpu:8")).train.per_device_batch_size == 2


@pytest.mark.slow
def test_logits_are_float32_in_bfloat16_models(folder) -> None:
    task = QuestionAnsweringTask(configuration(folder, 1, **{"model.dtype": "bfloat16"}))
    batch, objective = next(prepared(task)), task.objective
    params = jax.jit(objective.init_params)(jax.random.key(0))
    outputs = jax.jit(lambda params, batch: objective.apply(params, batch, None, {}))(params, batch)
    logits = outputs["question_answering_logits"]
    assert logits.dtype == jnp.float32
    assert (logits != logits.astype(jnp.bfloat16)).mean() > 0.9


@pytest.mark.minutes
def test_losses_are_equal_on_every_mesh(folder, tmp_path) -> None:
    losses = []
    for shape in ((8, 1, 1), (2, 2, 2)):
        mesh = {f"mesh.{axis}": size for axis, size in zip(AXES, shape, strict=True)}
        workdir = tmp_path / "x".join(map(str, shape))
        make_trainer(
            configuration(folder, 2, steps=4, log_every=1, eval_every=4, **mesh), workdir
        ).train()
        losses.append([line["loss"] for line in metrics(workdir)])
    assert len(losses[0]) == 5 and losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.minutes
def test_killed_run_resumes_identically(folder, tmp_path) -> None:
    given = arguments(folder, 2, steps=120, checkpoint_every=10, eval_every=20, log_every=5)
    given += [
        "--config.model.hidden_dropout_prob=0.1",
        "--config.max_to_keep=1",
        "--config.best_metric=f1",
    ]
    given += ["--config.optimizer.layerwise_lr_decay=0.9", "--config.reinit_layers=1"]
    assert run("train", "--workdir", tmp_path / "whole", *given).returncode == 0
    draw = random.Random(3)
    killed = ["train", "--workdir", tmp_path / "killed", *given]
    for kill in range(4):
        saved = max(Checkpointer(tmp_path / "killed" / "checkpoints").all_steps(), default=0)
        process = Command(*killed, begin=functools.partial(hold, saved + 36))
        if kill == 0:
            time.sleep(draw.uniform(0.5, 3))
        else:
            process.wait_for_step(saved + draw.randrange(5, 30))
            time.sleep(draw.uniform(0, 0.1))
        assert process.poll() is None
        process.kill()
        process.wait()
    done = run(*killed)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert params_of(tmp_path / "killed") == params_of(tmp_path / "whole")
    kept = [Checkpointer(tmp_path / run / "checkpoints").all_steps() for run in ("killed", "whole")]
    best = max(
        (line for line in metrics(tmp_path / "whole") if line["split"] == "eval"),
        key=lambda line: line["f1"],
    )
    assert kept[0] == kept[1] == sorted({best["step"], 120})


@pytest.mark.parametrize(
    ("version", "overrides", "problem"),
    [
        (
            1,
            {"data__eval_file": "dev-v2.0.json"},
            "dev-v2.0.json has unanswerable questions. Set version=2",
        ),
        (
            2,
            {"data__eval_file": "dev-v1.1.json"},
            "dev-v1.1.json has no unanswerable questions. Set version=1",
        ),
        (1, {"data__train_file": "none.json"}, "none.json: no such file. Set data.dir"),
        (1, {"data__doc_stride": 100}, "doc_stride=100: windows would skip tokens"),
        (1, {"init": ""}, "data.vocab='', init='': no vocabulary. Name a model"),
        (1, {"init": "/nowhere"}, "/nowhere: does not exist. Give"),
        (1, {"model.vocab_size": 40}, "model.vocab_size=40: the vocabulary of"),
        (2, {"data.null_score": "square"}, "data.null_score='square': unknown. Use softmax or"),
        (1, {"data.null_score": "regression"}, "all questions of version 1 have answers"),
        (1, {"data__eval_file": "bare.json"}, "1 questions have no gold answer, '0' first"),
    ],
    ids=str,
)
def test_train_rejects_bad_input_in_one_line(
    version: int, overrides: dict, problem: str, folder, tmp_path, capsys
) -> None:
    given = ["--workdir", str(tmp_path / "w"), *arguments(folder, version, **overrides)]
    assert main(["train", *given]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
    assert not (tmp_path / "w").exists()
