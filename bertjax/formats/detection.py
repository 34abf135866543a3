"""Formats of model directories, recognized by their files; imports neither JAX nor NumPy."""

from etils import epath

from bertjax.checkpointing.integrity import MANIFEST_FILE
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed
from data_pipelines.paths import check_exists

FORMATS = ("hf", "tf1", "bertjax")
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"  # of Hugging Face
BERT_CONFIG_FILE, CHECKPOINT_PREFIX = "bert_config.json", "bert_model.ckpt"  # of TF1


def check_model_exists(path: epath.PathLike) -> epath.Path:
    """Return the path of a model; raise InputError if it does not exist."""
    return check_exists(path, "Give a workdir or a model directory.")


def find_format(path: epath.PathLike) -> str:
    """Return the format of a model directory, one of `FORMATS`.

    Raises:
      InputError: the directory does not exist or has no known format, or its format needs
        tensorflow, which is not installed.
    """
    path = check_model_exists(path)
    if (path / MANIFEST_FILE).exists() or (path / "checkpoints").exists():
        return "bertjax"
    if _is_huggingface(path):
        return "hf"
    if (path / BERT_CONFIG_FILE).exists():
        check_tensorflow(path)
        return "tf1"
    if (path / "run.json").exists():
        raise InputError(f"{path}: the run has no checkpoint yet. Let it train further.")
    if (path / "best" / MANIFEST_FILE).exists():
        raise InputError(f"{path}: holds a sweep. Name its best model, {path / 'best'}.")
    raise InputError(
        f"{path}: not a model. Give a directory with config.json and {WEIGHTS}, with "
        f"{BERT_CONFIG_FILE} and {CHECKPOINT_PREFIX}.index, or one of `bertjax train`."
    )


def check_tensorflow(path: epath.PathLike) -> None:
    """Raise InputError if tensorflow, which reads and writes TF1 checkpoints, is not installed."""
    check_installed(f"{path}: a TF1 checkpoint", "tensorflow", install="tensorflow-cpu")


def _is_huggingface(path: epath.Path) -> bool:
    names = (WEIGHTS, f"{WEIGHTS}.index.json", TORCH_WEIGHTS, f"{TORCH_WEIGHTS}.index.json")
    return any((path / name).exists() for name in names)
