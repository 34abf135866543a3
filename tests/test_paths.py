"""Local and remote paths, atomic writes."""

import errno
import os
import pathlib
import re
import subprocess

import pytest
from etils import epath

from data_pipelines import paths
from data_pipelines.errors import InputError
from data_pipelines.paths import (
    as_path,
    atomic_write,
    atomic_write_text,
    check_exists,
    check_file,
    is_remote,
    make_directory,
    member_path,
    remove_empty,
)

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


# Where files are written without `atomic_write`, and why no later start reads a part of one.
OTHER_WRITES = {
    "bertjax/cli/files.py",  # into the draft of atomic_write
    "bertjax/cli/main.py",  # /dev/null
    "bertjax/cli/predict.py",  # into the draft of atomic_write
    "bertjax/inference/embedding_files.py",  # into memory, and into the draft of atomic_write
    "bertjax/inference/inspection.py",  # into memory
    "bertjax/training/metrics_file.py",  # appends lines; an unfinished one is removed
    "bertjax/workdir/lock.py",  # in a bucket, where a write replaces a file as a whole
    "data_pipelines/corpus/shards.py",  # into a directory that the manifest completes
    "data_pipelines/corpus/staging.py",  # moves that directory
    "data_pipelines/text/wikipedia.py",  # into the draft of atomic_write
}


def test_only_known_modules_write_files_in_another_way() -> None:
    files = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    package = [file for file in files if file.startswith(("bertjax/", "data_pipelines/"))]
    calls = (
        r"\.write_(text|bytes)\(",
        r"open\([^)]*\"[wax]+b?\+?\"",
        r"os\.(rename|replace|fsync)\(",
    )
    pattern = re.compile("|".join([*calls, r"np\.savez?\(", r"json\.dump\("]))
    found = {file for file in package if pattern.search((ROOT / file).read_text("utf-8"))}
    assert found == OTHER_WRITES | {"data_pipelines/paths.py"}


def test_member_path_stays_within_the_directory(tmp_path) -> None:
    directory, listing = epath.Path(tmp_path / "model"), "files.json"
    (directory / "part").mkdir(parents=True)
    (tmp_path / "outside").write_text("secret")
    (directory / "part" / "a").write_text("a")
    for name, target in (("link", "part/a"), ("away", "../outside"), ("up", "..")):
        os.symlink(target, directory / name)
    for name in ("part/a", "link", "new"):
        assert member_path(directory, name, listing) == directory / name
    hostile = ["", "/etc/passwd", "../outside", "part/../../outside", "away", "up/outside"]
    for name in [*hostile, "gs://bucket/x", "C:/x", "..\\x", "a\0b"]:
        with pytest.raises(InputError, match=r"not inside its directory"):
            member_path(directory, name, listing)
    with pytest.raises(InputError, match=r"not inside its directory"):
        member_path(epath.Path("gs://bucket/model"), "../x", listing)


def test_member_path_follows_links_of_the_hubs_cache(tmp_path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "123").write_text("weights")
    (snapshot / "model").symlink_to("../../blobs/123")
    assert member_path(epath.Path(snapshot), "model", "index").read_text() == "weights"


@pytest.mark.parametrize("path", ["", " ", "a\0b"])
def test_empty_paths_are_rejected(path: str) -> None:
    for check in (as_path, check_file, lambda path: check_exists(path, "")):
        with pytest.raises(InputError, match=r"no path\. Name one"):
            check(path)


def test_paths_have_no_unexpanded_home_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = os.path.expanduser("~")
    for check in (as_path, check_file, lambda path: check_exists(path, "")):
        with pytest.raises(InputError, match=f"~/x: the shell has not expanded ~. Write {home}/x"):
            check("~/x")
    for name in ("~draft", "a/~/x", "gs://bucket/~"):
        as_path(name)
    (tmp_path / "~").mkdir()
    assert as_path("~/x") == epath.Path("~/x")


def test_atomic_write_rejects_a_second_writer_of_the_file(tmp_path) -> None:
    path = tmp_path / "scores.json"
    with atomic_write(path) as partial:
        partial.write_text("first")
        with pytest.raises(InputError, match=r"scores\.json: another process writes it\. Wait"):
            atomic_write_text(path, "second")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["scores.json"]


def test_atomic_write_replaces_what_a_killed_process_left(tmp_path) -> None:
    (tmp_path / "scores.json.partial").write_text("a long unfinished text")
    atomic_write_text(tmp_path / "scores.json", "new")
    assert (tmp_path / "scores.json").read_text() == "new"
    assert os.listdir(tmp_path) == ["scores.json"]


def test_remove_empty_stops_at_the_first_directory_with_a_file(tmp_path) -> None:
    new = make_directory(epath.Path(tmp_path) / "a" / "b" / "c")
    assert [path.name for path in new] == ["c", "b", "a"]
    (tmp_path / "a" / "file").touch()
    remove_empty(new)
    assert os.listdir(tmp_path / "a") == ["file"]
    assert make_directory(epath.Path(tmp_path)) == []
