"""Hugging Face model directories: config.json, model.safetensors and tokenizer files."""

import collections
import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from safetensors.numpy import save as save_safetensors

from bertjax.formats import encoder_decoder
from bertjax.formats.detection import BERT_CONFIG_FILE, WEIGHTS
from bertjax.formats.inference_settings import KEY, parse_settings
from bertjax.formats.sentence_transformers import names_activation
from bertjax.formats.tensors import NumpyModel, params_from_arrays
from bertjax.formats.tokenizer_json import (
    read_max_length,
    to_tokenizer_json,
    write_max_length,
)
from bertjax.formats.weights import read_weights
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS
from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import PROBLEM_TYPES
from data_pipelines.log import warn_once
from data_pipelines.model_settings import check_settings
from data_pipelines.paths import atomic_write_bytes, atomic_write_text
from data_pipelines.schema import check_schema, read_json_object
from data_pipelines.vocabulary.tokenization import (
    TOKENIZER_FILES,
    load_tokenizer,
)
from data_pipelines.vocabulary.tokenizer_json import JSON_FILE

CONFIG_NAME = "config.json"
_DECODER, _MLM_BIAS = "cls.predictions.decoder", "cls.predictions.bias"
# `BertConfig.decoder`, the labels of each head and `NumpyModel.history`: `transformers` keeps and
# ignores them.
_DECODER_KIND, _LABEL_SETS = "bertjax_decoder", "bertjax_label_sets"
_HISTORY = "bertjax_history"
_IDENTITY = "torch.nn.modules.linear.Identity"
_log = logging.getLogger("bertjax")

# Fields of config.json that BertConfig has under the same names.
FIELDS = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "initializer_range",
)
_FLOAT_FIELDS = FIELDS[-4:]
SCHEMA = {  # of config.json
    **{f"{name}?": float if name in _FLOAT_FIELDS else int for name in FIELDS},
    **dict.fromkeys(("model_type?", "hidden_act?", "problem_type?", f"{_DECODER_KIND}?"), str),
    **dict.fromkeys(("is_decoder?", "tie_word_embeddings?"), bool),
    "architectures?": [str],
    "num_labels?": int,
    "decoder_start_token_id?": int,
    "encoder?": {str: object},
    "decoder?": {str: object},
    f"{_LABEL_SETS}?": {str: [str]},
    f"{_HISTORY}?": [str],
}
FIX = "Give the directory as published."
_ENCODER_DECODER_KEYS = ("encoder", "decoder", "is_encoder_decoder")
_MAX_LABELS = 1_000_000
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_ACTIVATIONS |= {"relu": "relu", "gelu_python": "gelu", "gelu_python_tanh": "gelu_tanh"}
_ACTIVATIONS |= {"gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh"}


def read(path: epath.Path) -> NumpyModel:
    """Read a model.

    Raises:
      InputError: the model is not BERT, a file is missing or damaged, or the weights need torch,
        which is not installed.
    """
    config_dict = read_config_dict(path)
    config = parse_bert_config(config_dict, path)
    head_config, prefix = config_dict, ""
    if config.has_cross_attention:
        arrays = encoder_decoder.read_arrays(path, config_dict.get("tie_encoder_decoder") is True)
        head_config, prefix = config_dict["decoder"], "decoder."
    else:
        arrays = read_weights(path)
    word = arrays.get(f"{prefix}bert.embeddings.word_embeddings.weight")
    decoder = arrays.pop(f"{_DECODER}.weight", None)
    if decoder is not None and word is not None and not np.array_equal(decoder, word):
        raise InputError(
            f"{path}: the MLM decoder is not tied to the word embeddings, which bertjax does not "
            "support. Give a model with tied embeddings."
        )
    bias = arrays.pop(f"{_DECODER}.bias", None)
    if bias is not None and not np.array_equal(bias, arrays.setdefault(_MLM_BIAS, bias)):
        arrays[_MLM_BIAS] = bias
        _log.warning("%s: %s.bias is used, not %s, as in transformers.", path, _DECODER, _MLM_BIAS)
    if decoder is None and _MLM_BIAS in arrays and head_config.get("tie_word_embeddings") is False:
        _log.warning(
            "%s: has tie_word_embeddings=false and no decoder: the word embeddings are used, where "
            "transformers draws random numbers.", path,
        )  # fmt: skip
    return make_model(path, "hf", config, config_dict, arrays)


