"""Model directories of sentence-transformers: a model, its pooling and a linear layer after it."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.checkpointing.lookup import has_checkpoint, read_unverified_checkpoint
from bertjax.config.loading import read_config_dict
from bertjax.formats.detection import TORCH_WEIGHTS, WEIGHTS
from bertjax.formats.tensors import PoolingConfig
from bertjax.formats.tokenizer_json import read_max_length
from bertjax.formats.weights import read_files
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.log import warn_once
from data_pipelines.model_settings import check_settings
from data_pipelines.paths import atomic_write_bytes, atomic_write_text, member_path
from data_pipelines.schema import check_schema, read_json_object, read_json_value

MODULES_FILE, SENTENCE_CONFIG_FILE = "modules.json", "sentence_bert_config.json"
_SETTINGS_FILE = "config_sentence_transformers.json"
# The first that exists is read, whatever the encoder.
_SENTENCE_CONFIG_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FIX = "Download it again."
_POOLING_FIX = (
    "Give the encoder a pooling, by `embed --pooling`, `encode(pooling=...)` or `data.pooling` of "
    "`train`, or give another model."
)
_log = logging.getLogger("bertjax")
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
    "model_type?": str,
    "activation_fn?": str,
}
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
# Modules after the pooling.
_OPTIONAL: list[list[str]] = [[], ["Dense"], ["Normalize"], ["Dense", "Normalize"]]


def find_encoder(path: epath.PathLike) -> epath.Path:
    """Return the directory of the encoder of a model, which is in most formats its own.

    Raises:
      InputError: modules.json is damaged.
    """
    path = model_path(path)
    modules = _read_modules(path) if (path / MODULES_FILE).exists() else []
    return modules[0][1] if modules else path


def find_pooling_config(path: epath.PathLike, pooling: str | None = None) -> PoolingConfig | None:
    """Return the settings of a directory of sentence-transformers or of a run that trains them.

    For another directory, such as that of a CrossEncoder, the result is None.

    Args:
      path: the directory.
      pooling: pooling that the user gives. Then a pooling and modules after the encoder that
        bertjax lacks are left out.

    Raises:
      InputError: bertjax lacks one of its modules, its pooling or another setting.
    """
    path = model_path(path)
    if not (path / MODULES_FILE).exists():
        if (path / MANIFEST_FILE).exists() or has_checkpoint(path):
            trained = read_unverified_checkpoint(path, checkpoint_pooling_config)
            return trained and trained._replace(model=path)
        return None
    if _is_cross_encoder(path):
        return None
    modules, prompts = _read_modules(path), _read_prompts(path)
    model = find_encoder(path)
    file = _sentence_config_file(model)
    settings = _read_settings(file)
    check_settings(file, settings, SENTENCE_CONFIG_FILE)
    saved = PoolingConfig(
        model,
        pooling or "",
        normalize=False,
        max_seq_length=settings.get("max_seq_length") or read_max_length(model),
        do_lower_case=bool(settings.get("do_lower_case")),
        prompt=prompts[0],
        query_prompt=prompts[1],
        document_prompt=prompts[2],
    )
    try:
        return _with_modules(saved, modules, path)
    except InputError:
        if not pooling:
            raise
    names = ", ".join(kind for kind, _ in modules[1:])
    _log.info("%s: pooling=%s is used without the modules %s.", path, pooling, names)
    return saved


def _with_modules(
    saved: PoolingConfig, modules: Sequence[tuple[str, epath.Path]], path: epath.Path
) -> PoolingConfig:
    """Return the settings of an encoder with those of the modules after it.

    Raises:
      InputError: bertjax lacks one of them, or a setting.
    """
    names = [kind for kind, _ in modules]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in _OPTIONAL:
        raise InputError(
            f"{path}: has the modules {', '.join(names)}; bertjax supports Transformer, Pooling, "
            f"Dense and Normalize, in this order. {_POOLING_FIX}"
        )
    pooling, projection_size = modules[1][1], 0
    if "Dense" in names:
        projection_size = _read_dense_size(modules[2][1])
        if saved.model != path:
            raise InputError(
                f"{path}: has a module Dense, and its encoder in {saved.model.name}. Save it with "
                "sentence-transformers 3 or later, which writes the encoder beside modules.json."
            )
    pooling_dict = read_json_object(pooling / "config.json", _POOLING_SCHEMA, _FIX)
    check_settings(pooling / "config.json", pooling_dict, "1_Pooling/config.json")
    if not pooling_dict.get("include_prompt", True):
        if saved.prompt:
            raise InputError(
                f"{pooling}: has include_prompt=false, which is not supported with a default "
                f"prompt. {_POOLING_FIX}"
            )
        if saved.query_prompt or saved.document_prompt:
            saved = saved._replace(query_prompt="", document_prompt="")
            warn_once(
                (str(path), "include_prompt"),
                f"{pooling}: include_prompt=false is not supported: queries and documents get no "
                "prompt.",
            )
    return saved._replace(
        pooling=_pooling_mode(pooling_dict, path),
        normalize="Normalize" in names,
        projection_size=projection_size,
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
    has_weights = any((folders[0] / name).exists() for name in (WEIGHTS, TORCH_WEIGHTS))
    stored = read_files(folders[0]) if has_weights else {}
    arrays = {name: array.astype(np.float32) for name, array in stored.items()}
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
    # An empty one stands against a default.
    prompts = {name: prompt for name, prompt in prompts.items() if prompt or pooling.prompt}
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
        _SETTINGS_FILE: {"prompts": prompts, **default, "similarity_fn_name": "cosine"},
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


def names_activation(path: epath.Path, config_dict: Mapping[str, Any]) -> bool:
    """Return whether a classifier names the function that CrossEncoder applies to its output.

    Settings that bertjax does not apply are warned of.

    Args:
      path: directory of the classifier.
      config_dict: its parsed config.json.

    Raises:
      InputError: its file of sentence-transformers is damaged.
    """
    if _is_cross_encoder(path):
        file = path / _SETTINGS_FILE
        settings = _read_settings(file)
        check_settings(file, settings, _SETTINGS_FILE)
        if (name := settings.get("default_prompt_name")) is not None:
            warn_once(
                (str(file), "default_prompt_name"),
                f"{file}: has default_prompt_name={name!r}: no text gets a prompt. Write it before "
                "the first text of a pair.",
            )
        if settings.get("activation_fn"):
            return True
    in_config = config_dict.get("sentence_transformers")
    is_named = isinstance(in_config, Mapping) and "activation_fn" in in_config
    return is_named or "sbert_ce_default_activation_function" in config_dict


def _is_cross_encoder(path: epath.Path) -> bool:
    return _read_settings(path / _SETTINGS_FILE).get("model_type") == "CrossEncoder"


def lower_cases_texts(model: epath.Path) -> bool:
    """Return whether sentence-transformers lower-cases texts for the encoder in a directory."""
    return bool(_read_settings(_sentence_config_file(model)).get("do_lower_case"))


def _sentence_config_file(model: epath.Path) -> epath.Path:
    files = (model / name for name in _SENTENCE_CONFIG_FILES)
    return next((file for file in files if file.exists()), model / SENTENCE_CONFIG_FILE)


def _read_settings(path: epath.Path) -> dict[str, Any]:
    """Return the settings of a file, {} if it does not exist."""
    return read_json_object(path, _SETTINGS_SCHEMA, _FIX) if path.exists() else {}


def _read_prompts(path: epath.Path) -> tuple[str, str, str]:
    """Return the default prompt, that of queries and that of documents; "" for none."""
    file = path / _SETTINGS_FILE
    settings = _read_settings(file)
    check_settings(file, settings, _SETTINGS_FILE)
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
            f"{', '.join(_POOLING_MODES)}. {_POOLING_FIX}"
        )
    return _POOLING_MODES[modes[0]]
