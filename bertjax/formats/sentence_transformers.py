"""Directories of sentence-transformers: a model, and what becomes of its vectors."""

import json
from typing import Any, NamedTuple

from etils import epath

from bertjax.formats.huggingface import read_json
from data_pipelines.errors import InputError

MODULES, SENTENCE_CONFIG_FILE = "modules.json", "sentence_bert_config.json"
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


class PoolingConfig(NamedTuple):
    """What such a directory says of its vectors.

    Attributes:
      model: the directory of the model itself.
      pool: see `bertjax.model.pooling`.
      max_seq_length: pieces of a text, at most; None where it is not said.
    """

    model: epath.Path
    pool: str
    normalize: bool
    max_seq_length: int | None


def find_pooling_config(path: epath.PathLike) -> PoolingConfig | None:
    """The recipe in a directory; None where it is not one of sentence-transformers.

    Raises:
      InputError: it has a module, or pools in a way, that bertjax has not.
    """
    path = epath.Path(path)
    if not (path / MODULES).exists():
        return None
    try:
        modules = json.loads((path / MODULES).read_text())
        kinds = [(each["type"].rpartition(".")[2], path / each["path"]) for each in modules]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path / MODULES} cannot be read ({error}): fetch it again.") from error
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(
            f"{path} has the modules {', '.join(names)} and bertjax has Transformer, Pooling and, "
            "after these, Normalize: take another model, or name --pooling and the directory of the "
            "model alone."
        )
    model, pooling = kinds[0][1], kinds[1][1]
    length = model / SENTENCE_CONFIG_FILE
    max_seq_length = read_json(length).get("max_seq_length") if length.exists() else None
    return PoolingConfig(
        model,
        _pooling_mode(read_json(pooling / "config.json"), path),
        len(names) > 2,
        max_seq_length,
    )


def _pooling_mode(config_dict: dict[str, Any], path: epath.Path) -> str:
    modes = [
        name for name, on in config_dict.items() if name.startswith("pooling_mode") and on is True
    ]
    if config_dict.get("pooling_mode") in _POOLING_MODES.values():  # as newer releases write it
        modes = [
            name for name, pool in _POOLING_MODES.items() if pool == config_dict["pooling_mode"]
        ]
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise InputError(
            f"{path} pools by {', '.join(modes) or 'nothing'} and bertjax by one of "
            f"{', '.join(_POOLING_MODES)}: name another with --pooling, or take another model."
        )
    return _POOLING_MODES[modes[0]]