def make_model(
    path: epath.Path,
    format_name: str,
    config: BertConfig,
    config_dict: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> NumpyModel:
    """Return the model of a directory, with its tokenizer, labels and problem type.

    Args:
      path: directory of the model.
      format_name: "hf" or "tf1".
      config: result of `parse_bert_config`.
      config_dict: parsed config.json.
      arrays: arrays by their names in the format.

    Raises:
      InputError: the arrays are not those of the configuration, or the labels do not match the
        head's outputs.
    """
    architecture = str(next(iter(config_dict.get("architectures") or [""])))
    params, unexpected_keys = params_from_arrays(arrays, config, format_name, path, architecture)
    return finish_model(path, config, config_dict, params, unexpected_keys)


def finish_model(
    path: epath.Path,
    config: BertConfig,
    config_dict: Mapping[str, Any],
    params: Any,
    unexpected_keys: tuple[str, ...] = (),
) -> NumpyModel:
    """Return a model of these parameters, with its tokenizer, labels and problem type.

    Args:
      path: directory of the model.
      config: result of `parse_bert_config`.
      config_dict: parsed config.json.
      params: parameters, of which the number of outputs is read.
      unexpected_keys: names of arrays of unknown heads.

    Raises:
      InputError: the labels do not match the head's outputs.
    """
    has_vocabulary = any((path / name).exists() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(path) if has_vocabulary else None
    file = path / (CONFIG_NAME if (path / CONFIG_NAME).exists() else BERT_CONFIG_FILE)
    if config.has_cross_attention:
        encoder_decoder.check_start_token(config_dict, tokenizer, path)
    model = NumpyModel(
        config,
        params,
        tokenizer,
        unexpected_keys,
        max_seq_length=read_max_length(path),
        history=tuple(config_dict.get(_HISTORY) or ()),
        inference=parse_settings(config_dict, file),
    )
    head = model.labeled_head
    if head is None:
        return model
    if config.label_counts:
        return dataclasses.replace(model, labels=read_labels(config_dict, path))
    count = int(model.params[head]["bias"].shape[0])
    has_activation = names_activation(path, config_dict)
    problem = config_dict.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise InputError(
            f"{path}: problem_type={problem!r}: unknown value. Use {', '.join(PROBLEM_TYPES)}."
        )
    if problem is None:
        regression = count == 1 and head == "sequence_classification"
        problem = "regression" if regression else "single_label_classification"
        if regression and not has_activation:
            warn_once(
                (str(path), "sigmoid"),
                f"{path}: a number is returned. Transformers' pipeline and CrossEncoder apply a "
                "sigmoid to it: the directory has no problem_type and no activation function.",
            )
    if problem == "regression" and count != 1:
        raise InputError(
            f"{path}: regression has {count} outputs, bertjax supports one. Give such a model."
        )
    labels = () if problem == "regression" else read_labels(config_dict, path, count)
    if problem != "regression" and len(labels) != count:
        raise InputError(
            f"{path}: id2label names {len(labels)} labels, the head has {count} outputs. Give the "
            "config.json of this model."
        )
    config = dataclasses.replace(config, num_labels=count)
    return dataclasses.replace(model, config=config, labels=labels, problem_type=problem)


def has_labels(config_dict: Mapping[str, Any]) -> bool:
    """Return whether a parsed config.json names labels."""
    return "id2label" in config_dict or _LABEL_SETS in config_dict


def read_labels(
    config_dict: Mapping[str, Any], path: epath.PathLike, count: int = 2
) -> tuple[str, ...]:
    """Return the label names of a configuration; LABEL_0 and so on by default.

    Args:
      config_dict: parsed config.json.
      path: directory of the model, for messages.
      count: outputs of the head.

    Raises:
      InputError: ids of labels are missing, or two labels have one name.
    """
    if sets := config_dict.get(_LABEL_SETS):
        return tuple(itertools.chain(*sets.values()))
    num_labels = config_dict.get("num_labels") or count
    if not 0 < num_labels <= _MAX_LABELS:
        raise InputError(f"{path}: num_labels={num_labels}: out of range. {FIX}")
    names = config_dict.get("id2label") or {i: f"LABEL_{i}" for i in range(num_labels)}
    try:
        label_of_id = {int(i): str(name) for i, name in names.items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{path}: id2label={names!r}: not an object of ids and names. Write "
            '{"0": "first", "1": "second"} in config.json.'
        ) from None
    if sorted(label_of_id) != [*range(len(names))]:
        raise InputError(
            f"{path}: id2label has the ids {', '.join(map(str, sorted(label_of_id)))}, not "
            f"0 to {len(names) - 1}. Name each output of the head in config.json."
        )
    labels = tuple(label_of_id[i] for i in range(len(names)))
    if len({*labels}) < len(labels):
        first, _ = collections.Counter(labels).most_common(1)[0]
        ids = [i for i, label in enumerate(labels) if label == first]
        raise InputError(
            f"{path}: id2label names the outputs {' and '.join(map(str, ids))} {first!r}, so "
            "their scores have one name. Give each another name in config.json."
        )
    declared = config_dict.get("label2id")
    if isinstance(declared, Mapping):
        for label, i in declared.items():
            if (name := label_of_id.get(i) if isinstance(i, int) else None) != label:
                warn_once(
                    (str(path), "label2id"),
                    f"{path}: label2id has {label!r}={i}, id2label {name!r}. "
                    "id2label is used, as in transformers.",
                )
    return labels


def write(model: NumpyModel, path: epath.Path) -> None:
    """Write a directory that `AutoModel` and `AutoTokenizer` open.

    Raises:
      InputError: Hugging Face's class would compute something else.
    """
    heads = [HEADS[module] for module in model.params if module in HEADS]
    pooled = next((head for head in heads if head.pooled), None)
    if pooled and model.config.direction == "left_to_right":
        raise InputError(
            f"{pooled.architecture}: reads [CLS], but the head of this left-to-right model reads "
            "the last token. Keep the model in bertjax's format."
        )
    arrays = model.named_arrays("hf")
    if model.config.has_cross_attention:
        arrays = encoder_decoder.file_names(arrays)
    elif not heads:  # the only class without the prefix
        arrays = {name.removeprefix("bert."): array for name, array in arrays.items()}
    atomic_write_bytes(path / WEIGHTS, save_safetensors(arrays, {"format": "pt"}))
    write_config(model, path)


def write_config(model: NumpyModel, path: epath.Path) -> None:
    """Write config.json, with architecture and labels, and the tokenizer files of a directory."""
    atomic_write_text(path / CONFIG_NAME, json.dumps(to_config_dict(model), indent=2) + "\n")
    if model.tokenizer is not None:
        model.tokenizer.save(path)
        atomic_write_text(path / JSON_FILE, to_tokenizer_json(model.tokenizer))
        write_max_length(path, model.max_text_length)


def to_config_dict(model: NumpyModel) -> dict[str, Any]:
    """Return config.json of a model: architecture, class, labels, history, inference settings."""
    run: dict[str, Any] = {_HISTORY: list(model.history)} if model.history else {}
    run |= {KEY: model.inference.to_object()} if model.inference else {}
    if model.config.has_cross_attention:
        bert = bert_config_dict(dataclasses.replace(model.config, decoder=""))
        return encoder_decoder.to_config_dict(bert, model.tokenizer) | run
    name = model.head.architecture if model.head else "BertModel"
    fields = bert_config_dict(model.config) | {"architectures": [name]} | _label_fields(model)
    fields |= run
    return fields | ({"pad_token_id": model.tokenizer.pad_id} if model.tokenizer else {})


def _label_fields(model: NumpyModel) -> dict[str, Any]:
    if model.labeled_head is None:
        return {}
    labels = model.labels or tuple(f"LABEL_{i}" for i in range(model.config.num_labels))
    if sets := model.config.split_labels(labels):
        return {_LABEL_SETS: sets}  # `id2label` would be that of any head
    fields: dict[str, Any] = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    fields["label2id"] = {label: i for i, label in enumerate(labels)}
    if model.labeled_head == "sequence_classification":
        fields["problem_type"] = model.problem_type
    if model.problem_type == "regression":  # else CrossEncoder applies a sigmoid
        fields["sentence_transformers"] = {"activation_fn": _IDENTITY}
        fields["sbert_ce_default_activation_function"] = _IDENTITY  # before version 4
    return fields


def parse_bert_config(config_dict: Mapping[str, Any], path: epath.Path) -> BertConfig:
    """Return the `BertConfig` of a parsed config.json or bert_config.json.

    Raises:
      InputError: the configuration belongs to another kind of model.
    """
    kind = config_dict.get("model_type", "bert")
    if kind == encoder_decoder.MODEL_TYPE:
        check_settings(
            path / CONFIG_NAME,
            {name: config_dict[name] for name in config_dict if name not in _ENCODER_DECODER_KEYS},
            CONFIG_NAME,
        )
        parts = []
        for part in encoder_decoder.part_configs(config_dict, path):
            check_schema(f"{path / CONFIG_NAME}: ", part, SCHEMA, FIX)
            parts.append(parse_bert_config(part, path))
        return encoder_decoder.join_configs(parts[0], parts[1], path)
    if kind != "bert":
        raise InputError(f"{path}: model_type is {kind!r}. Give a model of type 'bert'.")
    check_settings(path / CONFIG_NAME, config_dict, CONFIG_NAME)
    hidden_act = config_dict.get("hidden_act") or "gelu"
    if hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"{path}: hidden_act is {hidden_act!r}. Give a model with one of "
            f"{', '.join(_ACTIVATIONS)}."
        )
    if "hidden_size" not in config_dict or "vocab_size" not in config_dict:
        raise InputError(
            f"{path}: the configuration lacks hidden_size or vocab_size. Give the "
            "configuration of this model."
        )
    fields = {name: config_dict[name] for name in FIELDS if config_dict.get(name) is not None}
    fields |= {"direction": "left_to_right"} if config_dict.get("is_decoder") else {}
    decoder = config_dict.get(_DECODER_KIND) or ""
    if sets := config_dict.get(_LABEL_SETS):
        fields["label_counts"] = ",".join(f"{head}={len(sets[head])}" for head in sets)
        fields["num_labels"] = sum(map(len, sets.values()))
    return BertConfig(**fields, hidden_act=_ACTIVATIONS[hidden_act], decoder=decoder)


def bert_config_dict(config: BertConfig) -> dict[str, Any]:
    """Return the fields of config.json that describe a `BertConfig`."""
    config_dict: dict[str, Any] = {name: getattr(config, name) for name in FIELDS}
    config_dict["intermediate_size"] = config.feed_forward_size
    config_dict["hidden_act"] = next(
        theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.hidden_act
    )
    config_dict |= {"model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute"}
    config_dict |= {"is_decoder": True} if config.direction == "left_to_right" else {}
    return config_dict | ({_DECODER_KIND: config.decoder} if config.decoder else {})


def read_config_dict(path: epath.Path) -> dict[str, Any]:
    """Return the content of config.json, or bert_config.json as early converters named it."""
    is_early = not (path / CONFIG_NAME).exists() and (path / BERT_CONFIG_FILE).exists()
    return read_json_object(path / (BERT_CONFIG_FILE if is_early else CONFIG_NAME), SCHEMA, FIX)
