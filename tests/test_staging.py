"""Tests of the directory in which a corpus is prepared."""

import os
import pathlib

import pytest
from document_files import content
from etils import epath

from data_pipelines.corpus import staging
from data_pipelines.corpus.staging import check_output, is_in_output, staging_directory
from data_pipelines.errors import InputError

SHARDS = ["train-00000-of-00002.tokens", "eval-00000-of-00001.tokens"]
LATER_FILES = ["vocab.txt", "tokenizer_config.json", "manifest.json.0a1b2c3d.partial"]


@pytest.fixture
def bucket(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> epath.Path:
    """A directory that counts as remote."""
    monkeypatch.setattr(staging, "is_remote", lambda path: True)
    (tmp_path / "out").mkdir()
    return epath.Path(tmp_path / "out")


@pytest.mark.parametrize(
    "names",
    [
        ["a.txt"],
        ["vocab.txt"],  # a vocabulary, which `prepare` writes after a shard
        ["vocab.txt", "tokenizer_config.json", "spm.model"],
        [*SHARDS, "a.txt"],
        [*SHARDS, "train-00000-of-00002.tokens.txt"],
        [*SHARDS, "model.safetensors", "vocab.txt"],
        [*SHARDS, "manifest.json"],
        [*SHARDS, "folder/a.txt"],
        ["folder/a.txt"],
        ["train-00000-of-00002.tokens/a.txt"],
    ],
)
def test_staging_directory_keeps_other_files_of_a_bucket(bucket, names: list[str]) -> None:
    for name in names:
        (bucket / name).parent.mkdir(exist_ok=True)
        (bucket / name).write_text("years of work")
    kind = "a finished corpus" if "manifest.json" in names else "other files"
    with (
        pytest.raises(InputError, match=f"out: already contains {kind}. Choose another output"),
        staging_directory(bucket),
    ):
        pass
    for name in names:
        assert (bucket / name).read_text() == "years of work"


@pytest.mark.parametrize("names", [[], SHARDS, [*SHARDS, *LATER_FILES], [*SHARDS, "spm.model"]])
def test_staging_directory_deletes_an_interrupted_corpus_of_a_bucket(bucket, names) -> None:
    for name in names:
        (bucket / name).write_text("old")
    with staging_directory(bucket) as stage:
        assert stage == bucket and not list(bucket.iterdir())


def test_staging_directory_deletes_shards_last(bucket, monkeypatch) -> None:
    """A kill between two deletions leaves a directory that is recognized again."""
    for name in [*SHARDS, *LATER_FILES]:
        (bucket / name).write_text("old")
    unlink, names = type(bucket).unlink, []

    def record(path: epath.Path, **options: bool) -> None:
        names.append(path.name)
        unlink(path, **options)

    monkeypatch.setattr(type(bucket), "unlink", record)
    with staging_directory(bucket):
        pass
    assert sorted(names[-len(SHARDS) :]) == sorted(SHARDS) and not content(pathlib.Path(bucket))


@pytest.mark.parametrize("is_missing", [False, True])
def test_staging_directory_replaces_the_target_of_a_link(tmp_path, is_missing: bool) -> None:
    """The stage is beside the target, on its disk."""
    output, target = tmp_path / "out", tmp_path / "disk" / "corpus"
    output.symlink_to(target)
    if not is_missing:
        target.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(KeyError), staging_directory(epath.Path(output)):
            raise KeyError
        assert output.is_symlink()
    with staging_directory(epath.Path(output)) as stage:
        assert str(stage) == f"{target}.partial/corpus"
        (stage / "a.txt").write_text("text")
    assert output.is_symlink() and content(target) == {"a.txt": b"text"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "corpus", "disk", "out"]


def test_check_output_rejects_mount_points(tmp_path, monkeypatch) -> None:
    """A rename cannot replace a mounted disk."""
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == f"{tmp_path}/disk")
    for name in ("disk", "link"):
        with pytest.raises(InputError, match=rf"{name}: a mount point, .* Name a new directory in"):
            check_output(epath.Path(tmp_path / name))
    assert check_output(epath.Path(tmp_path / "disk" / "corpus")) == []


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("in/corpus/vocab.txt", "in/corpus", True),
        ("in/corpus.partial/spool/000000.index", "in/corpus", True),
        ("in/corpus.partial.lock", "in/../in/corpus/", True),
        ("in/corpus.txt", "in/corpus", False),
        ("in/corpus.partial.txt", "in/corpus", False),
        ("in/corpus2/a.txt", "in/corpus", False),
        ("builtin", "in", False),
        ("gs://in/corpus/a.txt", "gs://in/corpus", True),
        ("gs://in/corpus2/a.txt", "gs://in/corpus", False),
        ("in/a.txt", "gs://in", False),
    ],
)
def test_is_in_output_finds_the_files_of_an_output(
    tmp_path, monkeypatch, source: str, output: str, expected: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_in_output(source, epath.Path(output)) == expected
