"""Settings in exports that are invalid, unknown or of another task, and those of users' tasks."""

import pathlib
import re
from typing import Any

import pytest
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
from test_interface import SHAPE

import bertjax
from bertjax.cli.main import main
from bertjax.formats.inference_settings import KEY
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.tasks import registry
from bertjax.tasks.sequence_classification.task import SequenceClassificationTask
from bertjax.training.initialization import PretrainedModel
from data_pipelines import log
from data_pipelines.errors import InputError
from data_pipelines.fields import field


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, pathlib.Path]:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory) -> dict[str, pathlib.Path]:
    return export_runs(runs, tmp_path_factory.mktemp("exports"))


HUGE = "x" * 10**5
INVALID: dict[str, list[tuple[dict[str, Any], str]]] = {  # changes of an export, part of the error
    "question_answering": [
        ({"object": 5}, "bertjax_inference=5: not an object"),
        ({"object": []}, "bertjax_inference=[]: not an object"),
        ({"object": {}}, "task: missing"),
        ({"task": 5}, "task=5: not a text"),
        ({"data": 5}, "data=5: not an object"),
        ({"data.version": {"a": 1}}, "data.version={'a': 1}: not"),
        ({"data.version": [2]}, "data.version=[2]: not"),
        ({"data.version": None}, "data.version=None: not"),
        ({"data.version": True}, "data.version=True: is of type bool"),
        ({"data.version": "2"}, "data.version='2': is of type str"),
        ({"data.version": 3}, "data.version=3: unknown version"),
        ({"data.null_score": HUGE}, "data.null_score='xxx"),
        ({"data.doc_stride": 10**30}, "data.doc_stride=1000"),
        ({"data.doc_stride": 0}, "doc_stride=0: windows would skip"),
        ({"data.doc_stride": -5}, "doc_stride=-5: windows would skip"),
        ({"data.doc_stride": 413}, "doc_stride=413: windows would skip"),
        ({"data.max_query_length": 0}, "max_query_length=0: questions need"),
        ({"data.\x1b[31m": 1}, "'\\x1b[31m' is no name"),
        ({f"data.{HUGE}": 1}, "xx' is no name"),
        ({"max_seq_length": 513}, "max_seq_length=513: is more than"),
        ({"max_seq_length": 0}, "max_seq_length=0: is too small"),
        ({"calibration.x": float("inf")}, "calibration.x=inf: not a number"),
        ({f"calibration.{THRESHOLD}": "0"}, f"calibration.{THRESHOLD}='0': not a number"),
        ({"decoding.num_beams": 4}, "decoding.num_beams=4: a model of task=question_answering"),
    ],
    "answer_extraction": [
        ({"data.doc_stride": 419}, "doc_stride=419: windows would skip"),
        ({"extraction.num_answers": 10**6}, "num_answers=1000000: too many"),
    ],
    "sequence_classification": [
        ({"data.truncation": "middle"}, "data.truncation='middle': unknown"),
        ({"max_seq_length": 2}, "max_seq_length=2: no space for text"),
    ],
    "generation": [
        ({"data.max_target_length": 89}, "data.max_target_length=89: leaves no space"),
        ({"decoding.num_beams": 10**9}, "num_beams=1000000000: too many"),
        ({"decoding.num_beams": "four"}, "decoding.num_beams='four': is of type str"),
    ],
    "multiple_choice": [({"data.max_choice_length": 4}, "data.max_choice_length=4: no space")],
}


@pytest.mark.parametrize(
    ("task", "changes", "problem"),
    [(task, *case) for task, cases in INVALID.items() for case in cases],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_invalid_value_is_rejected_with_the_fix(
    exports, tmp_path, task: str, changes: dict[str, Any], problem: str
) -> None:
    path = edited(exports[task], tmp_path / "edited", **changes)
    (path / "tokenizer_config.json").unlink()  # whose length would replace others
    with pytest.raises(InputError) as raised:
        PretrainedModel(path).config()
    with pytest.raises(InputError, match=re.escape(str(raised.value))):
        PretrainedModel(path).calibration  # noqa: B018 (reads the file)
    message = str(raised.value)
    assert message.startswith(f"{path}/config.json: {KEY}") and problem in message
    assert message.endswith(f"Correct it, or delete {KEY}.")
    assert message.isprintable() and len(message) < 700


def test_encoder_of_an_export_with_invalid_settings_can_be_used(exports, tmp_path) -> None:
    """Embeddings and initialization read none of them."""
    path = edited(exports["question_answering"], tmp_path / "edited", **{"data.doc_stride": 0})
    model = bertjax.load(path)
    assert model.encode("ba ki").shape == (SHAPE.hidden_size,)
    assert PretrainedModel(path).digest == PretrainedModel(exports["question_answering"]).digest
    with pytest.raises(InputError, match=f"{KEY}: doc_stride=0: .*Correct it, or delete {KEY}"):
        model.predict({"question": "ba?", "context": "ki me ra"})


def test_error_of_an_edited_model_max_length_names_it(exports, tmp_path) -> None:
    path = edited(exports["question_answering"], tmp_path / "edited", model_max_length=4)
    with pytest.raises(InputError, match=f"Correct model_max_length, or delete {KEY}"):
        PretrainedModel(path).config()


def test_predict_rejects_an_invalid_value_before_it_reads_inputs(exports, tmp_path, capsys) -> None:
    path = edited(exports["question_answering"], tmp_path / "edited", **{"data.doc_stride": 0})
    (tmp_path / "lines").write_text("no JSON\n")
    words = ["predict", "--checkpoint", str(path), "--input", str(tmp_path / "lines")]
    assert main(words) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "doc_stride" in line]
    assert error.startswith(f"bertjax: {path}/config.json: {KEY}: doc_stride=0:")


