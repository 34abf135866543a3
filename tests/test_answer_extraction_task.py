"""Training on answers without questions, from files to scores and exports."""

import json
import pathlib

import numpy as np
import pytest
from conftest import in_test_all
from processes import run
from run_outputs import metrics
from toy_passages import arguments, configuration, write_data

from bertjax.cli.main import main
from bertjax.inference.convert import convert
from bertjax.mesh.device_mesh import AXES
from bertjax.tasks.answer_extraction.evaluation import RECALLS
from bertjax.tasks.answer_extraction.task import AnswerExtractionTask
from bertjax.training.setup import make_trainer
from data_pipelines.finetuning.question_answering.squad import read_squad

PASSAGE = "a b anna lives c d in rome e f bob"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("passages")
    write_data(path)
    return path


@pytest.fixture(scope="module", params=["joint", *in_test_all("independent")])
def trained(request, folder, tmp_path_factory) -> tuple[str, pathlib.Path]:
    """The scorer, and a trained run."""
    workdir = tmp_path_factory.mktemp(request.param)
    done = run("train", "--workdir", workdir, *arguments(folder, request.param))
    assert done.returncode == 0, done.stderr
    return request.param, workdir


@pytest.mark.slow
def test_evaluate_finds_the_answers(trained, folder, tmp_path) -> None:
    scorer, workdir = trained
    done = run("evaluate", "--checkpoint", workdir, "--output", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert scores["recall_at_1"] < scores["recall_at_5"] <= scores["recall_at_10"]
    assert scores["recall_at_5"] > 0.95
    # The best model gives each of the two or three answers the same probability.
    assert scores["loss"] < (1.05 if scorer == "joint" else 1.3)

    predictions = json.loads((tmp_path / "scores" / "predictions.json").read_text())
    golds: dict[str, set[str]] = {}
    for question in read_squad(folder / "dev-v1.1.json").questions:
        golds.setdefault(question.passage, set()).update(a.text for a in question.answers)
    assert [entry["context"] for entry in predictions] == [*golds]
    for name, count in RECALLS.items():
        found = [
            len(golds[entry["context"]] & {a["text"] for a in entry["answers"][:count]})
            for entry in predictions
        ]
        assert scores[name] == pytest.approx(sum(found) / sum(map(len, golds.values())), abs=1e-6)
    for entry in predictions:
        texts = [answer["text"] for answer in entry["answers"]]
        assert len({*texts}) == len(texts) <= 10
        for answer in entry["answers"]:
            assert answer["text"] == entry["context"][answer["start"] : answer["end"]]
    assert metrics(workdir)[-1]["recall_at_5"] == pytest.approx(scores["recall_at_5"], abs=1e-3)


@pytest.mark.slow
def test_joint_scores_know_which_ends_belong_to_a_start(trained, capsys) -> None:
    scorer, workdir = trained
    given = ["--text", PASSAGE, "--config.extraction.num_answers=5"]
    assert main(["predict", "--checkpoint", str(workdir), *given]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() == {"context", "answers"} and answer["context"] == PASSAGE
    texts = [span["text"] for span in answer["answers"]]
    scores = [span["score"] for span in answer["answers"]]
    assert {"anna", "bob", "in rome"} <= {*texts} and scores == sorted(scores, reverse=True)
    if scorer == "joint":
        assert {*texts[:3]} == {"anna", "bob", "in rome"} and scores[2] - scores[3] > 1
    assert np.exp(scores).sum() <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["hf", "tf1"])
def test_exports_keep_the_head(trained, format_name: str, tmp_path, capsys) -> None:
    scorer, workdir = trained
    convert(workdir, tmp_path / "copy", "bertjax", format_name)
    if format_name == "hf":
        config = json.loads((tmp_path / "copy" / "config.json").read_text())
        assert config["architectures"] == ["BertForAnswerExtraction"]
    elif scorer == "independent":
        return  # a TF1 checkpoint names no class, and this one is that of question answering
    answers = []
    for path in (workdir, tmp_path / "copy"):
        assert main(["predict", "--checkpoint", str(path), "--text", PASSAGE]) == 0
        answers.append(json.loads(capsys.readouterr().out)["answers"])
    for ours, theirs in zip(*answers, strict=True):
        assert ours == theirs | {"score": pytest.approx(theirs["score"], abs=1e-4)}


@pytest.mark.minutes
@pytest.mark.parametrize("scorer", ["joint", "independent"])
def test_losses_are_equal_on_every_mesh(scorer: str, folder, tmp_path) -> None:
    losses = []
    for shape in ((8, 1, 1), (2, 2, 2)):
        mesh = {f"mesh.{axis}": size for axis, size in zip(AXES, shape, strict=True)}
        workdir = tmp_path / "x".join(map(str, shape))
        config = configuration(folder, scorer, steps=4, log_every=1, eval_every=4, **mesh)
        make_trainer(config, workdir).train()
        losses.append([line["loss"] for line in metrics(workdir)])
    assert len(losses[0]) == 5 and losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.seconds
def test_format_sequence_lists_answers_and_passage(folder) -> None:
    task = AnswerExtractionTask(configuration(folder))
    task.prepare(1)
    (batch,) = task.train_batches(0, 1)
    lines = task.format_sequence(batch, 0).splitlines()
    assert len(lines) == batch["example_ids"][0].max()
    for line in lines:
        answers, passage = line.split(": ")
        assert passage.startswith("[CLS]") and passage.endswith("[SEP]")
        for answer in answers.split("; "):
            assert answer in passage and answer.split()[-1] in {
                *("anna", "bob", "carl", "dora"),
                *("rome", "oslo", "paris", "delhi"),
            }


def test_default_files_are_those_of_either_version(folder, tmp_path) -> None:
    for split in ("train", "dev"):
        content = (folder / f"{split}-v1.1.json").read_text()
        (tmp_path / f"{split}-v2.0.json").write_text(content)
    config = configuration(folder, data__dir=str(tmp_path))
    ((name, passages),) = AnswerExtractionTask.read_sets(config, "train")
    assert name == "train" and len(passages) == 200


def test_training_uses_windows_with_answers_alone(folder, tmp_path) -> None:
    content = json.loads((folder / "train-v1.1.json").read_text())
    first, second, *_ = content["data"][0]["paragraphs"]
    first["qas"] = [{"id": "x", "question": "", "answers": [], "is_impossible": True}]
    long = " ".join("abcdefghijk")
    second |= {"context": long}
    second["qas"] = [{"id": "y", "question": "", "answers": [{"text": long, "answer_start": 0}]}]
    content["data"][0]["paragraphs"] = [first, second]
    (tmp_path / "train.json").write_text(json.dumps(content))
    config = configuration(folder, data__train_file=str(tmp_path / "train.json"))
    task = AnswerExtractionTask(config)
    with pytest.raises(ValueError, match="train: no passage has an answer of at most 10 tokens"):
        task.prepare(1)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"data.scorer": "both"}, "data.scorer='both': unknown. Use joint or independent."),
        ({"data__doc_stride": 31}, "doc_stride=31: windows would skip tokens"),
        ({"data__train_file": "none.json"}, "none.json: no such file. Set data.dir"),
        ({"decoding.num_beams": 4}, "decoding.num_beams=4: a model of task=answer_extraction does"),
        ({"extraction.num_answers": 0}, "num_answers=0: not an integer from 1. Raise it."),
        ({"extraction.seed": 3}, "seed=3: has no effect without do_sample=True. Set it"),
    ],
    ids=str,
)
def test_train_rejects_bad_input_in_one_line(overrides, problem, folder, tmp_path, capsys) -> None:
    given = ["--workdir", str(tmp_path / "w"), *arguments(folder, **overrides)]
    assert main(["train", *given]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
    assert not (tmp_path / "w").exists()
