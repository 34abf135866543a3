"""Hugging Face model directories: config.json, model.safetensors and tokenizer files."""

import dataclasses
import json
import pickle
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from etils import epath
from safetensors.numpy import save as save_safetensors

from bertjax.formats.detection import TORCH_WEIGHTS, WEIGHTS
from bertjax.formats.tensors import NumpyModel, params_from_arrays
from bertjax.formats.tokenizer_json import to_tokenizer_json
from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import PROBLEM_TYPES
from data_pipelines.parsing import parse_json
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE
from data_pipelines.vocabulary.tokenization import TOKENIZER_FILES, load_tokenizer
from data_pipelines.vocabulary.tokenizer_json import JSON_FILE

# Fields of config.json that BertConfig has under the same names.
_FIELDS = (
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
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_ACTIVATIONS |= {"relu": "relu"}
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
}


def read(path: epath.Path) -> NumpyModel:
    """Read a model.

    Raises:
      InputError: the model is not BERT, a file is missing or damaged, or the weights need torch,
        which is not installed.
    """
    config_dict = read_json(path / "config.json")
    config = parse_bert_config(config_dict, path)
    arrays = {_canonical_name(name): array for name, array in _read_weights(path).items()}
    arrays.pop("bert.embeddings.position_ids", None)  # 0, 1, 2...: no weights
    word = arrays.get("bert.embeddings.word_embeddings.weight")
    decoder = arrays.pop("cls.predictions.decoder.weight", None)
    arrays.pop("cls.predictions.decoder.bias", None)  # the same as cls.predictions.bias
    if decoder is not None and word is not None and not np.array_equal(decoder, word):
        raise InputError(
            f"{path}: the MLM decoder is not tied to the word embeddings, which bertjax does not "
            "support. Give a model with tied embeddings."
        )
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
    has_vocabulary = any((path / name).exists() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(path) if has_vocabulary else None
    model = NumpyModel(config, params, tokenizer, unexpected_keys)
    head = model.labeled_head
    if head is None:
        return model
    count = int(model.params[head]["bias"].shape[0])
    problem = config_dict.get("problem_type")
    if problem not in PROBLEM_TYPES:
        regression = count == 1 and head == "sequence_classification"
        problem = "regression" if regression else "single_label_classification"
    if problem == "regression" and count != 1:
        raise InputError(
            f"{path}: regression has {count} outputs, bertjax supports one. Give such a model."
        )
    labels = () if problem == "regression" else read_labels(config_dict, count)
    if problem != "regression" and len(labels) != count:
        raise InputError(
            f"{path}: id2label names {len(labels)} labels, the head has {count} outputs. Fix "
            "id2label."
        )
    config = dataclasses.replace(config, num_labels=count)
    return dataclasses.replace(model, config=config, labels=labels, problem_type=problem)


def read_labels(config_dict: Mapping[str, Any], count: int = 2) -> tuple[str, ...]:
    """Return the label names of a configuration; LABEL_0 and so on by default."""
    names = config_dict.get("id2label") or {
        i: f"LABEL_{i}" for i in range(config_dict.get("num_labels", count))
    }
    return tuple(str(names[i]) for i in sorted(names, key=int))


def write(model: NumpyModel, path: epath.Path) -> None:
    """Write a directory that `AutoModel` and `AutoTokenizer` open.

    Raises:
      InputError: Hugging Face's class would compute something else.
    """
    head = model.head
    if head and head.pooled and model.config.causal:
        raise InputError(
            f"{head.architecture}: reads [CLS], but this causal model's head reads the last token. "
            "Remove the head, or keep the model in bertjax's format."
        )
    config, arrays = to_config_dict(model), model.named_arrays("hf")
    if config["architectures"] == ["BertModel"]:  # the only class without the prefix
        arrays = {name.removeprefix("bert."): array for name, array in arrays.items()}
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (path / WEIGHTS).write_bytes(save_safetensors(arrays, {"format": "pt"}))
    if model.tokenizer is not None:
        model.tokenizer.save(path)
        (path / JSON_FILE).write_text(to_tokenizer_json(model.tokenizer))
        file = path / CONFIG_FILE
        settings = json.loads(file.read_text()) | {
            "model_max_length": model.config.max_position_embeddings
        }
        file.write_text(json.dumps(settings, indent=2) + "\n")


def to_config_dict(model: NumpyModel) -> dict[str, Any]:
    """Return config.json of a model: architecture, class and labels."""
    name = model.head.architecture if model.head else "BertModel"
    return bert_config_dict(model.config) | {"architectures": [name]} | _label_fields(model)


def _label_fields(model: NumpyModel) -> dict[str, Any]:
    if model.labeled_head is None:
        return {}
    labels = model.labels or tuple(f"LABEL_{i}" for i in range(model.config.num_labels))
    fields: dict[str, Any] = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    fields["label2id"] = {label: i for i, label in enumerate(labels)}
    if model.labeled_head == "sequence_classification":
        fields["problem_type"] = model.problem_type
    return fields


def parse_bert_config(config_dict: Mapping[str, Any], path: epath.Path) -> BertConfig:
    """Return the `BertConfig` of a parsed config.json or bert_config.json.

    Raises:
      InputError: the configuration belongs to another kind of model.
    """
    kind = config_dict.get("model_type", "bert")
    if kind != "bert":
        raise InputError(f"{path}: model_type is {kind!r}. Give a model of type 'bert'.")
    if config_dict.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"{path}: position_embedding_type={config_dict['position_embedding_type']!r}. Give "
            "a model with absolute positions."
        )
    hidden_act = config_dict.get("hidden_act", "gelu")
    if hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"{path}: hidden_act is {hidden_act!r}. Use one of {', '.join(_ACTIVATIONS)}."
        )
    if "hidden_size" not in config_dict or "vocab_size" not in config_dict:
        raise InputError(f"{path}: the configuration lacks hidden_size or vocab_size. Add them.")
    fields = {name: config_dict[name] for name in _FIELDS if name in config_dict}
    causal = bool(config_dict.get("is_decoder", False))
    return BertConfig(**fields, hidden_act=_ACTIVATIONS[hidden_act], causal=causal)


