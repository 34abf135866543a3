"""Directories of Hugging Face: config.json, model.safetensors and the tokenizer's files."""

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

from bertjax.formats.tensors import NumpyModel, params_from_arrays
from bertjax.formats.tokenizer_json import to_tokenizer_json
from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import PROBLEM_TYPES
from data_pipelines.parsing import parse_json
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE
from data_pipelines.vocabulary.tokenization import TOKENIZER_FILES, load_tokenizer
from data_pipelines.vocabulary.tokenizer_json import JSON_FILE

WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
# What a `config.json` says, and the fields of ours that say it.
FIELDS = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
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


def is_huggingface(path: epath.Path) -> bool:
    """Whether a directory looks like one of Hugging Face."""
    names = (WEIGHTS, f"{WEIGHTS}.index.json", TORCH_WEIGHTS, f"{TORCH_WEIGHTS}.index.json")
    return any((path / name).exists() for name in names)


def read(path: epath.Path) -> NumpyModel:
    """The model in a directory.

    Raises:
      InputError: it is no BERT, is not whole, or holds weights of torch and torch is not installed.
    """
    config_dict = read_json(path / "config.json")
    config = parse_bert_config(config_dict, path)
    found = {_canonical_name(name): array for name, array in _read_weights(path).items()}
    found.pop("bert.embeddings.position_ids", None)  # 0, 1, 2...: no weights
    word = found.get("bert.embeddings.word_embeddings.weight")
    decoder = found.pop("cls.predictions.decoder.weight", None)
    found.pop("cls.predictions.decoder.bias", None)  # the same as cls.predictions.bias
    if decoder is not None and word is not None and not np.array_equal(decoder, word):
        raise InputError(
            f"{path} predicts masked pieces by other vectors than its word embeddings, which "
            "bertjax does not: nothing was converted."
        )
    try:
        params, unexpected_keys = params_from_arrays(
            found, config, "hf", architecture_name(config_dict)
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    has_vocabulary = any((path / name).exists() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(path) if has_vocabulary else None
    model = NumpyModel(config, params, tokenizer, unexpected_keys)
    return labeled(model, config_dict, path)


def architecture_name(config_dict: Mapping[str, Any]) -> str:
    """The class that a configuration names; "" where it names none."""
    return str(next(iter(config_dict.get("architectures") or [""])))


def labeled(model: NumpyModel, config_dict: Mapping[str, Any], path: epath.Path) -> NumpyModel:
    """The model with what is said of the outputs of its classifier or tagger, if it has one."""
    head = model.labeled
    if head is None:
        return model
    count = int(model.params[head]["bias"].shape[0])
    problem = config_dict.get("problem_type")
    if problem not in PROBLEM_TYPES:
        regression = count == 1 and head == "sequence_classification"
        problem = "regression" if regression else "single_label_classification"
    if problem == "regression" and count != 1:
        raise InputError(
            f"{path} gives {count} numbers of a text, and bertjax one: nothing was converted."
        )
    labels = () if problem == "regression" else read_labels(config_dict, count)
    if problem != "regression" and len(labels) != count:
        raise InputError(
            f"{path} names {len(labels)} labels in its configuration and scores {count}: mend "
            "id2label."
        )
    config = dataclasses.replace(model.config, num_labels=count)
    return dataclasses.replace(model, config=config, labels=labels, problem_type=problem)


def read_labels(config_dict: Mapping[str, Any], count: int = 2) -> tuple[str, ...]:
    """The names of labels that a configuration gives; LABEL_0 and so on where it gives none."""
    names = config_dict.get("id2label") or {
        i: f"LABEL_{i}" for i in range(config_dict.get("num_labels", count))
    }
    return tuple(str(names[i]) for i in sorted(names, key=int))


def write(model: NumpyModel, path: epath.Path) -> None:
    """Writes a directory that `AutoModel` and `AutoTokenizer` open."""
    head = model.head
    if head and head.pooled and model.config.causal:
        raise InputError(
            f"{head.architecture} reads [CLS], and the left-to-right model in hand the last piece "
            "of a text: leave its head out, or keep it in bertjax."
        )
    config, tensors = describe(model), model.tensors("hf")
    if config["architectures"] == ["BertModel"]:  # which alone does without the prefix
        tensors = {key.removeprefix("bert."): array for key, array in tensors.items()}
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (path / WEIGHTS).write_bytes(save_safetensors(tensors, {"format": "pt"}))
    if model.tokenizer is not None:
        model.tokenizer.save(path)
        (path / JSON_FILE).write_text(to_tokenizer_json(model.tokenizer))
        file = path / CONFIG_FILE
        settings = json.loads(file.read_text()) | {
            "model_max_length": model.config.max_position_embeddings
        }
        file.write_text(json.dumps(settings, indent=2) + "\n")


def describe(model: NumpyModel) -> dict[str, Any]:
    """What a configuration says of a model: its shape, its class and its labels."""
    name = model.head.architecture if model.head else "BertModel"
    return bert_config_dict(model.config) | {"architectures": [name]} | _describe_labels(model)


def _describe_labels(model: NumpyModel) -> dict[str, Any]:
    if model.labeled is None:
        return {}
    labels = model.labels or tuple(f"LABEL_{i}" for i in range(model.config.num_labels))
    problem = (
        {"problem_type": model.problem_type} if model.labeled == "sequence_classification" else {}
    )
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    } | problem


def parse_bert_config(config_dict: Mapping[str, Any], path: epath.Path) -> BertConfig:
    """The configuration in the words of Hugging Face, which are those of TF1 too.

    Raises:
      InputError: it is that of another model.
    """
    kind = config_dict.get("model_type", "bert")
    if kind != "bert":
        raise InputError(f"{path} is a model of type {kind!r}: only those of type 'bert' convert.")
    if config_dict.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"{path} has positions of type {config_dict['position_embedding_type']!r}, which BERT has "
            "not: nothing was converted."
        )
    hidden_act = config_dict.get("hidden_act", "gelu")
    if hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"{path} has hidden_act={hidden_act!r}: bertjax has {', '.join(_ACTIVATIONS)}."
        )
    if "hidden_size" not in config_dict or "vocab_size" not in config_dict:
        raise InputError(f"{path}: its configuration has no hidden_size or no vocab_size.")
    fields = {ours: config_dict[theirs] for theirs, ours in FIELDS.items() if theirs in config_dict}
    causal = bool(config_dict.get("is_decoder", False))
    return BertConfig(**fields, hidden_act=_ACTIVATIONS[hidden_act], causal=causal)


