"""Formats of model directories, recognized by their files; imports neither JAX nor NumPy."""

import re

from etils import epath

from bertjax.checkpointing.integrity import MANIFEST_FILE
from data_pipelines.errors import InputError
from data_pipelines.hub import HUB, model_path
from data_pipelines.libraries import check_installed
from data_pipelines.paths import check_exists

FORMATS = ("hf", "tf1", "bertjax")
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"  # of Hugging Face
BERT_CONFIG_FILE, CHECKPOINT_PREFIX = "bert_config.json", "bert_model.ckpt"  # of TF1
ONNX_FILE = "model.onnx"  # of `bertjax export`
_INDEX = ".index"  # after the prefix of a TF1 checkpoint
_RESAVE = "Save it with save_pretrained of a transformers 4 that reads it, {} and give that."
# Files of other formats, what they are, and the way to a directory that is read.
_OTHER_FORMATS = {
    "tf_model.h5": ("weights of Keras", _RESAVE.format("from_pretrained(DIR, from_tf=True),")),
    "flax_model.msgpack": (
        "weights of Flax",
        _RESAVE.format("from_pretrained(DIR, from_flax=True),"),
    ),
    "adapter_config.json": (
        "an adapter of peft, not a model",
        "Merge it into its base model with merge_and_unload, and give what save_pretrained writes.",
    ),
    "saved_model.pb": (
        "a SavedModel of TF2",
        "Give the checkpoint from which it was exported.",
    ),
    **dict.fromkeys(
        (ONNX_FILE, "onnx/model.onnx"),
        ("an ONNX model", "Give the model from which it was exported."),
    ),
    "openvino_model.xml": ("a model of OpenVINO", "Give the model from which it was exported."),
    "rust_model.ot": ("weights of rust-bert", "Give the model from which it was exported."),
    "model.weights.h5": ("weights of Keras", "Give the model that it was converted from."),
}


def check_model_exists(path: epath.PathLike) -> epath.Path:
    """Return the path of a model: a directory, or the prefix of a TF1 checkpoint.

    A model on the Hub is downloaded.

    Raises:
      InputError: it does not exist, or is one of the files of a TF1 checkpoint.
    """
    path = model_path(path)
    if is_tf1_prefix(path):
        return path
    prefixes = [] if path.is_dir() or not path.parent.is_dir() else find_tf1_prefixes(path.parent)
    if prefixes:
        names = ", ".join(prefix.name for prefix in prefixes)
        fix = f"Give one of {names}" if not path.exists() else "Leave out the suffix of its files"
        raise InputError(f"{path}: is not the prefix of a checkpoint. {fix}.")
    fix = "Give a workdir or a model directory."
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not path.exists():
        fix = f"Give a workdir or a model directory, or {HUB}{path} for a model on the Hub."
    return check_exists(path, fix)


def is_tf1_prefix(path: epath.Path) -> bool:
    """Return whether a path is the prefix of a TF1 checkpoint, such as DIR/model.ckpt-1000."""
    return not path.is_dir() and path.with_name(f"{path.name}{_INDEX}").exists()


def find_tf1_prefixes(directory: epath.Path) -> list[epath.Path]:
    """Return the prefixes of the TF1 checkpoints in a directory, sorted by step."""
    prefixes = [
        file.with_name(file.name.removesuffix(_INDEX))
        for file in directory.iterdir()
        if file.name.endswith(_INDEX)
    ]

    def step(prefix: epath.Path) -> tuple[int, str]:
        number = prefix.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else -1, prefix.name

    return sorted(prefixes, key=step)


def find_format(path: epath.PathLike) -> str:
    """Return the format of a model directory, one of `FORMATS`.

    Raises:
      InputError: the directory does not exist or has no known format, or its format needs
        tensorflow, which is not installed.
    """
    path = check_model_exists(path)
    if (path / MANIFEST_FILE).exists():
        return "bertjax"
    if _is_huggingface(path):  # also beside the checkpoints of its training
        return "hf"
    if (path / "checkpoints").exists():
        return "bertjax"
    directory = path.parent if is_tf1_prefix(path) else path
    if _is_tf1(directory):
        check_tensorflow(path)
        return "tf1"
    if prefixes := find_tf1_prefixes(directory) if directory.is_dir() else []:
        raise InputError(
            f"{directory}: has the checkpoint {prefixes[-1].name}, but no {BERT_CONFIG_FILE}. "
            "Copy --bert_config_file and --vocab_file of its training into it."
        )
    if (path / "run.json").exists():
        raise InputError(f"{path}: the run has no checkpoint yet. Let it train further.")
    if (path / "best" / MANIFEST_FILE).exists():
        raise InputError(f"{path}: holds a sweep. Name its best model, {path / 'best'}.")
    for name, (description, fix) in _OTHER_FORMATS.items():
        if (path / name).exists():
            raise InputError(f"{path}: has {name}, {description}. {fix}")
    if inner := _find_inner_model(path):
        raise InputError(f"{path}: not a model, but holds some. Give one, such as {inner}.")
    for suffix in ("safetensors", "pt", "pth", "ckpt") if path.is_dir() else ():
        if other := next(path.glob(f"*.{suffix}"), None):
            name = WEIGHTS if suffix == "safetensors" else TORCH_WEIGHTS
            raise InputError(
                f"{path}: no {name}, but {other.name}. If it holds the weights, rename it."
            )
    raise InputError(
        f"{path}: not a model. Give a directory with config.json and {WEIGHTS}, with "
        f"{BERT_CONFIG_FILE} and {CHECKPOINT_PREFIX}.index, or one of `bertjax train`."
    )


def is_onnx(path: epath.PathLike) -> bool:
    """Return whether a directory is an ONNX model, which predicts and has no parameters."""
    path = model_path(path)
    return (path / ONNX_FILE).exists() and not _is_huggingface(path)


def check_predicts(path: epath.PathLike) -> None:
    """Raise InputError if a path is neither an ONNX model nor one that `find_format` knows."""
    if not is_onnx(path):
        find_format(path)


def check_tensorflow(path: epath.PathLike) -> None:
    """Raise InputError if tensorflow, which reads and writes TF1 checkpoints, is not installed."""
    check_installed(f"{path}: a TF1 checkpoint", "tensorflow", install="tensorflow-cpu")


def _find_inner_model(path: epath.Path) -> epath.Path | None:
    """Return the last model in a directory of checkpoints or of the Hub's cache."""
    if not path.is_dir():
        return None
    snapshots = path / "snapshots"
    inner = [child for child in (snapshots if snapshots.exists() else path).iterdir()]
    models = [child for child in inner if child.is_dir() and _is_huggingface(child)]

    def step(model: epath.Path) -> tuple[int, str]:
        number = model.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else -1, model.name

    return max(models, key=step, default=None)


def _is_tf1(path: epath.Path) -> bool:
    if (path / BERT_CONFIG_FILE).exists():
        return True
    prefixes = find_tf1_prefixes(path) if (path / "config.json").exists() else []
    return any(prefix.suffix == ".ckpt" for prefix in prefixes)


def _is_huggingface(path: epath.Path) -> bool:
    names = (WEIGHTS, f"{WEIGHTS}.index.json", TORCH_WEIGHTS, f"{TORCH_WEIGHTS}.index.json")
    return any((path / name).exists() for name in names)
