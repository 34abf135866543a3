"""Settings of a run in its exports: stored, read again, rejected, ignored."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import toy_tasks
from etils import epath
from exported_runs import (
    RUNS,
    THRESHOLD,
    edited,
    export_runs,
    object_of,
    settings_of,
    write_run,
    write_runs,
)
from run_outputs import answers_of, assert_equal_answers

from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.formats.inference_settings import KEY
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.inference.predictor import open_model
from bertjax.training.initialization import PretrainedModel
from bertjax.workdir.run_record import read_calibration
from data_pipelines import log

WITHOUT = {"pretraining": ("pooler", "mlm", "nsp"), "embeddings": ()}


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, pathlib.Path]:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory) -> dict[str, pathlib.Path]:
    return export_runs(runs, tmp_path_factory.mktemp("exports"))


@pytest.mark.parametrize("task", RUNS)
def test_export_stores_the_settings_of_the_run(runs, exports, task: str) -> None:
    expected = {"task": task, **RUNS[task][3]}
    assert object_of(exports[task]) == expected
    assert settings_of(runs[task]) == settings_of(exports[task]) == expected
    model = PretrainedModel(exports[task])
    assert model.config().data["dir"] == ""  # other fields keep their defaults
    assert model.config().task == task


@pytest.mark.parametrize("task", RUNS)
def test_conversion_back_has_the_settings_of_the_run(runs, exports, task: str, tmp_path) -> None:
    convert(exports[task], tmp_path / "own", "hf", "bertjax")
    assert settings_of(tmp_path / "own") == settings_of(runs[task])
    own = epath.Path(tmp_path / "own")
    assert read_calibration(own) == read_calibration(epath.Path(runs[task]))
    convert(own, tmp_path / "again", "bertjax", "hf")
    assert object_of(tmp_path / "again") == object_of(exports[task])


@pytest.mark.slow
@pytest.mark.parametrize("task", RUNS)
def test_tf1_stores_the_settings_of_the_run(runs, task: str, tmp_path) -> None:
    pytest.importorskip("tensorflow")
    convert(runs[task], tmp_path / "tf1", "bertjax", "tf1")
    assert settings_of(tmp_path / "tf1") == settings_of(runs[task])


@pytest.mark.parametrize("task", RUNS)
def test_conversion_of_an_export_without_a_length_keeps_those_of_the_run(
    exports, task: str, tmp_path
) -> None:
    """Directories of TF1 have no `model_max_length`."""
    bare = edited(exports[task], tmp_path / "bare")
    (bare / "tokenizer_config.json").unlink()
    convert(bare, tmp_path / "hf", "hf", "hf")
    assert settings_of(bare) == settings_of(tmp_path / "hf") == settings_of(exports[task])


def test_export_whose_settings_have_no_length_has_the_default(exports, tmp_path) -> None:
    bare = edited(exports["question_answering"], tmp_path / "bare")
    config = json.loads((bare / "config.json").read_text())
    config[KEY] = {"task": "question_answering"}
    (bare / "config.json").write_text(json.dumps(config))
    (bare / "tokenizer_config.json").unlink()
    assert open_model(bare).config().max_seq_length == 384


def test_conversion_of_an_edited_export_stores_the_edit(exports, tmp_path) -> None:
    path = edited(exports["question_answering"], tmp_path / "edited", model_max_length=300)
    convert(path, tmp_path / "hf", "hf", "hf")
    (tmp_path / "hf" / "tokenizer_config.json").unlink()
    assert settings_of(tmp_path / "hf") == settings_of(path)


@pytest.mark.slow
def test_encoder_decoder_stores_the_settings_of_the_run(tmp_path) -> None:
    _, _, fields, expected = RUNS["generation"]
    heads, decoder = ("decoder", "mlm"), {"decoder": "cross_attention"}
    run = write_run(tmp_path / "run", "generation", heads, decoder, fields)
    convert(run, tmp_path / "hf", "bertjax", "hf")
    assert settings_of(tmp_path / "hf") == {"task": "generation", **expected}


@pytest.mark.parametrize("task", WITHOUT)
def test_pretraining_and_embeddings_store_no_settings(task: str, tmp_path) -> None:
    run = write_run(tmp_path / "run", task, WITHOUT[task], fields={"max_seq_length": 16})
    convert(run, tmp_path / "hf", "bertjax", "hf")
    assert object_of(tmp_path / "hf") is None


def test_left_to_right_model_stores_its_decoding(tmp_path) -> None:
    fields = {"data": {"objective": "clm"}, "decoding": {"num_beams": 4}}
    shape = {"direction": "left_to_right"}
    run = write_run(tmp_path / "run", "pretraining", ("mlm",), shape, fields)
    convert(run, tmp_path / "hf", "bertjax", "hf")
    assert object_of(tmp_path / "hf") == {"task": "pretraining", "decoding": {"num_beams": 4}}
    assert open_model(tmp_path / "hf").config().decoding.num_beams == 4


def test_settings_of_a_directory_that_transformers_has_saved_are_not_read(
    exports, tmp_path, caplog
) -> None:
    """Its `Trainer` keeps them beside other parameters."""
    shutil.copytree(exports["question_answering"], tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    text = json.dumps(config | {"transformers_version": "4.57.0"})
    (tmp_path / "saved" / "config.json").write_text(text)
    model = open_model(tmp_path / "saved")
    assert model.config().data["version"] == 1 and not model.calibration
    assert "transformers has saved this file" in caplog.text


def test_convert_prints_no_calibration_that_it_keeps(runs, tmp_path, capsys) -> None:
    run = str(runs["question_answering"])
    assert main(["convert", "--to", "hf", run, str(tmp_path / "hf")]) == 0
    assert THRESHOLD not in capsys.readouterr().out


PASSAGE = " ".join(toy_tasks.WORDS[i * i % 10] for i in range(500))
LINES = [
    json.dumps({"question": question, "context": PASSAGE[start:]})
    for question, start in (("ba ki me ra si tu ve", 0), ("no?", 3), ("do ki", 600))
]


@pytest.fixture(scope="module")
def answered(tmp_path_factory) -> tuple[pathlib.Path, list[dict[str, Any]]]:
    """A run of question answering whose threshold leaves a question without answer, its answers."""
    root, task = tmp_path_factory.mktemp("answered"), "question_answering"
    first = answers_of(write_run(root / "first", task, *RUNS[task][:3]), LINES)
    odds = sorted(answer["null_odds"] for answer in first)
    run = write_run(root / "run", task, *RUNS[task][:3], (odds[1] + odds[2]) / 2)
    return run, answers_of(run, LINES)


def check_answers(run: pathlib.Path, exported: pathlib.Path, lines: list[str]) -> None:
    """Check that an export has the answers of its run, and others without the settings."""
    answers, tolerance = answers_of(run, lines), 1e-4  # of rounded numbers
    assert_equal_answers(answers, answers_of(exported, lines), tolerance)
    plain = answers_of(edited(exported, exported.parent / "plain", object=None), lines)
    with pytest.raises(AssertionError):
        assert_equal_answers(answers, plain, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["hf", "onnx"])
def test_questions_are_answered_as_by_the_run(answered, tmp_path, to: str, caplog) -> None:
    run, answers = answered
    assert {bool(answer["answer"]) for answer in answers} == {True, False}
    export(run, tmp_path / "exported", to)
    check_answers(run, tmp_path / "exported", LINES)
    assert f"has no {THRESHOLD}" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("to", ["hf", "onnx"])
def test_ends_of_texts_are_classified_as_by_the_run(runs, tmp_path, to: str) -> None:
    export(runs["sequence_classification"], tmp_path / "exported", to)
    check_answers(runs["sequence_classification"], tmp_path / "exported", ["ba " * 30 + "ki lu"])


def export(run: pathlib.Path, path: pathlib.Path, to: str) -> None:
    if to == "onnx":
        pytest.importorskip("onnx", reason="needs the extra onnx")
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
        from bertjax.inference.export.onnx_model import write_onnx  # imports onnx

        write_onnx(run, path)
        assert object_of(path) == settings_of(path) == settings_of(run)
    else:
        convert(run, path, "bertjax", to)


@pytest.mark.parametrize(
    ("task", "length", "kept", "derived"),
    [
        (
            "question_answering",
            300,
            {"version": 2, "null_score": "softmax"},
            {"max_seq_length": 300, "doc_stride": 100, "max_query_length": 50},
        ),
        (
            "question_answering",
            500,
            {"version": 2, "null_score": "softmax"},
            {"max_seq_length": 500, "doc_stride": 166, "max_query_length": 83},
        ),
        ("answer_extraction", 500, {}, {"max_seq_length": 500, "doc_stride": 166}),
        ("answer_extraction", 300, {}, {"max_seq_length": 300, "doc_stride": 100}),
        ("sequence_classification", 99, {"truncation": "tail"}, {"max_seq_length": 99}),
        ("generation", 99, {}, {"max_seq_length": 147, "max_target_length": 48}),
        ("multiple_choice", 99, {}, {"max_seq_length": 512, "max_choice_length": 99}),
        ("token_classification", 99, {}, {"max_seq_length": 99}),
    ],
)
def test_edited_model_max_length_replaces_lengths_and_strides(
    exports, tmp_path, caplog, task: str, length: int, kept: dict, derived: dict
) -> None:
    path = edited(exports[task], tmp_path / "edited", model_max_length=length)
    for _ in range(2):
        model = PretrainedModel(path)
        config = model.config()
        assert config.data.items() | {("max_seq_length", config.max_seq_length)} >= (
            {**kept, **derived}.items()
        )
    (message,) = [text for text in caplog.messages if KEY in text]
    assert f"model_max_length={length}, which is used" in message
    before = PretrainedModel(exports[task])
    assert (config.decoding, config.extraction, model.calibration) == (
        *(before.config().decoding, before.config().extraction),
        before.calibration,
    )


@pytest.mark.slow
def test_resumed_shards_of_other_settings_are_rejected(answered, tmp_path, capsys) -> None:
    run, _ = answered
    convert(run, tmp_path / "hf", "bertjax", "hf")
    other = edited(tmp_path / "hf", tmp_path / "other", **{f"calibration.{THRESHOLD}": 1.5})
    (tmp_path / "lines.jsonl").write_text("\n".join(LINES))
    shared = ["--num-processes", "1", "--process-id", "0", "--output", str(tmp_path / "answers")]
    words = ["predict", "--input", str(tmp_path / "lines.jsonl"), *shared, "--checkpoint"]
    assert main([*words, str(tmp_path / "hf")]) == main([*words, str(tmp_path / "hf")]) == 0
    assert main([*words, str(other)]) == 2
    assert f"holds shards of calibration.{THRESHOLD}=" in capsys.readouterr().err


def test_extended_vocabulary_keeps_the_settings(exports, tmp_path) -> None:
    model = read_model(exports["question_answering"])
    (tmp_path / "copy").mkdir()
    huggingface.write(model, epath.Path(tmp_path / "copy"))
    assert object_of(tmp_path / "copy") == object_of(exports["question_answering"])
