"""Any model that a path names: of which format it is, its shape, its tokenizer, its arrays."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from etils import epath

from bertjax.checkpointing.checkpointer import (
    MANIFEST_FILE,
    find_checkpoint,
    find_unverified_checkpoint,
)
from bertjax.checkpointing.parameters import load_params, read_param_shapes
from bertjax.config.config import read_model_config
from bertjax.formats import huggingface, tf1
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import check_modules_known
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

FORMATS = ("hf", "tf1", "bertjax")
_MIN_VOCAB_FRACTION = 0.9  # of a model's pieces; some round the number of them up
_log = logging.getLogger("bertjax")
LABELS_FILE = "labels.json"  # of a checkpoint


def find_format(path: epath.PathLike) -> str:
    """The format of a directory, one of `FORMATS`.

    Raises:
      InputError: there is no directory, or it is of none of them.
    """
    path = epath.Path(path)
    if not path.exists():
        raise InputError(f"there is no {path}: give a workdir, or the directory of a model.")
    if (path / MANIFEST_FILE).exists() or (path / "checkpoints").exists():
        return "bertjax"
    if huggingface.is_huggingface(path):
        return "hf"
    if tf1.is_tf1(path):
        return "tf1"
    if (path / "run.json").exists():
        raise InputError(f"{path} holds a run that has no checkpoint yet: let it train further.")
    if (path / "best" / MANIFEST_FILE).exists():
        raise InputError(f"{path} holds a sweep, whose best model is {path / 'best'}: name that.")
    raise InputError(
        f"{path} is no model: give a directory with config.json and {huggingface.WEIGHTS}, with "
        f"{tf1.BERT_CONFIG_FILE} and {tf1.CHECKPOINT_PREFIX}.index, or one that `bertjax train` wrote."
    )


def find_tokenizer(path: epath.PathLike) -> Tokenizer:
    """The tokenizer of a model, ours or published.

    Raises:
      InputError: there is no such model, or it has no vocabulary.
    """
    return load_tokenizer(find_checkpoint(path) if find_format(path) == "bertjax" else path)


def find_model(path: epath.PathLike) -> BertConfig:
    """The shape of a model, ours or published, and how it was computed.

    Raises:
      InputError: there is no such model.
    """
    path, format_name = epath.Path(path), find_format(path)
    if format_name == "bertjax":
        # All of a run are of one shape, so that hosts need not agree on the newest intact one.
        return read_model_config(find_unverified_checkpoint(path) / "config.json")
    name = "config.json" if format_name == "hf" else tf1.BERT_CONFIG_FILE
    return huggingface.parse_bert_config(huggingface.read_json(path / name), path)


def read_run_config(path: epath.PathLike) -> dict[str, Any]:
    """The configuration of the run that made a checkpoint, for whatever devices are here.

    Raises:
      InputError: there is none, as a published model has none.
    """
    if find_format(path) != "bertjax":
        raise InputError(
            f"{path} is a published model, and says not what it is to be scored on: give --config."
        )
    raw: dict[str, Any] = json.loads((find_unverified_checkpoint(path) / "config.json").read_text())
    return raw | {"mesh": {}}


def find_labels(path: epath.PathLike) -> tuple[str, ...]:
    """The names of the labels of a model, ours or published, in the order of their numbers.

    Empty where it is no classifier, or is one that gives no names.

    Raises:
      InputError: there is no such model.
    """
    path, format_name = epath.Path(path), find_format(path)
    if format_name == "bertjax":
        return read_labels(find_unverified_checkpoint(path))
    config_dict = huggingface.read_json(path / "config.json") if format_name == "hf" else {}
    return huggingface.read_labels(config_dict) if "id2label" in config_dict else ()


def read_labels(checkpoint: epath.Path) -> tuple[str, ...]:
    """The names of the classes of a checkpoint of ours; empty where there are none."""
    path = checkpoint / LABELS_FILE
    return tuple(json.loads(path.read_text())) if path.exists() else ()


def write_labels(directory: epath.Path, labels: Sequence[str]) -> None:
    """Writes what `read_labels` reads."""
    (directory / LABELS_FILE).write_text(json.dumps(labels, ensure_ascii=False))


def read_model(path: epath.PathLike, format_name: str | None = None) -> NumpyModel:
    """The model in a directory of a format, by default the one that it looks like.

    Raises:
      InputError: there is none, or none that bertjax could compute.
    """
    path = epath.Path(path)
    format_name = format_name or find_format(path)
    model = {"hf": huggingface.read, "tf1": tf1.read, "bertjax": _read_bertjax}[format_name](path)
    _check_model(model, path)
    return model


def _read_bertjax(path: epath.Path) -> NumpyModel:
    path = find_checkpoint(path)
    config, params = read_model_config(path / "config.json"), read_param_shapes(path)
    data = json.loads((path / "config.json").read_text()).get("data", {})
    glue = data.get("glue")
    return NumpyModel(
        config,
        load_params(path, params),
        load_tokenizer(path),
        labels=read_labels(path),
        problem_type=find_glue_task(glue).problem_type
        if glue
        else data.get("problem_type", "single_label_classification"),
    )


def _check_model(model: NumpyModel, path: epath.Path) -> None:
    """Refuses a head that is not known, arrays of other shapes than the configuration says, and too
    large a vocabulary.
    """
    check_modules_known(model.params, path)
    expected = dict(named_leaves(param_shapes(model.config)))
    for name, array in named_leaves(model.params):
        if name not in expected:
            raise InputError(f"{path} has {name}, which BERT has not: it is another model.")
        if array.shape != expected[name].shape:
            raise InputError(
                f"{path} has {name} of shape {array.shape}, where its configuration says "
                f"{expected[name].shape}: the two belong to different models."
            )
    tokens = len(model.tokenizer.tokens) if model.tokenizer else 0
    if 0 < tokens < _MIN_VOCAB_FRACTION * model.config.vocab_size:
        _log.warning(
            "the vocabulary in %s has %s pieces and the model %s: see whether it is whole.",
            *(path, f"{tokens:,}", f"{model.config.vocab_size:,}"),
        )
    if tokens > model.config.vocab_size:
        raise InputError(
            f"the vocabulary in {path} has {tokens:,} pieces and the model "
            f"{model.config.vocab_size:,}: they belong to different models."
        )
