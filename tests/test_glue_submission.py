"""GLUE submissions: eleven files with the right names, headers, counts and labels."""

import io
import pathlib
import re
import types
import zipfile
from collections.abc import Iterator

import numpy as np
import pytest
import toy_tasks
from data_errors import publish

from bertjax.cli.main import main
from bertjax.config.loading import parse_config
from bertjax.tasks import registry
from bertjax.tasks.sequence_classification.glue_submission import (
    FILES,
    add_task,
    build_submission,
    predict_majority,
    predict_test_files,
)
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import GLUE

COUNT = 7
COLUMNS = {
    "CoLA": ("sentence",),
    "SST-2": ("sentence",),
    "MRPC": ("#1 ID", "#2 ID", "#1 String", "#2 String"),
    "QQP": ("question1", "question2"),
    "STS-B": ("genre", "sentence1", "sentence2"),
    "MNLI": ("sentence1", "sentence2"),
    "QNLI": ("question", "sentence"),
    "RTE": ("sentence1", "sentence2"),
    "WNLI": ("sentence1", "sentence2"),
}
TEXTS = {
    "CoLA": {"0", "1"},
    "SST-2": {"0", "1"},
    "MRPC": {"0", "1"},
    "QQP": {"0", "1"},
    "MNLI-m": {"contradiction", "entailment", "neutral"},
    "MNLI-mm": {"contradiction", "entailment", "neutral"},
    "AX": {"contradiction", "entailment", "neutral"},
    "QNLI": {"entailment", "not_entailment"},
    "RTE": {"entailment", "not_entailment"},
    "WNLI": {"0", "1"},
}


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> pathlib.Path:
    """Write the test files of all tasks in the published layout."""
    folder = tmp_path_factory.mktemp("glue")
    for task in GLUE.values():
        (folder / task.folder).mkdir()
        columns = ("index", *COLUMNS[task.folder])
        lines = ["\t".join(columns)]
        lines += ["\t".join([str(i), *["ba ki"] * (len(columns) - 1)]) for i in range(COUNT)]
        for stem, _ in task.test.values():
            (folder / task.folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n")
    train = ["index\tsentence1\tsentence2\tlabel"]
    train += [f"{i}\tba\tki\t{int(i > 2)}" for i in range(COUNT)]
    (folder / "WNLI" / "train.tsv").write_text("\n".join(train) + "\n")
    return folder


def model_of(name: str, seed: int = 0) -> types.SimpleNamespace:
    """Return a model of a task with random logits."""
    raw = {
        "task": "sequence_classification",
        "max_seq_length": 32,
        "model": {"max_position_embeddings": 32},
    }
    config = parse_config(raw | {"data": {"glue": name}}, registry.data_fields())
    labels, random = GLUE[name].labels, np.random.default_rng(seed)

    def run(batches) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            shape = (*batch["labels_weights"].shape, max(len(labels), 1))
            yield {"sequence_classification_logits": 9 * random.normal(size=shape)}

    objective = registry.make_objective(config)
    pipeline = SequenceClassificationPipeline(objective, toy_tasks.TOKENIZER, labels)
    return types.SimpleNamespace(path=f"runs/{name}", pipeline=pipeline, run=run)


def submission_files(model: types.SimpleNamespace, glue: pathlib.Path) -> dict[str, str]:
    return predict_test_files(model.path, model.pipeline, model.run, str(glue))


def rows_of(content: str) -> list[list[str]]:
    assert content.endswith("\n")
    return [line.split("\t") for line in content.splitlines()]


@pytest.mark.parametrize("name", list(GLUE))
def test_predict_test_files_has_one_row_per_example(glue, name: str) -> None:
    files = submission_files(model_of(name), glue)
    assert files.keys() == GLUE[name].test.keys()
    for content in files.values():
        header, *rows = rows_of(content)
        assert header == ["index", "prediction"]
        assert [row[0] for row in rows] == [str(i) for i in range(COUNT)]
        assert {len(row) for row in rows} == {2}


@pytest.mark.parametrize("name", [name for name in GLUE if name != "stsb"])
def test_predict_test_files_uses_server_labels(glue, name: str) -> None:
    labels: dict[str, set[str]] = {}
    for seed in range(20):
        for file, content in submission_files(model_of(name, seed), glue).items():
            labels.setdefault(file, set()).update(row[1] for row in rows_of(content)[1:])
    assert labels == {file: TEXTS[file] for file in labels}


def test_predict_test_files_clips_and_rounds_scores(glue) -> None:
    contents = [submission_files(model_of("stsb", seed), glue)["STS-B"] for seed in range(20)]
    numbers = [row[1] for content in contents for row in rows_of(content)[1:]]
    assert {len(number.partition(".")[2]) for number in numbers} == {3}
    assert (min(numbers), max(numbers)) == ("0.000", "5.000")


def test_predict_test_files_uses_the_label_order_of_the_model(glue) -> None:
    model, other = model_of("qnli"), model_of("qnli")
    other.pipeline.labels = model.pipeline.labels[::-1]
    first, second = (rows_of(submission_files(m, glue)["QNLI"])[1:] for m in (model, other))
    assert all(a[1] != b[1] for a, b in zip(first, second, strict=True))


def test_predict_majority_returns_most_frequent_label(glue) -> None:
    _, *rows = rows_of(predict_majority("wnli", str(glue))["WNLI"])
    assert rows == [[str(i), "1"] for i in range(COUNT)]
    with pytest.raises(
        InputError, match=r"--majority-class=stsb: a regression has no classes\. Leave it out"
    ):
        predict_majority("stsb", str(glue))


def test_build_submission_contains_eleven_files(glue) -> None:
    files: dict[str, str] = {}
    for name in GLUE:
        files |= submission_files(model_of(name), glue)
    content = build_submission(files)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in FILES)
        assert len(archive.namelist()) == 11
        for name, text in files.items():
            assert archive.read(f"{name}.tsv").decode() == text
    assert build_submission(files) == content


