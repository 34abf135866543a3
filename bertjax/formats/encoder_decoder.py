"""Directories of `EncoderDecoderModel`: a BERT and a BERT with cross-attention, of one shape.

The arrays of the encoder have the names of `BertModel` after "encoder.", those of the decoder the
names of `BertLMHeadModel` after "decoder.". In `bertjax.formats.parameter_names` the encoder and
the masked LM head have the names of `BertForMaskedLM`, and only other arrays begin with "decoder.".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.formats.weights import canonical_name, read_files
from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError
from data_pipelines.log import warn_once
from data_pipelines.vocabulary.tokenization import Tokenizer

MODEL_TYPE = "encoder-decoder"
_DECODER_FIELDS = {"is_decoder": True, "add_cross_attention": True}
# Fields in which encoder and decoder may differ, because only training reads them.
_TRAINING_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")


def part_configs(config_dict: Mapping[str, Any], path: epath.Path) -> list[dict[str, Any]]:
    """Return the sections "encoder" and "decoder" of config.json, without what a decoder has.

    Raises:
      InputError: a section is missing, is no BERT, or the decoder does not read the encoder.
    """
    sections = []
    for name in ("encoder", "decoder"):
        section = dict(config_dict.get(name) or {})
        if (kind := section.get("model_type")) != "bert":
            raise InputError(
                f"{path}: its {name} has model_type={kind!r}. Give a model of two BERTs."
            )
        sections.append(section)
    for name, value in _DECODER_FIELDS.items():
        if sections[1].pop(name, None) != value:
            raise InputError(
                f"{path}: its decoder lacks {name}=true, so it does not read the encoder. Give the "
                "config.json of this model."
            )
    return sections


def join_configs(encoder: BertConfig, decoder: BertConfig, path: epath.Path) -> BertConfig:
    """Return the configuration of a model of both.

    Raises:
      InputError: encoder and decoder differ, or the encoder reads in one direction.
    """
    for name, value in vars(encoder).items():
        if name not in _TRAINING_FIELDS and (other := getattr(decoder, name)) != value:
            raise InputError(
                f"{path}: its encoder has {name}={value!r}, its decoder {other!r}. Give a model of "
                "two BERTs of the same shape and vocabulary."
            )
    return BertConfig(**{**vars(encoder), "decoder": "cross_attention"})


def check_start_token(
    config_dict: Mapping[str, Any], tokenizer: Tokenizer | None, path: epath.Path
) -> None:
    """Warn of a decoder whose inputs do not begin with [CLS]."""
    token = config_dict.get("decoder_start_token_id")
    if tokenizer and token is not None and token != tokenizer.cls_id:
        warn_once(
            (str(path), "decoder_start_token_id"),
            f"{path}: has decoder_start_token_id={token}: targets begin with [CLS], "
            f"{tokenizer.cls_id}, nevertheless.",
        )


def to_config_dict(bert: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return config.json of a model whose encoder has the fields `bert`."""
    config_dict: dict[str, Any] = {
        "architectures": ["EncoderDecoderModel"],
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        "encoder": {**bert, "architectures": ["BertModel"]},
        "decoder": {**bert, "architectures": ["BertLMHeadModel"], **_DECODER_FIELDS},
    }
    if tokenizer:
        config_dict["decoder_start_token_id"] = tokenizer.cls_id
        config_dict |= {"eos_token_id": tokenizer.sep_id, "pad_token_id": tokenizer.pad_id}
    return config_dict


def read_arrays(path: epath.Path, is_tied: bool) -> dict[str, np.ndarray]:
    """Return the arrays of a directory by the names of `bertjax.formats.parameter_names`.

    Args:
      path: the directory.
      is_tied: whether encoder and decoder share arrays, which the file holds once.

    Raises:
      InputError: see `bertjax.formats.weights.read_files`.
    """
    arrays = {}
    for name, array in read_files(path).items():
        part, _, rest = name.partition(".")
        if part in ("encoder", "decoder"):
            rest = canonical_name(rest)
            name = f"decoder.{rest}" if part == "decoder" and rest.startswith("bert.") else rest
        arrays[name] = array
    for name, array in [*arrays.items()] if is_tied else ():
        if name.startswith("bert.") and not name.startswith("bert.pooler."):
            arrays.setdefault(f"decoder.{name}", array)
        elif name.startswith("decoder.bert.") and ".crossattention." not in name:
            arrays.setdefault(name.removeprefix("decoder."), array)
    for prefix in ("", "decoder."):
        arrays.pop(f"{prefix}bert.embeddings.position_ids", None)  # 0, 1, 2...
    return arrays


def file_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays by their names in a file, from those of `bertjax.formats.parameter_names`."""

    def file_name(name: str) -> str:
        if name.startswith("bert."):
            return f"encoder.{name.removeprefix('bert.')}"
        return name if name.startswith("decoder.") else f"decoder.{name}"

    return {file_name(name): array for name, array in arrays.items()}
