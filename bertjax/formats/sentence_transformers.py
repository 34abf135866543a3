"""Model directories of sentence-transformers: a model, its pooling and a linear layer after it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.checkpointing.lookup import has_checkpoint, read_unverified_checkpoint
from bertjax.config.loading import read_config_dict
from bertjax.formats.detection import WEIGHTS
from bertjax.formats.huggingface import read_max_length
from bertjax.formats.tensors import PoolingConfig
from bertjax.formats.weights import read_files
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.log import warn_once
from data_pipelines.model_settings import check_settings
from data_pipelines.paths import atomic_write_bytes, atomic_write_text, member_path
from data_pipelines.schema import check_schema, read_json_object, read_json_value

MODULES_FILE, SENTENCE_CONFIG_FILE = "modules.json", "sentence_bert_config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
# The first that exists is read, whatever the encoder.
_SENTENCE_CONFIG_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FIX = "Download it again."
_MODULES_SCHEMA = [{"type": str, "path": str}]
_POOLING_SCHEMA = {"pooling_mode?": str, "include_prompt?": bool}
_TRAINED_TASK = "embeddings"
_TRAINED_SCHEMA = {
    "max_seq_length": int,
    "data": {
        "pooling": str,
        "normalize": bool,
        "projection_size": int,
        "query_prompt": str,
        "document_prompt": str,
    },
}
# Names of the prompts of queries and of documents; the first that exists is used, as there.
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
_DENSE, _IDENTITY = "2_Dense", "torch.nn.modules.linear.Identity"
_DENSE_SCHEMA = {"out_features": int, "activation_function": str}
_SETTINGS_SCHEMA = {
    "max_seq_length?": int,
    "do_lower_case?": bool,
    "prompts?": {str: (str, None)},
    "default_prompt_name?": str,
}
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
# Modules after the pooling.
_OPTIONAL: list[list[str]] = [[], ["Dense"], ["Normalize"], ["Dense", "Normalize"]]


def find_pooling_config(path: epath.PathLike) -> PoolingConfig | None:
    """Return the settings of a directory of sentence-transformers or of a run that trains them.

    For another directory the result is None.

    Raises:
      InputError: bertjax lacks one of its modules, its pooling or another setting.
    """
    path = model_path(path)
    if not (path / MODULES_FILE).exists():
        if (path / MANIFEST_FILE).exists() or has_checkpoint(path):
            pooling = read_unverified_checkpoint(path, checkpoint_pooling_config)
            return pooling and pooling._replace(model=path)
        return None
    kinds = _read_modules(path)
    names = [kind for kind, _ in kinds]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in _OPTIONAL:
        raise InputError(
            f"{path}: has the modules {', '.join(names)}; bertjax supports Transformer, Pooling, "
            "Dense and Normalize, in this order. Give the directory of the encoder, and --pooling."
        )
    model, pooling = kinds[0][1], kinds[1][1]
    projection_size = 0
    if "Dense" in names:
        projection_size = _read_dense_size(kinds[2][1])
        if model != path:
            raise InputError(
                f"{path}: has a module Dense, and its encoder in {model.name}. Save it with "
                "sentence-transformers 3 or later, which writes the encoder beside modules.json."
            )
    settings = _read_sentence_config(model)
    pooling_dict = read_json_object(pooling / "config.json", _POOLING_SCHEMA, _FIX)
    check_settings(pooling / "config.json", pooling_dict, "1_Pooling/config.json")
    prompts = _read_prompts(path)
    prompt, *others = prompts
    if not pooling_dict.get("include_prompt", True) and any(others) and not prompt:
        prompts = ("", "", "")
        warn_once(
            (str(path), "include_prompt"),
            f"{pooling}: include_prompt=false is not supported: queries and documents get no "
            "prompt.",
        )
    if prompt and not pooling_dict.get("include_prompt", True):
        raise InputError(
            f"{pooling}: has include_prompt=false, which is not supported with a default prompt. "
            "Give --checkpoint the encoder, --pooling, and texts that begin with the prompt."
        )
    max_seq_length = settings.get("max_seq_length") or read_max_length(model)
    mode = _pooling_mode(pooling_dict, path)
    lower_case = bool(settings.get("do_lower_case"))
    normalize = "Normalize" in names
    return PoolingConfig(
        model, mode, normalize, max_seq_length, lower_case, *prompts, projection_size
    )


def read_projection(path: epath.PathLike) -> dict[str, np.ndarray] | None:
    """Return kernel float32 [H, D] and bias float32 [D] of the module Dense of a directory.

    Without exactly one such module the result is None.

    Raises:
      InputError: files are missing or damaged.
    """
    path = model_path(path)
    if not (path / MODULES_FILE).exists():
        return None
    folders = [folder for kind, folder in _read_modules(path) if kind == "Dense"]
    if len(folders) != 1:
        return None
    arrays = {name: array.astype(np.float32) for name, array in read_files(folders[0]).items()}
    weight = arrays.get("linear.weight")
    if weight is None or weight.ndim != 2:
        raise InputError(f"{folders[0]}: has no matrix linear.weight. {_FIX}")
    bias = arrays.get("linear.bias", np.zeros(len(weight), np.float32))
    return {"kernel": np.ascontiguousarray(weight.T), "bias": bias}


def _read_modules(path: epath.Path) -> list[tuple[str, epath.Path]]:
    """Return kind and directory of each module."""
    modules = read_json_value(path / MODULES_FILE, _MODULES_SCHEMA, _FIX)
    for module in modules:
        check_settings(path / MODULES_FILE, module, MODULES_FILE)
    return [
        (
            module["type"].rpartition(".")[2],
            member_path(path, module["path"], path / MODULES_FILE) if module["path"] else path,
        )
        for module in modules
    ]


def _read_dense_size(folder: epath.Path) -> int:
    """Return the components that a module Dense computes."""
    content = read_json_object(folder / "config.json", _DENSE_SCHEMA, _FIX)
    check_settings(folder / "config.json", content, f"{_DENSE}/config.json")
    size: int = content["out_features"]
    if size < 1:
        raise InputError(f"{folder}: has out_features={size}. {_FIX}")
    return size


def checkpoint_pooling_config(checkpoint: epath.Path) -> PoolingConfig | None:
    """Return the settings of a checkpoint of bertjax; None for another task or format."""
    if not (checkpoint / MANIFEST_FILE).exists():
        return None
    config = read_config_dict(checkpoint / "config.json")
    if config.get("task") != _TRAINED_TASK:
        return None
    check_schema(f"{checkpoint / 'config.json'}: ", config, _TRAINED_SCHEMA, "Use another one.")
    data = config["data"]
    return PoolingConfig(
        checkpoint,
        data["pooling"],
        data["normalize"],
        config["max_seq_length"],
        projection_size=data["projection_size"],
        query_prompt=data["query_prompt"],
        document_prompt=data["document_prompt"],
    )


def write_modules(
    path: epath.Path,
    pooling: PoolingConfig,
    size: int,
    projection: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the files with which sentence-transformers opens a directory of Hugging Face.

    Args:
      path: the directory.
      pooling: settings of the model.
      size: components of a pooled vector.
      projection: kernel and bias of the linear layer after the pooling; None without one.
    """
    kinds = ["Transformer", "Pooling"]
    kinds += [
        kind
        for kind, is_there in (("Dense", projection is not None), ("Normalize", pooling.normalize))
        if is_there
    ]
    modules = []
    for number, kind in enumerate(kinds):
        folder = f"{number}_{kind}" if number else ""
        (path / folder).mkdir(parents=True, exist_ok=True)
        module_type = f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": folder, "type": module_type})
    modes = {name: mode == pooling.pooling for name, mode in _POOLING_MODES.items()}
    prompts = {"query": pooling.query_prompt, "document": pooling.document_prompt}
    prompts = {name: prompt for name, prompt in prompts.items() if prompt}
    default = {}
    if pooling.prompt:
        prompts["default"], default = pooling.prompt, {"default_prompt_name": "default"}
    contents = {
        MODULES_FILE: modules,
        "1_Pooling/config.json": {"word_embedding_dimension": size, **modes},
        SENTENCE_CONFIG_FILE: {
            "max_seq_length": pooling.max_seq_length,
            "do_lower_case": pooling.do_lower_case,
        },
        _PROMPTS_FILE: {"prompts": prompts, **default, "similarity_fn_name": "cosine"},
    }
    if projection is not None:
        kernel, bias = (np.asarray(projection[name]) for name in ("kernel", "bias"))
        contents[f"{_DENSE}/config.json"] = {
            "in_features": kernel.shape[0],
            "out_features": kernel.shape[1],
            "bias": True,
            "activation_function": _IDENTITY,
        }
        arrays = {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}
        atomic_write_bytes(path / _DENSE / WEIGHTS, safetensors.numpy.save(arrays))
    for name, content in contents.items():
        atomic_write_text(path / name, json.dumps(content, indent=2) + "\n")


