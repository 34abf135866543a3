"""Manifest of a checkpoint: it marks the checkpoint as finished and lists digests of its files."""

import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from typing import TypeVar

from etils import epath

from bertjax.errors import CommandError
from bertjax.faults import fault_point
from data_pipelines.errors import InputError
from data_pipelines.parallel import thread_map
from data_pipelines.paths import atomic_write_text, is_remote, member_path
from data_pipelines.schema import read_json_object

PARAMS_DIR, TRAINING_DIR, MANIFEST_FILE = "params", "training", "files.json"
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
_ORBAX_FILES = {_ORBAX_METADATA, "commit_success.txt"}
# Files that are read at once: a bucket serves one of them at a fraction of the network's rate.
_READERS = 8
_RETRY_SECONDS = (1.0, 2.0, 4.0)  # pauses between attempts to read from a storage
_UNFINISHED_NAME = re.compile(r"(\d{8,})\.orbax-checkpoint-tmp.*")
T = TypeVar("T")


class UnreadableError(CommandError):
    """A file or directory of checkpoints cannot be read, which does not show that it is damaged."""


def mark_finished(
    path: epath.Path,
    write_metadata: Callable[[epath.Path], None],
    confirm: Callable[[], None] = lambda: None,
) -> None:
    """Write the metadata and then the manifest of a checkpoint whose arrays are written.

    Args:
      path: directory of the checkpoint.
      write_metadata: writes the files beside the arrays into the directory.
      confirm: called before the manifest is written; raises LockLostError if the checkpoint is that
        of another run.
    """
    write_metadata(path)
    files = _find_files(path)
    entries = dict(zip(files, thread_map(_measure, files.values(), _READERS), strict=True))
    confirm()
    atomic_write_text(path / MANIFEST_FILE, json.dumps(entries, indent=1))


def find_damage(path: epath.Path, ignored_dir: str = "") -> str | None:
    """Return what is wrong with a finished checkpoint's files, as a phrase; None if all are intact.

    Args:
      path: directory of the checkpoint.
      ignored_dir: a directory in it that is not checked.

    Raises:
      UnreadableError: a file exists and cannot be read, such as while a storage does not answer.
    """
    listing = path / MANIFEST_FILE
    try:
        manifest = retry_reads(listing, _read_manifest)
        files = {name: member_path(path, name, listing) for name in manifest}
    except InputError as error:
        return str(error).removeprefix(f"{path}/").rstrip(".")

    def find_difference(name: str) -> str | None:
        size, digest = (*manifest[name], None, None)[:2]

        def compare(file: epath.Path) -> str | None:
            try:
                status = None if is_remote(file) else os.stat(file)
                if status and not stat.S_ISREG(status.st_mode):
                    return f"{name} is not a file"  # a pipe may never end
                if (length := status.st_size if status else file.stat().length) != size:
                    return f"{name} has {length} bytes instead of {size}"
                if file_digest(file) != digest:
                    return f"the content of {name} has changed"
            except (FileNotFoundError, NotADirectoryError):
                return f"{name} is missing"
            return None

        return retry_reads(files[name], compare)

    names = [n for n in manifest if not (ignored_dir and n.startswith(f"{ignored_dir}/"))]
    return next(filter(None, thread_map(find_difference, names, _READERS)), None)


def retry_reads(path: epath.Path, read: Callable[[epath.Path], T]) -> T:
    """Return what a function reads from a path, after some attempts if it raises errors.

    Raises:
      InputError: as the function; it is not called again.
      UnreadableError: the last attempt failed too.
    """
    for seconds in (*_RETRY_SECONDS, None):
        try:
            return read(path)
        except InputError:
            raise
        except Exception as error:  # of any kind: TensorFlow's errors of a bucket are no OSErrors
            if seconds is None:
                raise UnreadableError(
                    f"{path}: cannot be read ({error}). Run the same command again; if that does "
                    "not help, repair the storage."
                ) from error
        time.sleep(seconds)
    raise AssertionError


def is_finished(path: epath.Path) -> bool:
    """Return whether a directory has the manifest of a finished checkpoint.

    Raises:
      UnreadableError: the storage does not answer.
    """
    return retry_reads(path / MANIFEST_FILE, path_exists)


