"""Tests of resuming an interrupted preparation from its spool."""

import importlib.metadata
import itertools
import os
import pathlib
import shutil

import pytest
from conftest import TOKENIZER, sample_text
from document_files import content

from data_pipelines.corpus import prepare as corpus
from data_pipelines.corpus import spool
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import ShardWriter
from data_pipelines.corpus.spool import Spool
from data_pipelines.errors import InputError
from data_pipelines.text.sources import ReadOptions, read_source


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches and segments."""
    monkeypatch.setattr(corpus, "_BATCH_CHARS", 1 << 10)
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 1 << 12)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "a.txt"
    path.write_text(sample_text(seed=2, documents=200))
    return str(path)


def interrupt(monkeypatch, owner: type, name: str, calls: int, error: BaseException):
    """Make a method raise an error after a number of calls."""
    real, remaining = getattr(owner, name), itertools.count(calls, -1)

    def method(self, *arguments):
        if next(remaining) <= 0:
            raise error
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, method)


def read_all(monkeypatch, source: str, out: pathlib.Path, **options) -> None:
    """Interrupt a preparation after all input is read and before a shard is written."""
    with monkeypatch.context() as patch:
        interrupt(patch, ShardWriter, "close", 0, OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            prepare([source], TOKENIZER, out, CorpusOptions(**options), workers=1)


@pytest.mark.seconds
def test_prepare_resumes_to_identical_files(
    source: str, tmp_path: pathlib.Path, monkeypatch, caplog
) -> None:
    more = tmp_path / "more.txt"
    more.write_text(sample_text(seed=5, documents=40))
    inputs = [source, str(more)]
    prepare(inputs, TOKENIZER, tmp_path / "whole", CorpusOptions(dedup=True), workers=1)
    for owner, name, calls in (
        (Spool, "append", 3),  # before a segment is complete
        (Spool, "append", 20),
        (Spool, "append", 60),
        (Spool, "commit_segment", 1),
        (ShardWriter, "append", 3),
        (ShardWriter, "close", 1),
    ):
        with monkeypatch.context() as patch:
            interrupt(patch, owner, name, calls, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                prepare(inputs, TOKENIZER, tmp_path / "out", CorpusOptions(dedup=True), workers=1)
        assert not (tmp_path / "out").exists()
    reads = []
    with monkeypatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(
            corpus, "read_source", lambda *a, **k: reads.append(a) or read_source(*a, **k)
        )
        prepare(inputs, TOKENIZER, tmp_path / "out", CorpusOptions(dedup=True), workers=2)
    assert "resume after 240 documents" in caplog.text
    assert [source for source, _ in reads] == [str(more)]  # the first source is not read again
    assert content(tmp_path / "out") == content(tmp_path / "whole")


class Killed(BaseException):
    """The end of a killed process."""


@pytest.mark.seconds
@pytest.mark.parametrize("options", [{}, {"read_options": ReadOptions(max_bad_fraction=0.1)}])
def test_prepare_succeeds_after_a_kill_during_deletion_of_the_spool(
    source: str, tmp_path: pathlib.Path, monkeypatch, options
) -> None:
    """The spool is deleted at the end, or at the start if it has other options."""
    out = tmp_path / "out"

    def delete_half(path, *_: object, **__: object) -> None:
        for payload in sorted(pathlib.Path(path).rglob("*.payload"))[:2]:
            payload.unlink()
            deleted.append(payload)
        if deleted:
            raise Killed

    deleted: list[pathlib.Path] = []

    if options:  # leave a spool of other options
        read_all(monkeypatch, source, out)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", delete_half)
        with pytest.raises(Killed):
            prepare([source], TOKENIZER, out, CorpusOptions(**options), workers=1)
    if not out.exists():
        prepare([source], TOKENIZER, out, workers=1)
    prepare([source], TOKENIZER, tmp_path / "whole", workers=1)
    assert content(out) == content(tmp_path / "whole")


def truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: pathlib.Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["payload", "index", "json"])
@pytest.mark.parametrize("damage", [pathlib.Path.unlink, truncate, change])
def test_prepare_resumes_before_a_damaged_segment(
    source: str, tmp_path: pathlib.Path, monkeypatch, kind: str, damage
) -> None:
    out = tmp_path / "out"
    read_all(monkeypatch, source, out)
    damage(tmp_path / "out.partial" / "spool" / f"000003.{kind}")
    completed = []
    real = Spool.commit_segment
    monkeypatch.setattr(
        Spool, "commit_segment", lambda self: completed.append(self._count) or real(self)
    )
    prepare([source], TOKENIZER, out, workers=1)
    assert completed[0] == 3
    prepare([source], TOKENIZER, tmp_path / "whole", workers=1)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "options",
    [
        {"eval_fraction": 0.3},
        {"dedup": True},
        {"num_shards": 4},
        {"filters": Filters(min_document_tokens=50)},
    ],
)
def test_prepare_resumes_with_other_options_of_assignment(
    source, tmp_path: pathlib.Path, monkeypatch, caplog, options
) -> None:
    out = tmp_path / "out"
    read_all(monkeypatch, source, out)
    with caplog.at_level("INFO"):
        prepare([source], TOKENIZER, out, CorpusOptions(**options), workers=1)
    assert "resume after 200 documents" in caplog.text
    prepare([source], TOKENIZER, tmp_path / "whole", CorpusOptions(**options), workers=1)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.seconds
def test_prepare_resumes_after_an_error_at_the_end(source, tmp_path, caplog) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="num_shards=101: too many"):
        prepare([source], TOKENIZER, out, CorpusOptions(eval_fraction=0, num_shards=101), workers=1)
    with caplog.at_level("INFO"):
        prepare([source], TOKENIZER, out, CorpusOptions(eval_fraction=0, num_shards=100), workers=1)
    assert "resume after 200 documents" in caplog.text


def newer_text(source: str, monkeypatch) -> None:
    """Change the text but not its length, in the same second."""
    before = os.stat(source)
    path = pathlib.Path(source)
    path.write_text(path.read_text().replace("ba", "do"))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns // 10**9 * 10**9 + 1))


def newer_library(source: str, monkeypatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2038.1")


def newer_program(source: str, monkeypatch) -> None:
    monkeypatch.setattr(corpus, "CORPUS_VERSION", 4)


def other_sentences(source: str, monkeypatch) -> None:
    monkeypatch.setattr(corpus, "MAX_SENTENCE_TOKENS", 32)


@pytest.mark.seconds
@pytest.mark.parametrize("change", [newer_text, newer_library, newer_program, other_sentences])
def test_prepare_starts_again_if_the_input_changed(
    source, tmp_path, monkeypatch, caplog, change
) -> None:
    out, filters = tmp_path / "out", Filters(near_dedup=True)
    os.utime(source, ns=(0, 1_800_000_000 * 10**9))
    read_all(monkeypatch, source, out, filters=filters)
    change(source, monkeypatch)
    with caplog.at_level("INFO"):
        prepare([source], TOKENIZER, out, CorpusOptions(filters=filters), workers=1)
    assert "resume" not in caplog.text
    prepare([source], TOKENIZER, tmp_path / "whole", CorpusOptions(filters=filters), workers=1)
    assert content(out) == content(tmp_path / "whole")
