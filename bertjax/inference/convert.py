"""Conversion of models between the formats of Hugging Face, TF1 and bertjax."""

import json
from functools import partial

from etils import epath

from bertjax.checkpointing.integrity import metadata_files
from bertjax.checkpointing.lookup import find_checkpoint, write_params
from bertjax.config.loading import read_run_record
from bertjax.formats import huggingface, tf1
from bertjax.formats.loading import read_model, write_labels
from bertjax.formats.model_card import model_card
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import registry
from bertjax.training.metrics_file import metrics_path, read_metrics
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text


def convert(
    source: epath.PathLike, target: epath.PathLike, format_name: str, target_format: str
) -> NumpyModel:
    """Convert a model and return it.

    Args:
      source: model directory, checkpoint or workdir.
      target: new or empty directory.
      format_name: format of `source`, "hf", "tf1" or "bertjax".
      target_format: format of `target`.

    Raises:
      InputError: the source is not a model, the target is not empty, or its format cannot express
        the model. Nothing is left behind.
    """
    source, target = epath.Path(source), epath.Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists and is not empty. Name a new directory.")
    if format_name == "bertjax":
        source = find_checkpoint(source)
    registry.register_heads(source if format_name == "bertjax" else None)
    model = read_model(source, format_name)
    draft = epath.Path(f"{target}.partial")
    if draft.exists():
        draft.rmtree()
    draft.mkdir(parents=True)
    try:
        if target_format == "bertjax":
            copies = format_name == "bertjax"
            write_metadata = (
                partial(_copy_metadata, source) if copies else partial(_write_metadata, model)
            )
            write_params(draft, model.params, write_metadata)
        elif target_format == "tf1":
            tf1.write(model, draft)
        else:
            huggingface.write(model, draft)
            (draft / "README.md").write_text(model_card(model, source, _read_eval_scores(source)))
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        draft.rmtree(missing_ok=True)
        raise
    return model


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


def _copy_metadata(source: epath.Path, path: epath.Path) -> None:
    """Copy the metadata files of a checkpoint, which describe its parameters."""
    for file in metadata_files(source):
        file.copy(path / file.name)


def _write_metadata(model: NumpyModel, path: epath.Path) -> None:
    atomic_write_text(
        path / "config.json", json.dumps(registry.infer_config(model).to_dict(), indent=1)
    )
    if model.labels:
        write_labels(path, model.labels)
    if model.tokenizer is not None:
        model.tokenizer.save(path)
