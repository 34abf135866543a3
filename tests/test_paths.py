"""Local and remote paths, atomic writes."""

import errno
import os
import pathlib
import re
import subprocess

import pytest

from data_pipelines import paths
from data_pipelines.paths import atomic_write, atomic_write_text, is_remote

ROOT = pathlib.Path(__file__).parent.parent


def test_is_remote_recognizes_urls() -> None:
    assert is_remote("gs://bucket/run")
    assert not is_remote("/tmp/run")
    assert not is_remote(pathlib.Path("runs/one"))


def test_atomic_write_replaces_the_file_at_the_end_of_the_block(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file.json"]


def test_atomic_write_keeps_the_old_file_after_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_write(path) as partial:
        partial.write_text("new")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.json"]


def test_atomic_write_names_the_file_on_a_full_disk(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(OSError, match=r"No space left.*page\.html"), atomic_write(path) as partial:
        partial.write_text("new")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_atomic_write_flushes_the_content_before_the_rename(tmp_path, monkeypatch) -> None:
    calls: list[str] = []
    flush = paths._sync
    monkeypatch.setattr(paths, "_sync", lambda path: (calls.append(path.name), flush(path)))
    atomic_write_text(tmp_path / "file.json", "ü")
    assert calls == ["file.json.partial", tmp_path.name]
    assert (tmp_path / "file.json").read_bytes() == "ü".encode()


def test_no_other_module_renames_a_partial_file() -> None:
    files = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    pattern = re.compile(r"os\.fsync|\.(partial|draft)[^\n]*\n[^\n]*write_(text|bytes)")
    found = {file for file in files if pattern.search((ROOT / file).read_text("utf-8"))}
    assert found <= {"data_pipelines/paths.py", "tests/test_paths.py"}
