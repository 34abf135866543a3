"""Models on the Hugging Face Hub, named `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`.

`huggingface_hub` keeps downloads in its cache, which is read where there is no connection. Its
environment variables HF_ENDPOINT, HF_TOKEN and HF_HOME are read by it.
"""

import contextlib
import functools
import glob
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from data_pipelines.errors import InputError
from data_pipelines.paths import as_path, member_path
from data_pipelines.schema import read_json_value

if TYPE_CHECKING:
    from etils import epath

HUB = "hf://"
_PATTERNS = ("*.json", "*.txt", "*.model")
# Weights of one kind only: a repository often has them in three.
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
_TORCH_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")
# Modules of sentence-transformers, which lie in folders of any name.
_MODULES_FILE, _MODULES_SCHEMA = "modules.json", [{"type": str, "path": str}]
_MODULES_FIX, _WITHOUT_WEIGHTS = "Use another model.", ("Pooling", "Normalize")
# Files that programs load instead of the new model's, or with them: weights of all kinds, exports
# and tokenizer files. Those in folders belong to other models, but for exports.
_REPLACED_FILES = re.compile(
    r"(model|pytorch_model|tf_model|flax_model)[\w.-]*\.(safetensors|bin|h5|msgpack)(\.index\.json)?"
    r"|rust_model\.ot|(onnx/)?[\w.-]+\.onnx(_data)?|(openvino/)?openvino_model[\w.-]*\.(xml|bin)"
    r"|adapter_model\.\w+|adapter_config\.json"
    r"|vocab\.txt|tokenizer\.(json|model)|added_tokens\.json|special_tokens_map\.json"
)
_CARD = "README.md"
_pinned_commits: dict[str, str] = {}  # by the path of a model
_UPLOAD_FIX = "Convert to a directory, and send it later with `hf upload`."


def is_hub(path: "epath.PathLike") -> bool:
    """Return whether a path names a model on the Hub."""
    return os.fspath(path).startswith(HUB)


def model_path(path: "epath.PathLike") -> "epath.Path":
    """Return the path of a model that a user names; one on the Hub is downloaded.

    Raises:
      InputError: the path is empty, or the model cannot be downloaded.
    """
    if not is_hub(path):
        return as_path(path)
    return as_path(_download(os.fspath(path), _pinned_commits.get(os.fspath(path))))


def find_commit(path: "epath.PathLike") -> str:
    """Return the hash of the commit that is read of a model on the Hub; errors as `model_path`."""
    return model_path(path).name  # the name of a snapshot's directory in the client's cache


def pin_commit(path: "epath.PathLike", commit: str) -> None:
    """Read a model on the Hub at a commit from now on, in this process."""
    _pinned_commits[os.fspath(path)] = commit


def parse_hub_path(path: "epath.PathLike") -> tuple[str, str | None]:
    """Return the id and the revision, None for the newest, of a model on the Hub.

    Raises:
      InputError: the text is malformed.
    """
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", os.fspath(path))
    if not match:
        raise InputError(f"{os.fspath(path)}: not a model on the Hub. Write hf://ORG/NAME.")
    return match[1], match[2]


@functools.cache
def _download(path: str, commit: str | None) -> str:
    from huggingface_hub import snapshot_download

    repo_id, revision = parse_hub_path(path)
    if commit:
        path, revision = f"{HUB}{repo_id}@{commit}", commit

    def download(names: Iterable[str], folders: Iterable[str] = ("",)) -> str:
        prefixes = [f"{glob.escape(folder)}/" if folder else "" for folder in folders]
        patterns = [f"{prefix}{name}" for prefix in prefixes for name in names]
        return snapshot_download(repo_id, revision=revision, allow_patterns=patterns)

    with _errors(path, "Download the model elsewhere, with `hf download`, and name its directory."):
        directory = download([*_PATTERNS, *_WEIGHTS])
        if folders := _find_module_folders(as_path(directory)):
            download(_WEIGHTS, folders)
        paths = {folder: pathlib.Path(directory, folder) for folder in ("", *folders)}
        if lacking := [name for name, path in paths.items() if not [*path.glob("*.safetensors")]]:
            download(_TORCH_WEIGHTS, lacking)
    return directory


def _find_module_folders(directory: "epath.Path") -> list[str]:
    """Return the folders of the modules of sentence-transformers that have weights.

    Raises:
      InputError: modules.json is damaged, or names a folder elsewhere.
    """
    path = directory / _MODULES_FILE
    modules = read_json_value(path, _MODULES_SCHEMA, _MODULES_FIX) if path.exists() else []
    kinds = {module["path"]: module["type"].rpartition(".")[2] for module in modules}
    folders = [name for name, kind in kinds.items() if name and kind not in _WITHOUT_WEIGHTS]
    for folder in folders:
        member_path(directory, folder, path)
    return folders


def create_repository(path: "epath.PathLike") -> None:
    """Create the repository of a model, private unless it exists.

    Raises:
      InputError: it cannot be created, as without a token.
    """
    repo_id, revision = parse_hub_path(path)
    if revision:
        raise InputError(f"{os.fspath(path)}: models are written to the newest revision. Remove @.")
    with _errors(os.fspath(path), _UPLOAD_FIX):
        _api().create_repo(repo_id, private=True, exist_ok=True)


def upload(directory: "epath.PathLike", path: "epath.PathLike") -> tuple[list[str], bool]:
    """Write the files of a model to a repository as one commit.

    The commit deletes weights and tokenizer files of an earlier model that are not replaced. Other
    files of the repository stay, and so does its README.md, which may have been edited.

    Returns:
      The names of the deleted files, and whether the repository had a README.md.

    Raises:
      InputError: they cannot be written.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo_id, _ = parse_hub_path(path)
    with _errors(os.fspath(path), _UPLOAD_FIX):
        present = _api().list_repo_files(repo_id)
        names = [file.relative_to(directory).as_posix() for file in _files_below(directory)]
        added = [name for name in names if name != _CARD or name not in present]
        deleted = sorted({*filter(_REPLACED_FILES.fullmatch, present)} - {*added})
        operations = [
            *map(CommitOperationDelete, deleted),
            *(CommitOperationAdd(name, os.path.join(directory, name)) for name in added),
        ]
        _api().create_commit(repo_id, operations, commit_message="Upload model by bertjax")
    return deleted, _CARD in present


def _files_below(directory: "epath.PathLike") -> list[pathlib.Path]:
    return sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


@contextlib.contextmanager
def _errors(path: str, fix: str) -> Iterator[None]:
    """Raise the errors of the Hub as one line; `fix` is that of a missing connection."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.GatedRepoError):
        raise InputError(
            f"{path}: there is no such model, or it is not yours to read. Check the name, or log "
            "in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{path}: there is no such revision. Check the part after @.") from None
    except errors.HFValidationError as error:
        raise InputError(f"{path}: not a model on the Hub ({error}).") from None
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", "an error")
        fix = "Log in with `hf auth login`." if status in (401, 403) else "Try again later."
        raise InputError(f"{path}: the Hub answers {status}. {fix}") from None
    # No answer, and nothing in the cache; a full disk is another OSError.
    except (ConnectionError, errors.LocalEntryNotFoundError, errors.HTTPError) as error:
        raise InputError(
            f"{path}: the Hub cannot be reached ({type(error).__name__}). {fix}"
        ) from None