def list_directory(path: epath.Path) -> list[epath.Path]:
    """Return the paths in a directory; none if it does not exist.

    Raises:
      UnreadableError: the storage does not answer.
    """
    return retry_reads(path, lambda path: list(path.iterdir()) if path_exists(path) else [])


def path_exists(path: epath.Path) -> bool:
    """Return whether a path exists.

    `os.path.exists`, which epath calls, returns False for every error of a storage: a checkpoint
    would count as unfinished and be deleted.
    """
    if is_remote(path):
        return bool(path.exists())
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read_manifest(listing: epath.Path) -> dict[str, list[int | str]]:
    try:
        return read_json_object(listing, {str: [(int, str)]}, "Use another checkpoint.")
    except InputError as error:
        raise_storage_error(error)
        raise


def raise_storage_error(error: InputError) -> None:
    """Raise the error of a storage that an error about a file stands for, if it does.

    A missing or damaged file is none.
    """
    cause = error.__context__
    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
        raise cause from None


def metadata_files(path: epath.Path) -> list[epath.Path]:
    """Return the files of a finished checkpoint that `write_metadata` wrote."""
    files = [file for file in path.iterdir() if not file.is_dir()]
    return [file for file in files if file.name not in {MANIFEST_FILE, *_ORBAX_FILES}]


def checkpoint_name(step: int) -> str:
    """Return the directory name of a checkpoint."""
    return f"{step:08d}"


def step_of(path: epath.Path) -> int | None:
    """Return the step that a directory name stands for; None if it is not a checkpoint's name."""
    is_ours = path.name.isdigit() and checkpoint_name(int(path.name)) == path.name
    return int(path.name) if is_ours else None


def is_unfinished(path: epath.Path) -> bool:
    """Return whether a directory is what a killed save or deletion left.

    A directory that somebody else wrote is not, whatever its name: Orbax's metadata must be in it.
    A local one without any file is what a kill left between the last file and the directory.
    """
    if _UNFINISHED_NAME.fullmatch(path.name):
        return True
    if step_of(path) is None or is_finished(path):
        return False
    if not is_remote(path) and path.is_dir() and not os.listdir(path):
        return True
    # In a bucket, where nothing is renamed, arrays may be written before the metadata.
    marks = (_ORBAX_METADATA, PARAMS_DIR, TRAINING_DIR) if is_remote(path) else (_ORBAX_METADATA,)
    return any((path / mark).exists() for mark in marks)


def delete_checkpoint(path: epath.Path) -> None:
    """Delete a checkpoint.

    The manifest goes first, so that a kill leaves no damaged checkpoint. Orbax's metadata goes
    last, so that `is_unfinished` recognizes what a kill leaves.
    """
    if not path.exists():
        return
    (path / MANIFEST_FILE).unlink(missing_ok=True)
    fault_point("delete.after_manifest")
    for child in path.iterdir():
        if child.is_dir():
            child.rmtree()
        elif child.name != _ORBAX_METADATA:
            child.unlink(missing_ok=True)
    path.rmtree()


def check_disk_space(path: epath.Path, num_bytes: int) -> None:
    """Raise OSError if a local disk has too little space for arrays of `num_bytes` at the path.

    Orbax would fail only after it has written a part.
    """
    if is_remote(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = 1.25 * num_bytes + 2e6  # with metadata
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(f"it needs {needed / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB left")


def _find_files(path: epath.Path, prefix: str = "") -> dict[str, epath.Path]:
    """Return every file below the path, by its name."""
    files: dict[str, epath.Path] = {}
    for file in sorted(path.iterdir()):
        if file.is_dir():
            files |= _find_files(file, f"{prefix}{file.name}/")
        else:
            files[prefix + file.name] = file
    return files


def _measure(file: epath.Path) -> tuple[int, str]:
    """Return the bytes and the digest of a file."""
    return file.stat().length, file_digest(file)


def file_digest(file: epath.Path) -> str:
    """Return the SHA-256 digest of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as content:  # hashlib.file_digest takes no remote files
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
