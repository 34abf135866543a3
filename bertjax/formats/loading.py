"""Loading of a model directory of any format: configuration, tokenizer, labels, arrays."""

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from bertjax.checkpointing.lookup import read_checkpoint, read_unverified_checkpoint
from bertjax.checkpointing.parameters import check_finite_params, load_params, read_param_shapes
from bertjax.config.loading import read_config_dict, read_model_config
from bertjax.formats import huggingface, tf1
from bertjax.formats.detection import find_format
from bertjax.formats.sentence_transformers import (
    find_pooling_config,
    lower_cases_texts,
    read_projection,
)
from bertjax.formats.tensors import NumpyModel, PoolingConfig
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS, PROJECTION, check_modules_known
from bertjax.model.pooling import init_projection
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.hub import model_path
from data_pipelines.log import warn_once
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import check_schema, read_json_value
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

_MIN_VOCAB_FRACTION = 0.9  # of vocab_size; some models round it up
_log = logging.getLogger("bertjax")
LABELS_FILE = "labels.json"  # in a checkpoint of bertjax


def find_tokenizer(path: epath.PathLike) -> Tokenizer:
    """Return the tokenizer of a model directory of any format.

    Raises:
      InputError: the path is not a model, or the model has no vocabulary.
    """
    if find_format(path) == "bertjax":
        return read_checkpoint(path, load_tokenizer)
    return load_tokenizer(tf1.find_directory(model_path(path)))


def find_bert_config(path: epath.PathLike) -> BertConfig:
    """Return the `BertConfig` of a model directory of any format.

    Raises:
      InputError: the path is not a model.
    """
    path, format_name = model_path(path), find_format(path)
    if format_name == "bertjax":
        # Checkpoints of a run have one shape: processes need not agree on the newest intact one.
        return read_unverified_checkpoint(
            path, lambda checkpoint: read_model_config(checkpoint / "config.json")
        )
    read = huggingface.read_config_dict if format_name == "hf" else tf1.read_config_dict
    return huggingface.parse_bert_config(read(path), path)


def read_run_config(path: epath.PathLike) -> dict[str, Any]:
    """Return the configuration of the run that wrote a checkpoint, without its mesh.

    Raises:
      InputError: the model was not written by a run.
    """
    if find_format(path) != "bertjax":
        raise InputError(f"{path}: a published model names no data to evaluate on. Give --config.")

    def read(checkpoint: epath.Path) -> dict[str, Any]:
        return read_config_dict(checkpoint / "config.json") | {"mesh": {}}

    return read_unverified_checkpoint(path, read)


def find_labels(path: epath.PathLike) -> tuple[str, ...]:
    """Return the label names of a model directory of any format, in the order of their ids.

    The tuple is empty for a model without labels, or without names for them.

    Raises:
      InputError: the path is not a model.
    """
    path, format_name = model_path(path), find_format(path)
    if format_name == "bertjax":
        return read_unverified_checkpoint(path, read_labels)
    read = huggingface.read_config_dict if format_name == "hf" else tf1.read_config_dict
    config_dict = read(path)
    return huggingface.read_labels(config_dict, path) if huggingface.has_labels(config_dict) else ()


def read_labels(checkpoint: epath.Path) -> tuple[str, ...]:
    """Return the label names in a checkpoint of bertjax; empty if it has none."""
    path = checkpoint / LABELS_FILE
    return tuple(read_json_value(path, [str], "Use another checkpoint.")) if path.exists() else ()


def write_labels(directory: epath.Path, labels: Sequence[str]) -> None:
    """Write label names for `read_labels`."""
    atomic_write_text(directory / LABELS_FILE, json.dumps(labels, ensure_ascii=False))


def read_model(path: epath.PathLike, format_name: str | None = None) -> NumpyModel:
    """Read a model.

    Args:
      path: model directory, checkpoint or workdir.
      format_name: one of `detection.FORMATS`; detected by default.

    Raises:
      InputError: the path is not a model, or bertjax cannot compute it.
    """
    path = model_path(path)
    format_name = format_name or find_format(path)
    if format_name == "bertjax":
        model = read_checkpoint(path, _read_bertjax)
    else:
        model = {"hf": huggingface.read, "tf1": tf1.read}[format_name](path)
    _check_model(model, path)
    return model


