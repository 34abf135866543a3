"""Directories of sentence-transformers: a model, and what becomes of its vectors."""

import json
from typing import Any, NamedTuple

from etils import epath

from bertjax.formats.huggingface import read_json
from data_pipelines.errors import InputError

MODULES, LENGTHS = "modules.json", "sentence_bert_config.json"
_POOLS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


class Recipe(NamedTuple):
    """What such a directory says of its vectors.

    Attributes:
      model: the directory of the model itself.
      pool: see `bertjax.model.pooling`.
      seq_len: pieces of a text, at most; None where it is not said.
    """

    model: epath.Path
    pool: str
    normalize: bool
    seq_len: int | None


def find_recipe(path: epath.PathLike) -> Recipe | None:
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
            "after these, Normalize: take another model, or name --pool and the directory of the "
            "model alone."
        )
    model, pooling = kinds[0][1], kinds[1][1]
    length = model / LENGTHS
    seq_len = read_json(length).get("max_seq_length") if length.exists() else None
    return Recipe(model, _pool(read_json(pooling / "config.json"), path), len(names) > 2, seq_len)


def _pool(said: dict[str, Any], path: epath.Path) -> str:
    modes = [name for name, on in said.items() if name.startswith("pooling_mode") and on is True]
    if said.get("pooling_mode") in _POOLS.values():  # as newer releases write it
        modes = [name for name, pool in _POOLS.items() if pool == said["pooling_mode"]]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise InputError(
            f"{path} pools by {', '.join(modes) or 'nothing'} and bertjax by one of "
            f"{', '.join(_POOLS)}: name another with --pool, or take another model."
        )
    return _POOLS[modes[0]]
