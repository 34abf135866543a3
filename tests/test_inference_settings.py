"""Settings of a run in its exports: stored, read again, rejected, ignored."""

import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

import pytest
import toy_tasks
from etils import epath
from random_models import draw_model
from run_outputs import answers_of, assert_equal_answers
from test_interface import SHAPE

import bertjax
from bertjax.checkpointing.lookup import write_params
from bertjax.cli.main import main
from bertjax.config.loading import parse_config
from bertjax.formats import huggingface
from bertjax.formats.inference_settings import KEY
from bertjax.formats.loading import read_model, write_labels
from bertjax.inference.convert import convert
from bertjax.inference.predictor import open_model
from bertjax.tasks import registry
from bertjax.tasks.inference_settings import make_settings
from bertjax.tasks.sequence_classification.task import SequenceClassificationTask
from bertjax.training.initialization import PretrainedModel
from bertjax.workdir.run_record import CALIBRATION_FILE, read_calibration
from data_pipelines import log
from data_pipelines.errors import InputError
from data_pipelines.fields import field

THRESHOLD = "null_score_diff_threshold"
POSITIONS = 512
LABELS = ("glad", "sad", "odd")
# Task -> heads, fields of the model, fields of the run, and the object of its exports.
RUNS: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "sequence_classification": (
        ("pooler", "sequence_classification"),
        {"num_labels": 3},
        {"max_seq_length": 16, "data": {"truncation": "tail", "dir": "moods"}},
        {"max_seq_length": 16, "data": {"truncation": "tail"}},
    ),
    "question_answering": (
        ("question_answering",),
        {},
        {
            "max_seq_length": 420,
            "data": {"version": 2, "doc_stride": 37, "max_query_length": 5, "dir": "squad"},
        },
        {
            "max_seq_length": 420,
            "data": {
                "version": 2,
                "null_score": "softmax",
                "doc_stride": 37,
                "max_query_length": 5,
            },
            "calibration": {THRESHOLD: -1.27},
        },
    ),
    "answer_extraction": (
        ("answer_boundaries",),
        {},
        {
            "max_seq_length": 420,
            "data": {"scorer": "independent", "doc_stride": 37},
            "extraction": {"num_answers": 7},
        },
        {"max_seq_length": 420, "data": {"doc_stride": 37}, "extraction": {"num_answers": 7}},
    ),
    "generation": (
        ("mlm",),
        {"decoder": "prefix"},
        {
            "max_seq_length": 90,
            "data": {"max_target_length": 33, "source": "passage"},
            "decoding": {"num_beams": 4, "early_stopping": "never"},
        },
        {
            "max_seq_length": 90,
            "data": {"max_target_length": 33},
            "decoding": {"num_beams": 4, "early_stopping": "never"},
        },
    ),
    "multiple_choice": (
        ("pooler", "multiple_choice"),
        {},
        {"max_seq_length": 90, "data": {"max_choice_length": 21}},
        {"max_seq_length": 90, "data": {"max_choice_length": 21}},
    ),
    "token_classification": (
        ("token_classification",),
        {"num_labels": 3},
        {"max_seq_length": 16, "data": {"context": "document"}},
        {"max_seq_length": 16},
    ),
}
WITHOUT = {"pretraining": ("pooler", "mlm", "nsp"), "embeddings": ()}


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


def write_run(
    path: pathlib.Path,
    task: str,
    heads: tuple[str, ...],
    model_fields: Mapping[str, Any] = {},
    fields: Mapping[str, Any] = {},
    threshold: float = -1.27,
) -> pathlib.Path:
    """Write a checkpoint of random parameters, as a run writes it."""
    shape = dataclasses.replace(
        SHAPE,
        num_hidden_layers=1,
        **{"max_position_embeddings": POSITIONS, "num_labels": 0, **model_fields},
    )
    raw = {"task": task, **fields, "model": dataclasses.asdict(shape)}
    config = parse_config(raw, registry.data_fields())
    model = draw_model(shape, toy_tasks.TOKENIZER, *heads)

    def write_metadata(directory: epath.Path) -> None:
        (directory / "config.json").write_text(json.dumps(config.to_dict()))
        toy_tasks.TOKENIZER.save(directory)
        if shape.num_labels:
            write_labels(directory, LABELS)
        if task == "question_answering":
            (directory / CALIBRATION_FILE).write_text(json.dumps({THRESHOLD: threshold}))

    write_params(epath.Path(path), model.params, write_metadata)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A checkpoint for each task that stores settings."""
    root = tmp_path_factory.mktemp("runs")
    return {task: write_run(root / task, task, *RUNS[task][:3]) for task in RUNS}


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory) -> dict[str, pathlib.Path]:
    """A directory of Hugging Face of each run."""
    root = tmp_path_factory.mktemp("exports")
    for task, run in runs.items():
        convert(run, root / task, "bertjax", "hf")
    return {task: root / task for task in runs}


def object_of(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the object in config.json."""
    return json.loads((path / "config.json").read_text()).get(KEY)


def settings_of(path: pathlib.Path) -> dict[str, Any]:
    """Return the settings of an opened model as the object of its exports."""
    model = open_model(path)
    config = model.config()
    settings = make_settings(registry.find_task(config.task), config, model.calibration)
    assert settings
    return settings.to_object()


def edited(path: pathlib.Path, target: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Return a copy of an export with other values, by section and name or dotted name.

    `model_max_length` is that of tokenizer_config.json. The value of `object` replaces all.
    """
    target.mkdir()
    for file in path.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    if (length := changes.pop("model_max_length", None)) is not None:
        file = target / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": length}))
    config = json.loads((target / "config.json").read_text())
    config[KEY] = changes.pop("object", config[KEY])
    for name, value in changes.items():
        section, _, last = name.rpartition(".")
        (config[KEY].setdefault(section, {}) if section else config[KEY])[last] = value
    (target / "config.json").write_text(json.dumps(config))
    return target


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