def bert_config_dict(config: BertConfig) -> dict[str, Any]:
    """The other way round."""
    config_dict: dict[str, Any] = {theirs: getattr(config, ours) for theirs, ours in FIELDS.items()}
    config_dict["intermediate_size"] = config.feed_forward_size
    config_dict["hidden_act"] = next(
        theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.hidden_act
    )
    config_dict |= {"model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute"}
    return config_dict | ({"is_decoder": True} if config.causal else {})


def read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      InputError: there is none.
    """
    try:
        content = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): give the whole directory.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: give the directory as it was published.")
    return content


def _canonical_name(name: str) -> str:
    """A name as today's classes with a head give it."""
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
            found: dict[str, np.ndarray] = {}
            for file in files:
                found |= read_file(path / file)
            return found
    raise InputError(f"{path} holds no {WEIGHTS}: give a directory of a model of Hugging Face.")


def _read_safetensors(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        found = safetensors.deserialize(path.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read ({error}): fetch it again.") from error
    for name, each in found:
        if each["dtype"] not in _DTYPES:
            raise InputError(
                f"{path} has {name} in {each['dtype']}, of which bertjax makes no weights: take "
                "the model as it was before it was quantised."
            )
    return {
        name: np.frombuffer(each["data"], _DTYPES[each["dtype"]]).reshape(each["shape"])
        for name, each in found
    }


def _read_torch(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path} can only be read by torch, which is not installed: install it, or take the "
            "model's safetensors (a model without any gets them by save_pretrained of "
            "`transformers`)."
        ) from None
    try:
        with path.open("rb") as file:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}): fetch it again.") from error
    return {name: tensor.float().numpy() for name, tensor in found.items()}
