"""Local and remote paths."""

import pathlib

from data_pipelines.paths import is_remote


def test_is_remote_recognizes_urls() -> None:
    assert is_remote("gs://bucket/run")
    assert not is_remote("/tmp/run")
    assert not is_remote(pathlib.Path("runs/one"))
