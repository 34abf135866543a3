"""Local and remote paths, atomic writes, and locks on files.

`etils.epath` is imported where it is used, because its import takes as long as Python's start.
"""

import collections
import contextlib
import fcntl
import functools
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once

if TYPE_CHECKING:
    from etils import epath


def is_remote(path: "epath.PathLike") -> bool:
    """Return whether a path is not one of the local file system (`gs://...`)."""
    return "://" in os.fspath(path)


def check_exists(path: "epath.PathLike", fix: str) -> "epath.Path":
    """Return a path that a user names.

    Raises:
      InputError: it is empty, or does not exist; the message ends with `fix`.
    """
    if not (path := as_path(path)).exists():
        raise InputError(f"{path}: does not exist. {fix}")
    return path


def as_path(path: "epath.PathLike") -> "epath.Path":
    """Return a path that a user names.

    Raises:
      InputError: it is empty, which would mean the current directory, or has a NUL character, or
        see `check_expanded`.
    """
    from etils import epath

    if not os.fspath(path).strip() or "\0" in os.fspath(path):
        raise InputError(f"path={os.fspath(path)!r}: no path. Name one, . for this directory.")
    check_expanded(path)
    return epath.Path(path)


def check_expanded(path: "epath.PathLike") -> None:
    """Check that a path does not have the `~` of a home directory.

    A shell expands it at the start of a word, but not in `--output=~/corpus` or `data=~/corpus`.

    Raises:
      InputError: it has, and the current directory contains no file of that name.
    """
    name = os.fspath(path)
    expanded = os.path.expanduser(name)
    if expanded != name and not os.path.lexists(name.partition("/")[0]):
        raise InputError(f"{name}: the shell has not expanded ~. Write {expanded}.")


def member_path(directory: "epath.Path", name: str, listing: "epath.PathLike") -> "epath.Path":
    """Return the path of a file or directory that a file in a directory names.

    Whoever wrote the file must not choose what else is read: the name stays within the directory,
    also through links. Snapshots in the Hub's cache link to `blobs` of their repository.

    Args:
      directory: the directory.
      name: path relative to it.
      listing: the file that has the name, for the error.

    Raises:
      InputError: the name leaves the directory.
    """
    parts = name.replace("\\", "/").split("/")
    path, inside = directory / name, bool(name) and name.isprintable()
    inside = inside and parts[0] != "" and ".." not in parts and ":" not in parts[0]
    if inside and not is_remote(directory):
        root, target = os.path.realpath(directory), os.path.realpath(path)
        folder, kind = os.path.split(os.path.dirname(root))
        roots = [root, os.path.join(folder, "blobs")] if kind == "snapshots" else [root]
        inside = any(target == place or target.startswith(f"{place}{os.sep}") for place in roots)
    if not inside:
        raise InputError(
            f"{listing}: names {name!r}, which is not inside its directory. Do not use this "
            "directory, or replace links by the files."
        )
    return path


def check_file(path: "epath.PathLike") -> "epath.Path":
    """Return the path of a file that a user names.

    Raises:
      InputError: the file does not exist, or it is a directory.
    """
    path = as_path(path)
    if path.is_dir():
        raise InputError(f"{path}: a directory. Name a file in it.")
    if not path.exists():
        raise InputError(f"{path}: no such file. Name one that exists.")
    return path


def files_within(directory: "epath.Path") -> Iterator["epath.Path"]:
    """Yield all files except hidden ones, such as `.git/config` and Hadoop's `_SUCCESS`.

    A local directory is read once, whatever links to it: a link to one above would repeat all files
    until the operating system follows no more links. Links are followed last.
    """
    visited: set[str] = set()
    links = collections.deque([directory])
    while links:
        directories = [links.popleft()]
        while directories:
            directory = directories.pop()
            if not is_remote(directory):
                if (target := os.path.realpath(directory)) in visited:
                    warn_once(str(directory), f"{directory}: left out, as a link to {target}.")
                    continue
                visited.add(target)
            for path in sorted(directory.iterdir()):
                if path.name[0] in "._":
                    continue
                if not path.is_dir():
                    yield path
                elif is_remote(path) or not os.path.islink(path):
                    directories.append(path)
                else:
                    links.append(path)


