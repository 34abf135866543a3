"""Paths, local and in a bucket."""

import contextlib
import os
from collections.abc import Iterator

from etils import epath

from data_pipelines.errors import InputError


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is not one of the local file system (`gs://...`)."""
    return "://" in os.fspath(path)


def check_file(path: epath.PathLike) -> epath.Path:
    """The path of a file that a user names.

    Raises:
      InputError: there is none.
    """
    path = epath.Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file in it.")
    if not path.exists():
        raise InputError(f"there is no file {path}: name one that exists.")
    return path


@contextlib.contextmanager
def atomic_write(path: epath.PathLike) -> Iterator[epath.Path]:
    """A file to write in the place of `path`, which it becomes once that has come to its end."""
    path = epath.Path(path)
    draft = path.with_name(f"{path.name}.partial")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # as of a disk that is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        draft.unlink(missing_ok=True)
