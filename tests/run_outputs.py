"""Readers of what a run leaves: metrics, parameters, answers, TensorBoard events."""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import pretraining_runs
import pytest
from etils import epath

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.config.loading import read_config
from bertjax.inference.predictor import Predictor
from bertjax.tasks import registry
from bertjax.workdir.goodput import PARTS

TIMES = {"sequences_per_second", "examples_per_second", "tokens_per_second", "mfu", "goodput"}
TIMES |= {"input_wait_fraction"} | {f"{part}_fraction" for part in PARTS}


def metrics(workdir: pathlib.Path) -> list[dict]:
    """Return the finished lines of metrics.jsonl without those of speed."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in entry.items() if k not in TIMES} for entry in entries]


def params_of(workdir: pathlib.Path) -> list[bytes]:
    config = read_config(find_checkpoint(workdir) / "config.json", registry.data_fields())
    return [array.tobytes() for array in pretraining_runs.params_of(workdir, config)]


def answers_of(checkpoint: epath.PathLike, lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the answers of a checkpoint to lines of text."""
    predictor = Predictor(checkpoint)
    return list(predictor.predict(predictor.pipeline.parse_lines(lines), 64))


def assert_equal_answers(answer: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Check that two answers differ at most in the last digits of numbers."""
    if isinstance(answer, float):
        assert other == pytest.approx(answer, abs=tolerance)
    elif isinstance(answer, dict):
        assert answer.keys() == other.keys()
        for name in answer:
            assert_equal_answers(answer[name], other[name], tolerance)
    elif isinstance(answer, list):
        assert len(answer) == len(other)
        for values in zip(answer, other, strict=True):
            assert_equal_answers(*values, tolerance)
    else:
        assert answer == other


def write_evaluation(
    directory: pathlib.Path, config: dict, scores: dict[str, float], **files: object
) -> None:
    """Write the output of `bertjax evaluate`: its files, scores and configuration."""
    evaluation = {"checkpoints": ["runs/x"], "config": config}
    for name, content in {"evaluation": evaluation, "scores": scores, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def events(workdir: pathlib.Path, split: str) -> list[Any]:
    """Return the TensorBoard events of a split, in the order of its files."""
    tf = pytest.importorskip("tensorflow")

    records = []
    for path in sorted((workdir / "tensorboard" / split).iterdir()):
        assert path.name.startswith("events.out.tfevents.")
        for record in tf.data.TFRecordDataset(os.fspath(path)):
            records.append(tf.compat.v1.Event.FromString(record.numpy()))
    return records
