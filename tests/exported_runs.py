"""Runs of each task that stores settings in its exports, and edits of those."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import toy_tasks
from etils import epath
from random_models import draw_model
from test_interface import SHAPE

from bertjax.checkpointing.lookup import write_params
from bertjax.config.loading import parse_config
from bertjax.formats.inference_settings import KEY
from bertjax.formats.loading import write_labels
from bertjax.inference.convert import convert
from bertjax.inference.predictor import open_model
from bertjax.tasks import registry
from bertjax.tasks.inference_settings import make_settings
from bertjax.workdir.run_record import CALIBRATION_FILE

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


def write_runs(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return a checkpoint for each task that stores settings."""
    return {task: write_run(root / task, task, *RUNS[task][:3]) for task in RUNS}


def export_runs(runs: Mapping[str, pathlib.Path], root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return a directory of Hugging Face of each run."""
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
