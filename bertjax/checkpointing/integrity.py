"""Files of a checkpoint: the list that marks it as finished, and what has become of them since."""

import hashlib
import json
import shutil
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from data_pipelines.paths import is_remote

MANIFEST_FILE = "files.json"
_ORBAX_FILES = {"_CHECKPOINT_METADATA", "commit_success.txt"}


def mark_finished(path: epath.Path, write_metadata: Callable[[epath.Path], None]) -> None:
    """Marks a checkpoint whose arrays are written as finished.

    Args:
      describe: writes the files beside the arrays into the directory it is given.
    """
    write_metadata(path)
    draft = path / f"{MANIFEST_FILE}.draft"
    draft.write_text(json.dumps(_list_files(path), indent=1))
    draft.replace(path / MANIFEST_FILE)


def find_damage(path: epath.Path, ignored_dir: str = "") -> str | None:
    """What is wrong with a finished checkpoint's files, as a phrase; None when all are intact.

    Args:
      unread: a folder in it that nobody is going to read, and that need not be intact.
    """
    try:
        listed = json.loads((path / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return f"{MANIFEST_FILE} cannot be read"
    for name, (size, digest) in listed.items():
        if ignored_dir and name.startswith(f"{ignored_dir}/"):
            continue
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().length != size:
            return f"{name} has {file.stat().length} bytes instead of {size}"
        if _digest(file) != digest:
            return f"the content of {name} has changed"
    return None


def metadata_files(path: epath.Path) -> list[epath.Path]:
    """The files of a finished checkpoint that `write_metadata` wrote; see `finish`."""
    files = [file for file in path.iterdir() if not file.is_dir()]
    return [file for file in files if file.name not in {MANIFEST_FILE, *_ORBAX_FILES}]


def delete_checkpoint(path: epath.Path) -> None:
    """Deletes a checkpoint, its mark first, so that a kill half-way leaves no damaged one."""
    if path.exists():
        (path / MANIFEST_FILE).unlink(missing_ok=True)
        path.rmtree()


def check_disk_space(path: epath.Path, arrays: Any) -> None:
    """Raises OSError where a local disk has no room for a tree of arrays at the path.

    The storage library finds out too, but only half-way.
    """
    if is_remote(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = 1.25 * sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)) + 2e6  # and its metadata
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(f"it needs {needed / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB left")


def _list_files(path: epath.Path, prefix: str = "") -> dict[str, tuple[int, str]]:
    """Name -> (bytes, SHA-256) of every file below the path."""
    listed: dict[str, tuple[int, str]] = {}
    for file in sorted(path.iterdir()):
        if file.is_dir():
            listed |= _list_files(file, f"{prefix}{file.name}/")
        else:
            listed[prefix + file.name] = (file.stat().length, _digest(file))
    return listed


def _digest(file: epath.Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:  # remote ones are no files that hashlib could read itself
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