def distinct_files(files: Iterable["epath.Path"]) -> list["epath.Path"]:
    """Return files sorted by name; of several names of a local file, one that is not a link."""
    real_directory = functools.cache(os.path.realpath)
    names: dict[str, tuple[bool, epath.Path]] = {}
    omitted: list[tuple[epath.Path, str]] = []
    for path in sorted(files):
        target = str(path)
        if not is_remote(path):
            folder, name = os.path.split(target)
            is_link = os.path.islink(path)
            target = os.path.realpath(path) if is_link else f"{real_directory(folder)}/{name}"
        candidate = target != os.path.abspath(path), path
        previous = names.setdefault(target, candidate)
        if previous is not candidate:
            names[target], (_, other) = sorted((previous, candidate))
            omitted.append((other, target))
    if omitted:
        other, target = omitted[0]
        count = f" Likewise {len(omitted) - 1:,} others." if len(omitted) > 1 else ""
        warn_once(str(other), f"{other}: left out, as a link to {target}.{count}")
    return sorted(path for _, path in names.values())


@contextlib.contextmanager
def atomic_write(
    path: "epath.PathLike", folder: "epath.Path | None" = None
) -> Iterator["epath.Path"]:
    """Yield a file to write in place of `path`; it replaces `path` at the end of the block.

    A reader sees the old content or the new, never a part, even after a power failure: a local
    file is flushed to the disk before it is renamed. An exception leaves `path` as it was.

    Args:
      path: local or remote.
      folder: directory for the file until then, on the same disk; that of `path` by default.

    Raises:
      InputError: another process of this machine writes the same file.
    """
    from etils import epath

    path = epath.Path(path)
    # Nothing locks a remote file, so each process has its own.
    name = f"{path.name}.{uuid.uuid4().hex[:8]}" if is_remote(path) else path.name
    partial = (folder or path.parent) / f"{name}.partial"
    with contextlib.ExitStack() as stack:
        try:
            if not is_remote(path):
                fix = "Wait for it, or name another file."
                stack.enter_context(locked(partial, f"{path}: another process writes it. {fix}"))
            yield partial
            if not is_remote(path):
                _sync(partial)
            partial.replace(path)
            if not is_remote(path):
                _sync(path.parent)
        except OSError as error:
            if error.filename is None and error.errno is not None:  # such as a full disk
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        finally:
            if is_remote(path):  # else the lock deletes it
                partial.unlink(missing_ok=True)


def atomic_write_text(path: "epath.PathLike", text: str) -> None:
    """Write a file, UTF-8, with `atomic_write`."""
    atomic_write_bytes(path, text.encode())


def atomic_write_bytes(path: "epath.PathLike", content: bytes) -> None:
    """Write a file with `atomic_write`."""
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(content)


@contextlib.contextmanager
def locked(path: "epath.PathLike", problem: str) -> Iterator[None]:
    """Hold the lock on a local file, which is created, and deleted at the end of the block.

    The operating system releases the lock when the process ends.

    Raises:
      InputError: another process holds the lock; the message is `problem`.
    """
    while True:
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(problem) from None
            except OSError:  # not every file system has locks
                pass
            if not _is_same_file(path, file):
                continue  # the previous holder renamed or deleted the file
            try:
                yield
            finally:
                if _is_same_file(path, file):
                    os.unlink(path)
            return


def _is_same_file(path: "epath.PathLike", file: IO[bytes]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def make_directory(path: "epath.Path") -> list["epath.Path"]:
    """Create a directory and its parents; return those that are new, the deepest first."""
    parents = [] if is_remote(path) else [path, *path.parents]
    missing = [directory for directory in parents if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(directories: Iterable["epath.Path"]) -> None:
    """Delete directories up to the first that is not empty."""
    with contextlib.suppress(OSError):
        for directory in directories:
            os.rmdir(directory)


def _sync(path: "epath.Path") -> None:
    """Flush a local file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