def bert_config_dict(config: BertConfig) -> dict[str, Any]:
    """Return the fields of config.json that describe a `BertConfig`."""
    config_dict: dict[str, Any] = {name: getattr(config, name) for name in _FIELDS}
    config_dict["intermediate_size"] = config.feed_forward_size
    config_dict["hidden_act"] = next(
        theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.hidden_act
    )
    config_dict |= {"model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute"}
    return config_dict | ({"is_decoder": True} if config.causal else {})


def read_json(path: epath.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
      InputError: the file is missing or holds something else.
    """
    try:
        content = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}). Give the complete directory."
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object. Give the directory as published.")
    return content


def _canonical_name(name: str) -> str:
    """Return the name that today's classes with a head use."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name


def _read_weights(path: epath.Path) -> dict[str, np.ndarray]:
    for name, read_file in ((WEIGHTS, _read_safetensors), (TORCH_WEIGHTS, _read_torch)):
        index = path / f"{name}.index.json"
        if (path / name).exists():
            return read_file(path / name)
        if index.exists():
            files = sorted(set(read_json(index).get("weight_map", {}).values()))
            arrays: dict[str, np.ndarray] = {}
            for file in files:
                arrays |= read_file(path / file)
            return arrays
    raise InputError(f"{path}: no {WEIGHTS}. Give a model directory of Hugging Face.")


def _read_safetensors(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error}). Download it again.") from error
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise InputError(
                f"{path}: {name} has dtype {entry['dtype']}, which is not supported. Give the "
                "model before quantization."
            )
    return {
        name: np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries
    }


def _read_torch(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path}: needs torch, which is not installed. Install it, or give model.safetensors, "
            "which save_pretrained of transformers writes."
        ) from None
    try:
        with path.open("rb") as file:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot be read ({reason}). Download it again.") from error
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}
