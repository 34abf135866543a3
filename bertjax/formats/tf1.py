"""Model directories of google-research/bert: bert_config.json, vocab.txt, a TF1 checkpoint."""

import json
import re

import numpy as np
from etils import epath

from bertjax.formats.detection import BERT_CONFIG_FILE, CHECKPOINT_PREFIX, check_tensorflow
from bertjax.formats.huggingface import make_model, parse_bert_config, read_json, to_config_dict
from bertjax.formats.tensors import NumpyModel
from data_pipelines.errors import InputError

# Variables of the optimizers of google-research/bert and of its successors.
_OPTIMIZER_VARIABLES = re.compile(
    r"(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|global_step|beta[12]_power)"
)


def read(path: epath.Path) -> NumpyModel:
    """Read a model, without the optimizer's variables.

    Raises:
      InputError: the model is not BERT, a file is missing or damaged, or tensorflow is missing.
    """
    check_tensorflow(path)
    import tensorflow as tf  # takes seconds to import

    config_dict = read_json(path / BERT_CONFIG_FILE)
    config = parse_bert_config(config_dict, path)
    prefix = _find_checkpoint(path)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = [
            n for n in reader.get_variable_to_shape_map() if not _OPTIMIZER_VARIABLES.fullmatch(n)
        ]
        arrays = {name: np.asarray(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, ValueError) as error:
        raise InputError(f"{prefix}: cannot be read ({error}). Download it again.") from error
    return make_model(path, "tf1", config, config_dict, arrays)


def write(model: NumpyModel, path: epath.Path) -> None:
    """Write a model directory of google-research/bert.

    Label names are written, and google-research/bert ignores them. `hidden_act=gelu` is written as
    `gelu`: the code of the released checkpoints computed it with erf, the current code approximates
    it by tanh. `gelu_tanh` is written as `gelu_new`, its name in `transformers`, which
    google-research/bert rejects.

    Raises:
      InputError: `layer_norm_eps` is not 1e-12, the model is causal, its tokenizer is not
        WordPiece, or tensorflow is missing; or as `NumpyModel.named_arrays`.
    """
    check_tensorflow(path)
    import tensorflow as tf

    for name, required in (("layer_norm_eps", 1e-12), ("causal", False)):
        if (value := getattr(model.config, name)) != required:
            raise InputError(
                f"model.{name}={value}: the TF1 format supports {required} only. Convert to hf."
            )
    if model.tokenizer is not None and model.tokenizer.kind != "wordpiece":
        raise InputError(
            f"tokenizer is {model.tokenizer.kind}: the TF1 format supports WordPiece only. Convert "
            "to hf."
        )
    (path / BERT_CONFIG_FILE).write_text(json.dumps(to_config_dict(model), indent=2) + "\n")
    arrays = model.named_arrays("tf1")
    tf.raw_ops.SaveV2(
        prefix=str(path / CHECKPOINT_PREFIX),
        tensor_names=[*arrays],
        shape_and_slices=[""] * len(arrays),  # each array is stored whole
        tensors=[*arrays.values()],
    )
    if model.tokenizer is not None:
        model.tokenizer.save(path)


def _find_checkpoint(path: epath.Path) -> epath.Path:
    """Return the prefix of the published checkpoint, or of the latest one that training wrote."""
    if (path / f"{CHECKPOINT_PREFIX}.index").exists():
        return path / CHECKPOINT_PREFIX
    index_files = [file for file in path.iterdir() if file.name.endswith(".index")]
    if not index_files:
        raise InputError(f"{path}: no {CHECKPOINT_PREFIX}.index. Give the directory as published.")

    def step(file: epath.Path) -> int:
        number = re.search(r"-(\d+)\.index$", file.name)
        return int(number[1]) if number else -1

    newest = max(index_files, key=step)
    return newest.with_name(newest.name.removesuffix(".index"))
