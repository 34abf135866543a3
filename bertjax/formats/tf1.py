"""Model directories of google-research/bert: bert_config.json, vocab.txt, a TF1 checkpoint."""

import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath

from bertjax.formats.detection import (
    BERT_CONFIG_FILE,
    CHECKPOINT_PREFIX,
    check_tensorflow,
    find_tf1_prefixes,
    is_tf1_prefix,
)
from bertjax.formats.huggingface import (
    CONFIG_NAME,
    FIELDS,
    FIX,
    SCHEMA,
    make_model,
    parse_bert_config,
    to_config_dict,
)
from bertjax.formats.tensors import NumpyModel
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text, check_file
from data_pipelines.schema import read_json_object

_log = logging.getLogger("bertjax")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # in every checkpoint of Keras objects
# Variables of the optimizers of google-research/bert and of its successors.
_OPTIMIZER_VARIABLES = re.compile(
    r"(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|global_step|beta[12]_power)"
)


def read(path: epath.Path) -> NumpyModel:
    """Read a model, without the optimizer's variables.

    Args:
      path: a directory, of which the newest step is read, or the prefix of a checkpoint in it.

    Raises:
      InputError: the model is not BERT, a file is missing or damaged, or tensorflow is missing.
    """
    check_tensorflow(path)
    import tensorflow as tf  # takes seconds to import

    config_dict = read_config_dict(path)
    config = parse_bert_config(config_dict, path)
    prefix = _find_checkpoint(path)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        variables = reader.get_variable_to_shape_map()
        if _OBJECT_GRAPH in variables:
            raise InputError(
                f"{prefix}: a TF2 (Keras) checkpoint: it has {_OBJECT_GRAPH}. Give the TF1 "
                "checkpoint, or convert it with convert_bert_original_tf2_checkpoint_to_pytorch of "
                "transformers 4."
            )
        names = [name for name in variables if not _OPTIMIZER_VARIABLES.fullmatch(name)]
        arrays = {name: np.asarray(reader.get_tensor(name)) for name in names}
    except InputError:
        raise
    # A status of the reader's C++ code is an OpError or one of Python's own.
    except (tf.errors.OpError, ValueError, LookupError, RuntimeError) as error:
        raise InputError(f"{prefix}: cannot be read ({error}). Download it again.") from error
    prefix_of_names = _find_prefix(arrays, path)
    arrays = {name.removeprefix(prefix_of_names): array for name, array in arrays.items()}
    return make_model(find_directory(path), "tf1", config, config_dict, arrays)


def find_directory(path: epath.Path) -> epath.Path:
    """Return the directory of a model that is named by its directory or a prefix in it."""
    return path.parent if is_tf1_prefix(path) else path


def read_config_dict(path: epath.Path) -> dict[str, Any]:
    """Return the content of bert_config.json, or of config.json where that is missing."""
    path = find_directory(path)
    has_own = (path / BERT_CONFIG_FILE).exists()
    return read_json_object(path / (BERT_CONFIG_FILE if has_own else CONFIG_NAME), SCHEMA, FIX)


def read_model_fields(path: epath.PathLike) -> dict[str, Any]:
    """Return the fields of `model` that a bert_config.json, or a config.json, has.

    Raises:
      InputError: the file is missing or damaged, or its model is not BERT.
    """
    config_dict = read_json_object(check_file(path), SCHEMA, FIX)
    config = parse_bert_config(config_dict, epath.Path(path).parent)
    return {name: getattr(config, name) for name in (*FIELDS, "hidden_act")}


def write(model: NumpyModel, path: epath.Path) -> None:
    """Write a model directory of google-research/bert.

    Label names are written, and google-research/bert ignores them. `hidden_act=gelu` is written as
    `gelu`: the code of the released checkpoints computed it with erf, the current code approximates
    it by tanh. `gelu_tanh` is written as `gelu_new`, its name in `transformers`, which
    google-research/bert rejects.

    Raises:
      InputError: `layer_norm_eps` is not 1e-12, the model is not bidirectional or has
        cross-attention, its tokenizer is not WordPiece, or tensorflow is missing; or as
        `NumpyModel.named_arrays`.
    """
    if model.config.has_cross_attention:
        raise InputError(
            f"model.decoder={model.config.decoder!r}: the TF1 format has no decoder. Convert to hf."
        )
    for name, required in (("layer_norm_eps", 1e-12), ("direction", "bidirectional")):
        if (value := getattr(model.config, name)) != required:
            raise InputError(
                f"model.{name}={value}: the TF1 format supports {required} only. Convert to hf."
            )
    if model.tokenizer is not None and model.tokenizer.kind != "wordpiece":
        raise InputError(
            f"tokenizer is {model.tokenizer.kind}: the TF1 format supports WordPiece only. Convert "
            "to hf."
        )
    check_tensorflow(path)
    import tensorflow as tf

    atomic_write_text(path / BERT_CONFIG_FILE, json.dumps(to_config_dict(model), indent=2) + "\n")
    arrays = model.named_arrays("tf1")
    tf.raw_ops.SaveV2(
        prefix=str(path / CHECKPOINT_PREFIX),
        tensor_names=[*arrays],
        shape_and_slices=[""] * len(arrays),  # each array is stored whole
        tensors=[*arrays.values()],
    )
    if model.tokenizer is not None:
        model.tokenizer.save(path)


def _find_prefix(names: Iterable[str], path: epath.Path) -> str:
    """Return the variable scope that precedes the encoder's, such as "module/"; "" without one."""
    ends = "bert/embeddings/word_embeddings"
    scopes = [n.removesuffix(ends) for n in names if n == ends or n.endswith(f"/{ends}")]
    if scopes and scopes[0]:
        _log.info("%s: names of arrays begin with %r, which is removed.", path, scopes[0])
    return scopes[0] if len(scopes) == 1 else ""


def _find_checkpoint(path: epath.Path) -> epath.Path:
    """Return a prefix as it is; of a directory, the published one or that of training.

    The file `checkpoint` names the step that training would continue from, as in TensorFlow;
    without it the latest step is meant.
    """
    if is_tf1_prefix(path):
        return path
    if is_tf1_prefix(path / CHECKPOINT_PREFIX):
        return path / CHECKPOINT_PREFIX
    prefixes = find_tf1_prefixes(path)
    if not prefixes:
        raise InputError(f"{path}: no {CHECKPOINT_PREFIX}.index. Give the directory as published.")
    prefix, record = prefixes[-1], path / "checkpoint"
    if record.exists():
        named = re.search(r'^model_checkpoint_path: "(?:.*/)?([^/"]+)"', record.read_text(), re.M)
        prefix = next((p for p in prefixes if named and p.name == named[1]), prefix)
    _log.info("%s: reading %s.", path, prefix.name)
    return prefix
