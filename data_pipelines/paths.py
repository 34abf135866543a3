"""Paths, local and in a bucket."""

import os

from etils import epath


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is not one of the local file system (`gs://...`)."""
    return "://" in os.fspath(path)
