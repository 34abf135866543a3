"""The command line of synthetic question answering, its options and their settings."""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest
from toy_synthetic_qa import make_options, make_rows, write_squad

from data_pipelines.errors import InputError
from experiments.synthetic_qa import __main__ as command_line
from experiments.synthetic_qa import options as options_module
from experiments.synthetic_qa import questions
from experiments.synthetic_qa.__main__ import main, parse_overrides, parse_stages, plan_lines
from experiments.synthetic_qa.options import STAGE_NAMES, Options


def test_plan_names_every_stage_in_order(tmp_path) -> None:
    lines = plan_lines(make_options(tmp_path))
    assert [line.split(":")[0] for line in lines] == [
        f"{i}. {name}" for i, name in enumerate(STAGE_NAMES, 1)
    ]


def test_settings_of_another_start_are_rejected(tmp_path) -> None:
    options = make_options(tmp_path)
    options.check_settings()
    options.check_settings()
    dataclasses.replace(options, readers=("one_pass",), seeds=3).check_settings()
    with pytest.raises(InputError, match=r"made with paragraphs=10000, not 5\. Name another"):
        dataclasses.replace(options, paragraphs=5).check_settings()
    with pytest.raises(InputError, match="made with models="):
        dataclasses.replace(options, overrides={"reader": {"steps": "1"}}).check_settings()


@pytest.mark.parametrize("has_other_files", [False, True])
def test_other_processes_compare_the_settings_of_the_first(
    tmp_path, monkeypatch, has_other_files: bool
) -> None:
    first = make_options(tmp_path, num_processes=2)
    second = dataclasses.replace(first, process_id=1)
    if has_other_files:  # such as the settings that the first process is writing
        first.workdir.mkdir()
        (first.workdir / "settings.json.partial").touch()

    def write_settings(seconds: float) -> None:
        options_module.write_rows(first.workdir / "settings.json", [first.settings()])

    monkeypatch.setattr(options_module.time, "sleep", write_settings)
    second.check_settings()
    (first.workdir / "settings.json").unlink()
    with pytest.raises(InputError, match="made with paragraphs=10000, not 5"):
        dataclasses.replace(second, paragraphs=5).check_settings()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sentence_pairs": 0}, "--sentence-pairs=0: Use at least 1"),
        ({"paragraphs": -1}, "--paragraphs=-1: Use at least 1"),
        ({"num_answers": 0}, "--num-answers=0: Use at least 1"),
        ({"block_size": 0}, "--block-size=0: Use at least 1"),
        ({"seeds": 0}, "--seeds=0: Use at least 1"),
        ({"seed": -1}, "--seed=-1: negative"),
        ({"negatives_per_question": -0.5}, "--negatives-per-question=-0.5: not a number"),
        ({"negatives_per_question": float("nan")}, "not a number from 0"),
        ({"null_threshold": float("nan")}, "--null-threshold=nan: no number"),
        ({"readers": ("real", "fake")}, "--readers=fake: unknown. Use some of real"),
        ({"overrides": {"teacher": {}}}, "--set teacher.FIELD: no such model. Use decoder"),
        ({"process_id": 1}, "--process-id=1: not below --num-processes=1"),
    ],
    ids=str,
)
def test_options_reject(tmp_path, fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make_options(tmp_path, **fields)


@pytest.mark.parametrize(
    ("text", "expected"), [("4", [4]), ("4-6", [4, 5, 6]), ("7-", [7, 8]), ("1-", [*range(1, 9)])]
)
def test_stages_are_a_number_or_a_range(text: str, expected: list[int]) -> None:
    assert [*parse_stages(text)] == expected


@pytest.mark.parametrize("stages_", ["0", "9", "9-", "3-2", "x", "-", "-2", "", "1-9"])
def test_stages_reject(stages_: str) -> None:
    with pytest.raises(InputError, match="--stages="):
        parse_stages(stages_)


def test_overrides_are_fields_of_models() -> None:
    assert parse_overrides(["reader.steps=3", "reader.model.dtype=float32"]) == {
        "reader": {"steps": "3", "model.dtype": "float32"}
    }
    for item in ("reader.steps", "steps=3", "reader.=3"):
        with pytest.raises(InputError, match="not of the form"):
            parse_overrides([item])
    with pytest.raises(InputError, match=r"--set reader.steps=4: reader.steps is set twice\. Set"):
        parse_overrides(["reader.steps=3", "decoder.steps=3", "reader.steps=4"])


@pytest.fixture
def squad(tmp_path) -> pathlib.Path:
    return write_squad(tmp_path / "squad")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-v2.0.json", None, "train-v2.0.json: no such file"),
        ("dev-v2.0.json", "{", "dev-v2.0.json:1: not JSON"),
        ("dev-v2.0.json", json.dumps({"data": []}), "dev-v2.0.json: no questions"),
    ],
)
def test_command_rejects_squad(squad, tmp_path, monkeypatch, file, content, message) -> None:
    monkeypatch.setattr("bertjax.formats.detection.find_format", lambda path: "bertjax")
    (squad / file).unlink() if content is None else (squad / file).write_text(content)
    command = ["--workdir", str(tmp_path / "w"), "--encoder", "e", "--squad", str(squad)]
    with pytest.raises(InputError, match=message):
        main([*command, "--text", "t"])
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("options", "loads"),
    [
        (["--stages", "6-7"], True),
        (["--stages", "8"], False),
        (["--negatives-per-question", "0"], False),
        (["--num-processes", "2", "--process-id", "1"], False),
    ],
    ids=str,
)
def test_tagger_is_loaded_before_the_first_stage(
    squad, tmp_path, monkeypatch, options: list[str], loads: bool
) -> None:
    def fail() -> None:
        raise InputError("textblob: not installed")

    def check_settings(options: Options) -> None:
        raise InputError("the plan begins")

    monkeypatch.setattr("bertjax.formats.detection.find_format", lambda path: "bertjax")
    monkeypatch.setattr(command_line, "load_tagger", fail)
    monkeypatch.setattr(Options, "check_settings", check_settings)
    command = ["--workdir", str(tmp_path / "w"), "--encoder", "e", "--squad", str(squad)]
    with pytest.raises(InputError, match="textblob" if loads else "the plan begins"):
        main([*command, "--text", "t", *options])