def test_unknown_fields_are_named_once_and_ignored(exports, tmp_path, caplog) -> None:
    unknown = {"data.dir": "/etc", "init": ["x"], "loss": "os:system", "calibration.x": 1.0}
    path = edited(exports["question_answering"], tmp_path / "edited", **unknown)
    for _ in range(2):
        assert settings_of(path) == settings_of(exports["question_answering"])
        config = PretrainedModel(path).config()
        assert (config.data["dir"], config.init, config.loss) == ("", "", "")
    (message,) = [text for text in caplog.messages if "unknown fields" in text]
    assert message.endswith("not read: calibration.x, data.dir, init, loss.")


def test_settings_of_another_task_are_ignored(exports, tmp_path, caplog) -> None:
    path = exports["question_answering"]
    other = edited(path, tmp_path / "other", task="os:system")
    plain = edited(path, tmp_path / "plain", object=None)
    assert settings_of(other) == settings_of(plain) != settings_of(path)
    assert PretrainedModel(other).calibration == {}
    assert "of task='os:system', and not read with task=question_answering" in caplog.text


def test_task_of_a_user_names_its_fields(tmp_path) -> None:
    run = write_run(tmp_path / "run", NAME, *RUNS["sequence_classification"][:2], USED)
    convert(run, tmp_path / "hf", "bertjax", "hf")
    assert object_of(tmp_path / "hf") == {"task": NAME, "data": {"mode": "loud"}}
    model = read_model(tmp_path / "hf")
    assert registry.infer_config(model, NAME).data["mode"] == "loud"
    assert registry.infer_config(model).data["mode"] == "loud"  # an imported task of its run


class LoudTask(SequenceClassificationTask):
    """A task with a field of its own."""

    DATA_FIELDS = SequenceClassificationTask.DATA_FIELDS | {"mode": field("quiet", "volume")}
    INFERENCE_FIELDS = ("data.mode",)


AliasTask = SequenceClassificationTask  # imported under another name


NAME = f"{__name__}:LoudTask"


def test_inference_field_that_is_no_number_or_text_is_rejected() -> None:
    """An export would not be readable."""
    data = SequenceClassificationTask.DATA_FIELDS | {"names": field(("a", "b"), "names")}
    with pytest.raises(TypeError, match=r"'data\.names' is no field of a number or text"):
        type(
            "Odd",
            (SequenceClassificationTask,),
            {"DATA_FIELDS": data, "INFERENCE_FIELDS": ("data.names",)},
        )


@pytest.mark.parametrize("name", ["mode", "data.mode", "data", "model.hidden_size"])
def test_inference_field_that_is_no_field_is_rejected(name: str) -> None:
    with pytest.raises(TypeError, match=rf"INFERENCE_FIELDS: '{name}' is no field"):
        type("Odd", (SequenceClassificationTask,), {"INFERENCE_FIELDS": (name,)})


USED = {"max_seq_length": 16, "data": {"mode": "loud", "truncation": "tail"}}


@pytest.mark.parametrize(
    "alias",
    [
        "bertjax.tasks.sequence_classification.task:SequenceClassificationTask",
        f"{__name__}:AliasTask",
    ],
)
def test_settings_are_those_of_the_class_whatever_its_name_in_the_run(alias, tmp_path) -> None:
    run = write_run(tmp_path / "run", alias, *RUNS["sequence_classification"][:3])
    convert(run, tmp_path / "hf", "bertjax", "hf")
    config = registry.infer_config(read_model(tmp_path / "hf"))
    assert (config.max_seq_length, config.data["truncation"]) == (16, "tail")
