"""Model directories of sentence-transformers: a model and its pooling."""

import json
from typing import Any, NamedTuple

from etils import epath

from bertjax.formats.huggingface import read_json
from data_pipelines.errors import InputError

MODULES_FILE, SENTENCE_CONFIG_FILE = "modules.json", "sentence_bert_config.json"
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


class PoolingConfig(NamedTuple):
    """Pooling of a model of sentence-transformers.

    Attributes:
      model: directory of the encoder.
      pooling: see `bertjax.model.pooling`.
      normalize: whether embeddings are scaled to length 1.
      max_seq_length: largest number of tokens of a text; None if unspecified.
    """

    model: epath.Path
    pooling: str
    normalize: bool
    max_seq_length: int | None


def find_pooling_config(path: epath.PathLike) -> PoolingConfig | None:
    """Return the pooling of a directory; None if sentence-transformers did not write it.

    Raises:
      InputError: bertjax lacks one of its modules or its pooling.
    """
    path = epath.Path(path)
    if not (path / MODULES_FILE).exists():
        return None
    try:
        modules = json.loads((path / MODULES_FILE).read_text())
        kinds = [(module["type"].rpartition(".")[2], path / module["path"]) for module in modules]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path / MODULES_FILE} cannot be read ({error}). Download it again."
        ) from error
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(
            f"{path}: has the modules {', '.join(names)}; bertjax supports Transformer, Pooling "
            "and Normalize, in this order. Give the directory of the encoder, and --pooling."
        )
    model, pooling = kinds[0][1], kinds[1][1]
    length = model / SENTENCE_CONFIG_FILE
    max_seq_length = read_json(length).get("max_seq_length") if length.exists() else None
    mode = _pooling_mode(read_json(pooling / "config.json"), path)
    return PoolingConfig(model, mode, len(names) > 2, max_seq_length)


def _pooling_mode(config_dict: dict[str, Any], path: epath.Path) -> str:
    if (mode := config_dict.get("pooling_mode")) in _POOLING_MODES.values():  # of newer releases
        return str(mode)
    modes = [
        name for name, on in config_dict.items() if name.startswith("pooling_mode") and on is True
    ]
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise InputError(
            f"{path}: pools by {', '.join(modes) or 'nothing'}; bertjax supports one of "
            f"{', '.join(_POOLING_MODES)}. Give --pooling, or another model."
        )
    return _POOLING_MODES[modes[0]]
