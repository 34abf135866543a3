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
@pytest.mark.parametrize("options", [{}, {"read_options": ReadOptions(wikitext="lists")}])
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


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Five files, of which the fourth is not UTF-8 at its end."""
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{number}.txt" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_text(sample_text(seed=number, documents=60))
    with paths[3].open("ab") as file:
        file.write(b"\n\n\xff\n")
    return paths


def fix_file(paths: list[pathlib.Path]) -> None:
    paths[3].write_text(sample_text(seed=9, documents=30))


def remove_file(paths: list[pathlib.Path]) -> None:
    paths[3].unlink()


def replace_earlier_file(paths: list[pathlib.Path]) -> None:
    fix_file(paths)
    paths[1].write_text(sample_text(seed=10, documents=50))


def insert_file(paths: list[pathlib.Path]) -> None:
    fix_file(paths)
    paths[1].with_name("1b.txt").write_text(sample_text(seed=11, documents=50))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("change", "num_kept", "workers"),
    [
        (fix_file, 3, 1),
        (fix_file, 3, 2),
        (remove_file, 3, 1),
        (replace_earlier_file, 1, 1),
        (insert_file, 2, 1),
    ],
)
def test_prepare_resumes_before_the_first_changed_input(
    inputs, tmp_path, monkeypatch, caplog, change, num_kept: int, workers: int
) -> None:
    """A late error costs no more than the inputs from there on, and a segment."""
    out, source = tmp_path / "out", str(tmp_path / "in")
    caplog.set_level("INFO")
    with pytest.raises(InputError, match=r"3\.txt: byte \d+ is not UTF-8"):
        prepare([source], TOKENIZER, out, workers=workers)
    assert "out.partial/spool: kept. Fix the input; the same command resumes, also" in caplog.text
    change(inputs)
    reads = []
    with monkeypatch.context() as patch:
        patch.setattr(
            corpus, "read_source", lambda *a, **k: reads.append(a[0]) or read_source(*a, **k)
        )
        interrupt(patch, Spool, "append", 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):  # killed while it resumes
            prepare([source], TOKENIZER, out, workers=workers)
    assert pathlib.Path(reads[0]) == inputs[num_kept - 1]
    prepare([source], TOKENIZER, out, workers=workers)
    prepare([source], TOKENIZER, tmp_path / "whole", workers=1)
    assert content(out) == content(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "whole"]


@pytest.mark.seconds
def test_prepare_resumes_with_more_inputs(source: str, tmp_path, monkeypatch, caplog) -> None:
    out, more = tmp_path / "out", tmp_path / "b.txt"
    read_all(monkeypatch, source, out)
    more.write_text(sample_text(seed=5, documents=40))
    with caplog.at_level("INFO"):
        prepare([source, str(more)], TOKENIZER, out, workers=1)
    assert "resume after 200 documents" in caplog.text
    prepare([source, str(more)], TOKENIZER, tmp_path / "whole", workers=1)
    assert content(out) == content(tmp_path / "whole")


def with_bad_lines(tmp_path: pathlib.Path) -> list[str]:
    """Return a good file and one of which a tenth of the lines is bad."""
    texts = [sample_text(seed=seed, documents=100).encode() for seed in (3, 4)]
    texts[1] += b"\xff\n" * (texts[1].count(b"\n") // 9)
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.txt").write_bytes(text)
    return [f"{tmp_path}/{name}.txt" for name in "ab"]


def bad_records(fraction: float) -> CorpusOptions:
    return CorpusOptions(read_options=ReadOptions(max_bad_fraction=fraction))


@pytest.mark.seconds
@pytest.mark.parametrize("first", [0.0, 0.01])
def test_prepare_resumes_with_a_larger_fraction_of_bad_records(tmp_path, caplog, first) -> None:
    inputs, out = with_bad_lines(tmp_path), tmp_path / "out"
    message = r"raise --max-bad-fraction\. The first" if first else "--max-bad-fraction skips bad"
    with pytest.raises(InputError, match=message):
        prepare(inputs, TOKENIZER, out, bad_records(first), workers=1)
    with caplog.at_level("INFO"):
        prepare(inputs, TOKENIZER, out, bad_records(0.2), workers=1)
    assert "resume after" in caplog.text
    prepare(inputs, TOKENIZER, tmp_path / "whole", bad_records(0.2), workers=1)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.seconds
def test_prepare_judges_all_inputs_by_a_smaller_fraction_of_bad_records(
    tmp_path, monkeypatch
) -> None:
    """Inputs that are read already are read again, also after a resumption in between."""
    inputs, out = with_bad_lines(tmp_path)[::-1], tmp_path / "out"
    for fraction in (0.2, 0.3):
        with monkeypatch.context() as patch:
            interrupt(patch, ShardWriter, "close", 0, OSError("disk full"))
            with pytest.raises(OSError, match="disk full"):
                prepare(inputs, TOKENIZER, out, bad_records(fraction), workers=1)
    with pytest.raises(InputError, match=r"b\.txt: .* bad, more than max_bad_fraction=0\.05"):
        prepare(inputs, TOKENIZER, out, bad_records(0.05), workers=1)


@pytest.mark.seconds
def test_prepare_starts_again_after_a_kill_during_deletion_of_changed_sources(
    source: str, tmp_path, monkeypatch
) -> None:
    """The identity of the old segments stays until they are deleted."""
    out, more = tmp_path / "out", tmp_path / "b.txt"
    more.write_text(sample_text(seed=5, documents=200))
    with monkeypatch.context() as patch:
        interrupt(patch, ShardWriter, "close", 0, OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            prepare([source, str(more)], TOKENIZER, out, workers=1)
    more.write_text(sample_text(seed=6, documents=150))
    identity = tmp_path / "out.partial" / "spool" / "identity.json"
    before = identity.read_bytes()
    with monkeypatch.context() as patch:
        interrupt(patch, pathlib.PosixPath, "unlink", 4, Killed())
        with pytest.raises(Killed):
            prepare([source, str(more)], TOKENIZER, out, workers=1)
    assert identity.read_bytes() == before
    prepare([source, str(more)], TOKENIZER, out, workers=1)
    prepare([source, str(more)], TOKENIZER, tmp_path / "whole", workers=1)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.seconds
@pytest.mark.parametrize("pattern", ["", "/*", "/**"])
def test_prepare_resumes_with_an_output_in_the_directory_of_inputs(
    tmp_path: pathlib.Path, monkeypatch, caplog, pattern: str
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    for name, documents in (("README.md", 100), ("z.txt", 60)):
        (directory / name).write_text(sample_text(seed=documents, documents=documents))
    source, out = f"{directory}{pattern}", directory / "corpus"
    read_all(monkeypatch, source, out)
    (directory / "corpus.partial.lock").touch()  # as after SIGKILL
    with caplog.at_level("INFO"):
        prepare([source], TOKENIZER, out, workers=1)
    assert "resume after 160 documents" in caplog.text
    prepare([str(directory / "[Rz]*")], TOKENIZER, tmp_path / "whole", workers=1)
    files = content(out), content(tmp_path / "whole")
    for file in files:
        del file["manifest.json"]  # which records the inputs
    assert files[0] == files[1]


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