def lower_cases_texts(model: epath.Path) -> bool:
    """Return whether sentence-transformers lower-cases texts for the encoder in a directory."""
    return bool(_read_sentence_config(model).get("do_lower_case"))


def _read_sentence_config(model: epath.Path) -> dict[str, Any]:
    files = (model / name for name in _SENTENCE_CONFIG_FILES)
    file = next((file for file in files if file.exists()), model / SENTENCE_CONFIG_FILE)
    return _read_settings(file, SENTENCE_CONFIG_FILE)


def _read_settings(path: epath.Path, file_name: str) -> dict[str, Any]:
    """Return the checked settings of a file, {} if it does not exist."""
    settings = read_json_object(path, _SETTINGS_SCHEMA, _FIX) if path.exists() else {}
    check_settings(path, settings, file_name)
    return settings


def _read_prompts(path: epath.Path) -> tuple[str, str, str]:
    """Return the default prompt, that of queries and that of documents; "" for none."""
    file = path / _PROMPTS_FILE
    settings = _read_settings(file, _PROMPTS_FILE)
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if name is None:
        written = {key: prompt for key, prompt in prompts.items() if prompt}
        if written:
            warn_once(
                (str(path), "prompts"),
                f"{file}: has the prompts {written!r} and no default: no text gets one but queries "
                "and documents of a retrieval. Write them before the texts that need them.",
            )
    elif not isinstance(prompts.get(name), str):
        raise InputError(
            f"{file}: default_prompt_name={name!r} is none of the prompts {', '.join(prompts)}. "
            "Download it again."
        )
    default = str(prompts[name]) if name is not None else ""
    query, document = (
        next((str(prompts[key]) for key in keys if prompts.get(key) is not None), default)
        for keys in (_QUERY_PROMPTS, _DOCUMENT_PROMPTS)
    )
    return default, query, document


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
