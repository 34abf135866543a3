"""Conversion of models between the formats of Hugging Face, TF1 and bertjax."""

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from etils import epath

from bertjax.checkpointing.integrity import metadata_files
from bertjax.checkpointing.lookup import read_checkpoint, write_params
from bertjax.config.loading import MODEL_FIELDS, read_run_record
from bertjax.formats import huggingface, tf1
from bertjax.formats.loading import read_model, write_labels
from bertjax.formats.model_card import model_card
from bertjax.formats.sentence_transformers import (
    write_modules,
)
from bertjax.formats.tensors import NumpyModel
from bertjax.formats.tokenizer_json import write_max_length
from bertjax.inference.trained_model import read_published_model, read_trained_model
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.encoders import PAIR
from bertjax.model.heads import PROJECTION
from bertjax.tasks import registry
from bertjax.training.metrics_file import metrics_path, read_metrics
from bertjax.workdir.draft import new_directory
from bertjax.workdir.run_record import CALIBRATION_FILE
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.paths import atomic_write_bytes, atomic_write_text
from data_pipelines.vocabulary.tokenization import describe_difference

# Those of both encoders of a pair may differ; `feed_forward_size` stands for its field.
_UNCOMPARED_FIELDS = ("direction", "intermediate_size", *LAYER_MIX_FIELDS, "freeze_features")


def convert(
    source: epath.PathLike,
    target: epath.PathLike,
    format_name: str,
    target_format: str,
    right_to_left: epath.PathLike = "",
) -> NumpyModel:
    """Convert a model and return it.

    Args:
      source: model directory, checkpoint or workdir.
      target: new or empty directory.
      format_name: format of `source`, "hf", "tf1" or "bertjax".
      target_format: format of `target`.
      right_to_left: another model; the encoders of both become a pair.

    Raises:
      InputError: the source is not a model, the target is not empty, its format cannot express the
        model, or two models are no pair. Nothing is left behind.
    """
    source, target = model_path(source), epath.Path(target)
    with new_directory(target, "DST") as draft:
        if format_name == "bertjax":
            converted = read_checkpoint(source, partial(_read, format_name, target_format))
        else:
            converted = _read(format_name, target_format, source)
        if right_to_left:
            pair = join_encoders(
                {source: converted.model, right_to_left: read_model(right_to_left)}
            )
            converted = _Source(pair, "", {})
        _write(converted, draft, target_format)
    return converted.model


def join_encoders(models: Mapping[epath.PathLike, NumpyModel]) -> NumpyModel:
    """Return the pair of two encoders, without heads.

    Args:
      models: directory -> model, from left to right and from right to left.

    Raises:
      InputError: the encoders have other directions, shapes or vocabularies.
    """
    for (path, model), direction in zip(models.items(), PAIR, strict=True):
        if model.config.direction != direction:
            raise InputError(
                f"{path}: model.direction={model.config.direction}. Give a left_to_right model as "
                "SRC, and a right_to_left one."
            )
    (_, first), (path, second) = models.items()
    for field in (*MODEL_FIELDS, "feed_forward_size"):
        ours, theirs = getattr(first.config, field), getattr(second.config, field)
        if ours != theirs and field not in _UNCOMPARED_FIELDS:
            raise InputError(
                f"{path}: model.{field}={theirs!r}, and {ours!r} in the other model. Train both "
                "with the same."
            )
    ours, theirs = first.tokenizer, second.tokenizer
    if ours and theirs and (difference := describe_difference(theirs, ours)):
        raise InputError(f"{path}: has another vocabulary: {difference}. Train both with the same.")
    own = {name: getattr(BertConfig, name) for name in (*LAYER_MIX_FIELDS, "sampled_softmax")}
    config = dataclasses.replace(first.config, direction="pair", **own)
    encoders = dict(zip(PAIR, (first.params["encoder"], second.params["encoder"]), strict=True))
    return NumpyModel(config, {"encoder": encoders}, ours)


class _Source(NamedTuple):
    """A model, its card if it becomes one of Hugging Face, and the metadata of a checkpoint."""

    model: NumpyModel
    card: str
    metadata: Mapping[str, bytes]


def _read(format_name: str, target_format: str, path: epath.Path) -> _Source:
    is_checkpoint = format_name == "bertjax"
    model = read_trained_model(path) if is_checkpoint else read_published_model(path, format_name)
    files = metadata_files(path) if is_checkpoint else []
    metadata = {file.name: file.read_bytes() for file in files}
    card = model_card(model, path, _read_eval_scores(path)) if target_format == "hf" else ""
    return _Source(model, card, metadata)


def _write(source: _Source, draft: epath.Path, format_name: str) -> None:
    model = source.model
    if format_name == "bertjax":
        write_params(draft, model.params, partial(_write_metadata, source))
    elif format_name == "tf1":
        if PROJECTION in model.params:
            raise InputError(
                "data.projection_size: the TF1 format has no linear layer after the pooling. "
                "Convert to hf."
            )
        tf1.write(model, draft)
    else:
        write_huggingface(model, draft, source.card)


def write_huggingface(model: NumpyModel, path: epath.Path, card: str) -> None:
    """Write a directory of Hugging Face with its card, and of sentence-transformers if it pools.

    Raises:
      InputError: see `bertjax.formats.huggingface.write`.
    """
    huggingface.write(model, path)
    if model.pooling:
        projection = model.params.get(PROJECTION)
        write_modules(path, model.pooling, model.config.output_size, projection)
    atomic_write_text(path / "README.md", card)


def _read_eval_scores(checkpoint: epath.Path) -> dict[str, float]:
    """Return the evaluation scores of a checkpoint's step from its run; empty without a run."""
    workdir = checkpoint.parent.parent
    if not (checkpoint / "run.json").exists() or not metrics_path(workdir).exists():
        return {}
    step = read_run_record(checkpoint)["step"]
    lines = [
        line for line in read_metrics(workdir) if (line["split"], line["step"]) == ("eval", step)
    ]
    return {n: v for n, v in lines[-1].items() if n not in ("step", "split")} if lines else {}


def _write_metadata(source: _Source, path: epath.Path) -> None:
    """Write the files of a checkpoint that describe its parameters."""
    for name, content in source.metadata.items():
        atomic_write_bytes(path / name, content)
    if source.metadata:
        return
    model = source.model
    config = registry.infer_config(model)
    atomic_write_text(path / "config.json", json.dumps(config.to_dict(), indent=1))
    if model.labels:
        write_labels(path, model.labels)
    if calibration := registry.infer_calibration(model):
        atomic_write_text(path / CALIBRATION_FILE, json.dumps(calibration))
    if model.tokenizer is not None:
        model.tokenizer.save(path)
        # Windows of a passage may be shorter than the texts that the model takes.
        if registry.find_task(config.task).max_text_length(config) != model.max_text_length:
            write_max_length(path, model.max_text_length)
