"""Paths, local and in a bucket."""

import os

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