@pytest.mark.parametrize("option", ["--workdir", "--squad"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/directory", "gs://bucket/directory: not local"),
        ("~/directory", "~/directory: the shell has not expanded ~. Write /"),
    ],
)
def test_command_rejects_paths_that_are_not_local(
    squad, capsys, option: str, path, message
) -> None:
    values = {"--workdir": "w", "--encoder": "e", "--squad": str(squad), "--text": "t"}
    values[option] = path
    with pytest.raises(SystemExit):
        main([word for pair in values.items() for word in pair])
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_command_rejects_a_dev_file_whose_halves_have_no_scores(
    squad, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("bertjax.formats.detection.find_format", lambda path: "bertjax")
    shutil.copy(squad / "train-v2.0.json", squad / "dev-v2.0.json")
    command = ["--workdir", str(tmp_path / "w"), "--encoder", "e", "--squad", str(squad)]
    with pytest.raises(InputError, match="every other article is a half with scores of its own"):
        main([*command, "--text", "t"])


def test_command_rejects_questions_that_all_have_answers(squad, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("bertjax.formats.detection.find_format", lambda path: "bertjax")
    questions.write_squad(squad / "train-v2.0.json", make_rows())
    command = ["--workdir", str(tmp_path / "w"), "--encoder", "e", "--squad", str(squad)]
    with pytest.raises(InputError, match="all questions have answers"):
        main([*command, "--text", "t"])
