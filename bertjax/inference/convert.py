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
from bertjax.formats.tensors import NumpyModel
from bertjax.model.encoders import PAIR
from bertjax.tasks import registry
from bertjax.training.metrics_file import metrics_path, read_metrics
from bertjax.workdir.draft import exclusive_draft
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes, atomic_write_text


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
    source, target = epath.Path(source), epath.Path(target)
    with exclusive_draft(target, "DST") as (folder, lock):
        if format_name == "bertjax":
            converted = read_checkpoint(source, partial(_read, format_name, target_format))
        else:
            converted = _read(format_name, target_format, source)
        if right_to_left:
            converted = _Source(join_encoders(converted.model, read_model(right_to_left)), "", {})
        draft = folder / "model"
        if draft.exists():
            draft.rmtree()
        draft.mkdir()
        try:
            _write(converted, draft, target_format)
            lock.check()
            if target.exists():
                target.rmdir()
            draft.rename(target)
        except BaseException:
            draft.rmtree(missing_ok=True)
            raise
    return converted.model


def join_encoders(left_to_right: NumpyModel, right_to_left: NumpyModel) -> NumpyModel:
    """Return the pair of two encoders, without heads.

    Raises:
      InputError: the encoders have other directions, shapes or vocabularies.
    """
    models = dict(zip(PAIR, (left_to_right, right_to_left), strict=True))
    for name, model in models.items():
        if model.config.direction != name:
            raise InputError(
                f"model.direction={model.config.direction}: one of the models has it. A pair is a "
                "left_to_right and a right_to_left model, in this order."
            )
        for field in MODEL_FIELDS:
            values = [getattr(other.config, field) for other in models.values()]
            if field != "direction" and values[0] != values[1]:
                raise InputError(
                    f"model.{field}: {values[0]!r} in one model, {values[1]!r} in the other. Train "
                    "both with the same."
                )
    ours, theirs = left_to_right.tokenizer, right_to_left.tokenizer
    if ours is not None and theirs is not None and ours.fingerprint() != theirs.fingerprint():
        raise InputError("the models have different vocabularies. Train both with the same.")
    config = dataclasses.replace(left_to_right.config, direction="pair")
    encoders = {name: model.params["encoder"] for name, model in models.items()}
    return NumpyModel(config, {"encoder": encoders}, ours)


class _Source(NamedTuple):
    """A model, its card if it becomes one of Hugging Face, and the metadata of a checkpoint."""

    model: NumpyModel
    card: str
    metadata: Mapping[str, bytes]


def _read(format_name: str, target_format: str, path: epath.Path) -> _Source:
    is_checkpoint = format_name == "bertjax"
    registry.register_heads(path if is_checkpoint else None)
    model = read_model(path, format_name)
    files = metadata_files(path) if is_checkpoint else []
    metadata = {file.name: file.read_bytes() for file in files}
    card = model_card(model, path, _read_eval_scores(path)) if target_format == "hf" else ""
    return _Source(model, card, metadata)


def _write(source: _Source, draft: epath.Path, format_name: str) -> None:
    model = source.model
    if format_name == "bertjax":
        write_params(draft, model.params, partial(_write_metadata, source))
    elif format_name == "tf1":
        tf1.write(model, draft)
    else:
        huggingface.write(model, draft)
        atomic_write_text(draft / "README.md", source.card)


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
    config = registry.infer_config(model).to_dict()
    atomic_write_text(path / "config.json", json.dumps(config, indent=1))
    if model.labels:
        write_labels(path, model.labels)
    if model.tokenizer is not None:
        model.tokenizer.save(path)