def test_build_submission_names_missing_tasks(glue) -> None:
    files = submission_files(model_of("mnli"), glue)
    with pytest.raises(
        InputError,
        match=r"lacks CoLA, SST-2, MRPC, STS-B, QQP, QNLI, RTE, WNLI\. Add a --checkpoint of each",
    ):
        build_submission(files)


def test_add_task_rejects_missing_files_and_double_predictions(glue, tmp_path) -> None:
    sources: dict[str, str] = {}
    add_task(sources, "runs/mnli", "mnli", str(glue))
    assert sources == dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), "runs/mnli")
    with pytest.raises(InputError, match=r"MNLI-m: predicted by runs/mnli and runs/b\. Give"):
        add_task(sources, "runs/b", "mnli", str(glue))
    with pytest.raises(InputError, match=r"RTE/test\.tsv: no such file"):
        add_task(sources, "runs/rte", "rte", str(tmp_path))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    return publish(tmp_path_factory.mktemp("models") / "rte", "sequence_classification")


@pytest.mark.slow
def test_submit_names_missing_tasks_before_it_predicts(
    glue, model, tmp_path, refused, monkeypatch
) -> None:
    config = parse_config(
        {"task": "sequence_classification", "data": {"glue": "rte"}}, registry.data_fields()
    )
    monkeypatch.setattr("bertjax.training.initialization.PretrainedModel.config", lambda _: config)
    command = ["--data", glue, "--checkpoint", model, "--output", tmp_path / "answers.zip"]
    assert re.match("the submission lacks CoLA, SST-2", refused("submit", *command))


def test_predict_test_files_rejects_other_task(glue) -> None:
    model = model_of("rte")
    config = parse_config({"task": "question_answering"}, registry.data_fields())
    model.pipeline.objective = registry.make_objective(config)
    with pytest.raises(InputError, match=r"runs/rte: not fine-tuned on a GLUE task\. Leave it out"):
        submission_files(model, glue)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--majority-class", "wnli", "wnli"],
            "WNLI: predicted by --majority-class wnli and --majority-class wnli. Give one",
        ),
        (["--majority-class", "wlni"], "glue='wlni': unknown task"),
        (["--majority-class", "rte"], "RTE/train.tsv: no such file"),
        (["--majority-class", "wnli"], "not a model. Give a directory"),
    ],
)
def test_submit_rejects_incomplete_submissions(
    glue, tmp_path, capsys, arguments: list[str], message: str
) -> None:
    command = ["submit", "--data", str(glue), "--checkpoint", str(tmp_path)]
    assert main([*command, "--output", str(tmp_path / "answers.zip"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