def read_embedding_model(path: epath.PathLike, format_name: str) -> NumpyModel:
    """Read a published model, with the pooling of an encoder and the linear layer after it.

    Raises:
      InputError: see `read_model` and `read_projection`.
    """
    model = read_model(path, format_name)
    pooling = _find_known_pooling(path)
    if pooling and pooling.projection_size and (projection := read_projection(path)):
        model = dataclasses.replace(model, params={**model.params, PROJECTION: projection})
    return with_pooling(model, path)


def with_pooling(model: NumpyModel, path: epath.PathLike) -> NumpyModel:
    """Return a model with the pooling that its directory states, if it is an encoder alone."""
    has_head = any(part in HEADS for part in model.params)
    return dataclasses.replace(model, pooling=None if has_head else _find_known_pooling(path))


def _find_known_pooling(path: epath.PathLike) -> PoolingConfig | None:
    """Return the pooling that a directory states; None without one, or if bertjax lacks it."""
    with contextlib.suppress(InputError):
        return find_pooling_config(path)
    return None


def describe_pooling(path: epath.PathLike) -> str:
    """Return the settings of embeddings beside an encoder, such as "pooling=mean, normalize".

    The text is "" for a model of another kind.
    """
    try:
        pooling = find_pooling_config(path)
    except InputError:  # a module that bertjax lacks
        return "its modules after the encoder"
    if pooling is None:
        return ""
    names = ["normalize", "projection_size", "do_lower_case"]
    names += ["prompt", "query_prompt", "document_prompt"]
    values = {name: value for name in names if (value := getattr(pooling, name))}
    parts = (name if value is True else f"{name}={value!r}" for name, value in values.items())
    return ", ".join([f"pooling={pooling.pooling}", *parts])


def _read_bertjax(path: epath.Path) -> NumpyModel:
    config, params = read_model_config(path / "config.json"), read_param_shapes(path)
    _check_shapes(params, config, path)  # before memory is allocated for them
    data = read_config_dict(path / "config.json").get("data") or {}
    check_schema(f"{path}: data.", data, {"glue?": str, "problem_type?": str}, "Use another one.")
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


def _check_shapes(params: Any, config: BertConfig, path: epath.Path) -> None:
    """Raise InputError for unknown heads or wrong shapes of a tree of arrays or shapes."""
    check_modules_known(params, path)
    expected, leaves = dict(named_leaves(param_shapes(config))), dict(named_leaves(params))
    if (bias := leaves.get(f"{PROJECTION}/bias")) is not None:  # its size is no field of the model
        init = functools.partial(init_projection, input_size=config.output_size, size=bias.size)
        shapes = {PROJECTION: jax.eval_shape(init, jax.random.key(0))}
        expected |= dict(named_leaves(shapes))
    for name, array in leaves.items():
        if name not in expected:
            raise InputError(f"{path}: has {name}, which BERT lacks. Give a BERT model.")
        if array.shape != expected[name].shape:
            raise InputError(
                f"{path}: {name} has shape {array.shape}, its configuration says "
                f"{expected[name].shape}. Give the configuration of this model."
            )


def _check_model(model: NumpyModel, path: epath.Path) -> None:
    """Raise InputError for unknown heads, wrong shapes or numbers, or too many tokens."""
    _check_shapes(model.params, model.config, path)
    check_finite_params(path, model.params)
    if model.unexpected_keys:
        names = ", ".join(model.unexpected_keys[:5])
        warn_once((str(path), names), f"{path}: arrays of an unknown head are not read: {names}.")
    if model.tokenizer and model.tokenizer.cased and lower_cases_texts(path):
        warn_once(
            (str(path), "do_lower_case"),
            f"{path}: sentence-transformers lower-cases texts before this cased tokenizer. So does "
            "`bertjax embed`; elsewhere, lower-case them yourself.",
        )
    tokens = len(model.tokenizer.tokens) if model.tokenizer else 0
    if 0 < tokens < _MIN_VOCAB_FRACTION * model.config.vocab_size:
        _log.warning(
            "%s: the vocabulary has %s tokens and the model %s. Check that it is complete.",
            *(path, f"{tokens:,}", f"{model.config.vocab_size:,}"),
        )
    if tokens > model.config.vocab_size:
        raise InputError(
            f"{path}: the vocabulary has {tokens:,} tokens, added ones included, and the model "
            f"{model.config.vocab_size:,}. Give the vocabulary of this model."
        )
