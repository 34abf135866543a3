"""Directories of the original code: bert_config.json, vocab.txt and a TF1 checkpoint."""

import json
import re

import numpy as np
from etils import epath

from bertjax.formats.huggingface import (
    architecture_name,
    describe,
    labeled,
    parse_bert_config,
    read_json,
)
from bertjax.formats.tensors import NumpyModel, params_from_arrays
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import VOCAB_FILE

BERT_CONFIG_FILE, CHECKPOINT_PREFIX = "bert_config.json", "bert_model.ckpt"
# What training leaves beside the weights, by the optimizers of the original and of its heirs.
_OPTIMIZER_VARIABLES = re.compile(
    r"(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|global_step|beta[12]_power)"
)


def is_tf1(path: epath.Path) -> bool:
    """Whether a directory looks like one of the original code."""
    return (path / BERT_CONFIG_FILE).exists()


def read(path: epath.Path) -> NumpyModel:
    """The model in a directory; what the optimizer kept is left aside.

    Raises:
      InputError: it is no BERT, or is not whole.
    """
    import tensorflow as tf  # takes seconds, and few commands meet such a directory

    config_dict = read_json(path / BERT_CONFIG_FILE)
    config = parse_bert_config(config_dict, path)
    prefix = _find_checkpoint(path)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = [
            n for n in reader.get_variable_to_shape_map() if not _OPTIMIZER_VARIABLES.fullmatch(n)
        ]
        found = {name: np.asarray(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, ValueError) as error:
        raise InputError(f"{prefix} cannot be read ({error}): fetch it again.") from error
    try:
        params, unexpected_keys = params_from_arrays(
            found, config, "tf1", architecture_name(config_dict)
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    tokenizer = load_tokenizer(path) if (path / VOCAB_FILE).exists() else None
    return labeled(NumpyModel(config, params, tokenizer, unexpected_keys), config_dict, path)


def write(model: NumpyModel, path: epath.Path) -> None:
    """Writes a directory that the original code opens, which passes over the names of labels.

    The approximate GELU is `gelu_new` there, which the original refuses and its heirs know.

    Raises:
      InputError: the tokenizer is not WordPiece, or the original would compute something else.
    """
    import tensorflow as tf

    for name, only in (("layer_norm_eps", 1e-12), ("causal", False)):
        if getattr(model.config, name) != only:
            raise InputError(
                f"the original code knows {name}={only} alone, and this model has "
                f"{getattr(model.config, name)}: convert to hf."
            )
    if model.tokenizer is not None and model.tokenizer.kind != "wordpiece":
        raise InputError(
            f"the original code knows WordPiece alone, and this vocabulary is "
            f"{model.tokenizer.kind}: convert to hf."
        )
    (path / BERT_CONFIG_FILE).write_text(json.dumps(describe(model), indent=2) + "\n")
    tensors = model.tensors("tf1")
    names, arrays = list(tensors), list(tensors.values())
    whole = [""] * len(names)  # no part of a larger array
    tf.raw_ops.SaveV2(
        prefix=str(path / CHECKPOINT_PREFIX),
        tensor_names=names,
        shape_and_slices=whole,
        tensors=arrays,
    )
    if model.tokenizer is not None:
        model.tokenizer.save(path)


def _find_checkpoint(path: epath.Path) -> epath.Path:
    """Its prefix: that of the releases, or else the latest that training left there."""
    if (path / f"{CHECKPOINT_PREFIX}.index").exists():
        return path / CHECKPOINT_PREFIX
    found = [file for file in path.iterdir() if file.name.endswith(".index")]
    if not found:
        raise InputError(
            f"{path} holds no {CHECKPOINT_PREFIX}.index: give the directory as published."
        )

    def step(file: epath.Path) -> int:
        number = re.search(r"-(\d+)\.index$", file.name)
        return int(number[1]) if number else -1

    newest = max(found, key=step)
    return newest.with_name(newest.name.removesuffix(".index"))
