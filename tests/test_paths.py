"""Paths: what lies in a bucket and what does not."""

import pathlib

from data_pipelines.paths import is_remote


def test_remote_paths_are_told_from_local_ones() -> None:
    assert is_remote("gs://bucket/run")
    assert not is_remote("/tmp/run")
    assert not is_remote(pathlib.Path("runs/one"))
