"""Weights of Hugging Face's directories: safetensors or PyTorch files, whole or in shards."""

import logging
import pickle
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from bertjax.formats.detection import TORCH_WEIGHTS, WEIGHTS
from bertjax.mesh.memory import available_host_memory, format_bytes
from data_pipelines.errors import InputError
from data_pipelines.paths import member_path
from data_pipelines.schema import check_regular, read_json_object
from data_pipelines.vocabulary.vocab_file import check_content

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
}
_WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
# Entries of training checkpoints that hold the weights.
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "module", "net")
_WRAPPERS = re.compile(r"_(fsdp|checkpoint)_wrapped_module\.")
_INDEX_SCHEMA = {"weight_map": {str: str}}
_FIX = "Give the complete directory."
_log = logging.getLogger("bertjax")


def read_weights(path: epath.Path) -> dict[str, np.ndarray]:
    """Return the arrays of a directory by the names that today's classes with a head use.

    A prefix of all names, such as "module." of DataParallel, is logged and removed. Position ids,
    which are no weights, are left out.

    Raises:
      InputError: a file is missing or damaged, holds several encoders, or needs torch, which is not
        installed.
    """
    arrays = read_files(path)
    prefix = _find_prefix(arrays, path)
    if prefix:
        _log.info("%s: names of arrays begin with %r, which is removed.", path, prefix)
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        new_name = canonical_name(_WRAPPERS.sub("", name.removeprefix(prefix)))
        if new_name in renamed:
            raise InputError(
                f"{path}: holds {new_name} twice, also as {name}. Give the directory as "
                "save_pretrained writes it."
            )
        renamed[new_name] = array
    renamed.pop("bert.embeddings.position_ids", None)  # 0, 1, 2...
    return renamed


def _check_content(content: bytes, path: epath.Path) -> None:
    """Raise InputError if a file is a pointer or compressed; see `check_content`."""
    try:
        check_content(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _find_prefix(names: Iterable[str], path: epath.Path) -> str:
    """Return what precedes the names of the encoder, or "bert." and these names."""
    pattern = re.compile(rf"((?:.*?\.)??)(bert\.)?{re.escape(_WORD_EMBEDDINGS)}")
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    if len(matches) > 1:
        encoders = ", ".join(sorted(match[0].removesuffix(_WORD_EMBEDDINGS) for match in matches))
        raise InputError(
            f"{path}: holds {len(matches)} encoders, whose names begin with {encoders}. Give a "
            "model of one: save_pretrained of this part writes it."
        )
    return matches[0][1] if matches else ""


def canonical_name(name: str) -> str:
    """Return the name of an array of BERT that today's classes with a head use."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name


def read_files(path: epath.Path) -> dict[str, np.ndarray]:
    """Return the arrays of a directory by their names in its files.

    Raises:
      InputError: a file is missing or damaged, or needs torch, which is not installed.
    """
    for name, read_file in ((WEIGHTS, _read_safetensors), (TORCH_WEIGHTS, _read_torch)):
        index = path / f"{name}.index.json"
        if (path / name).exists():
            return read_file(path / name)
        if index.exists():
            files = set(read_json_object(index, _INDEX_SCHEMA, _FIX)["weight_map"].values())
            arrays: dict[str, np.ndarray] = {}
            for file in sorted(files):
                arrays |= read_file(member_path(path, file, index))
            return arrays
    raise InputError(f"{path}: no {WEIGHTS}. Give a model directory of Hugging Face.")


def _check_size(path: epath.Path) -> None:
    """Raise InputError if a file is not regular, or larger than the memory that it would fill."""
    check_regular(path, _FIX)
    if (size := epath.Path(path).stat().length) > (available := available_host_memory()):
        raise InputError(
            f"{path}: has {format_bytes(size)}, and this process has {format_bytes(available)} of "
            "memory left. Use a machine with more memory, if the file is not damaged."
        )


def _read_safetensors(path: epath.Path) -> dict[str, np.ndarray]:
    _check_size(path)
    try:
        content = path.read_bytes()
        _check_content(content[:64], path)
        entries = safetensors.deserialize(content)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error}). Download it again.") from error
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise InputError(
                f"{path}: {name} has dtype {entry['dtype']}, which is not supported. Give the "
                "model before quantization."
            )
    try:
        return {
            name: np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in entries
        }
    except ValueError as error:  # a shape of a hundred axes, or of no numbers and a huge axis
        raise InputError(f"{path}: cannot be read ({error}). Download it again.") from error


def _read_torch(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path}: needs torch, which is not installed. Install it, or give model.safetensors, "
            "which save_pretrained of transformers writes."
        ) from None
    _check_size(path)
    try:
        with path.open("rb") as file:
            _check_content(file.read(64), path)
            file.seek(0)
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = re.split(r"\n|\. ", str(error))[0]  # the advice of torch has control codes
        fix = "Save its state_dict() alone, if it holds more, or download it again"
        raise InputError(f"{path}: cannot be read ({reason}). {fix}.") from error
    if not isinstance(tensors, Mapping):
        raise InputError(f"{path}: holds no arrays by name. Give what save_pretrained writes.")
    for key in _STATE_KEYS:
        if isinstance(tensors.get(key), Mapping):
            tensors = tensors[key]
    return {
        name: np.ascontiguousarray(tensor.float().numpy())  # a tensor may be a view
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
    }
