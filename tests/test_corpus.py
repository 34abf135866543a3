"""A corpus is the same on any number of workers, and is there as a whole or not at all."""

import contextlib
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow
import pytest
import zstandard
from conftest import LONG, process_environment, sample_pieces, sample_text
from pyarrow import parquet

from data_pipelines.corpus import prepare as prepare_module
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import MANIFEST, Manifest, read_manifest, read_shard
from data_pipelines.corpus.spool import Spool
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(sample_pieces(), cased=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """3,000 documents, a megabyte: several batches of work."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(sample_text(seed=2, documents=3000))
    return path


def content(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def documents_of(directory: pathlib.Path, split: str, shard: str | None = None) -> list[str]:
    """The documents of a split or of one shard, a sentence a line."""
    shard_infos = [
        i for i in getattr(read_manifest(directory), f"{split}_shards") if shard in (None, i.name)
    ]
    shards = [read_shard(directory, info) for info in shard_infos]
    documents = []
    for shard in shards:
        for begin, end in itertools.pairwise(shard.documents.tolist()):
            bounds = shard.sentences[begin : end + 1]
            sentences = (shard.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds))
            documents.append("\n".join(map(TOKENIZER.decode, sentences)))
    return documents


def small(path: pathlib.Path, documents: int = 40) -> str:
    path.write_text(sample_text(seed=3, documents=documents))
    return str(path)


# What is prepared


def test_shards_that_a_long_document_makes_uneven_are_told(tmp_path, caplog):
    text = tmp_path / "text.txt"
    words = "ba do ki lu"
    text.write_text("\n\n".join([f"{words} {n}." for n in range(40)] + [f"{words} no. " * 60]))
    prepare([str(text)], TOKENIZER, tmp_path / "even", workers=1, eval_fraction=0)
    assert "leave shards out" not in caplog.text
    prepare([str(text)], TOKENIZER, tmp_path / "uneven", workers=1, eval_fraction=0, shards=4)
    assert "as some documents are longer than shards should be" in caplog.text


def test_inputs_of_which_the_vocabulary_loses_a_part_are_told_once(tmp_path, caplog) -> None:
    given = {"known.txt": "ba do ki.", "greek.txt": "ναι οχι.", "thai.txt": "ที่นี่ วันนี้ กำลัง."}
    for name, line in given.items():
        (tmp_path / name).write_text(f"{line}\n\n" * 9)
    inputs = [str(tmp_path / name) for name in given]
    prepare(inputs, TOKENIZER, tmp_path / "corpus", workers=1)
    (told,) = [each for each in caplog.messages if "loses part of" in each]
    assert re.search(r"greek\.txt \(\d+% of its characters are unknown\); ", told)
    assert re.search(r"thai\.txt \(\d+% of its letters are marks, which are stripped", told)
    assert "known.txt" not in told


def test_the_corpus_is_the_text(text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    manifest = prepare([str(text)], TOKENIZER, tmp_path / "out", workers=1, eval_fraction=0.1)
    written = text.read_text().strip("\n").split("\n\n")
    train, held_out = (documents_of(tmp_path / "out", split) for split in ("train", "eval"))
    assert sorted(train + held_out) == sorted(written)
    for info in manifest.train_shards:
        shard = documents_of(tmp_path / "out", "train", info.name)
        assert shard == [document for document in written if document in set(shard)]
    assert 200 < len(held_out) < 400
    assert manifest.totals == {
        "documents": 3000,
        "sentences": sum(document.count("\n") + 1 for document in written),
        "tokens": sum(info.tokens for info in manifest.train_shards + manifest.eval_shards),
        "text_bytes": sum(map(len, written)),
        "unk_fraction": 0,
        "empty_sentences": 0,
        "long_sentences": 0,
        "empty_documents": 0,
        "short_documents": 0,
        "other_language_documents": 0,
        "duplicate_documents": 0,
    }


def layouts(directory: pathlib.Path, documents: list[str]) -> dict[str, str]:
    """The documents in the layouts of C4, Dolma, Wikipedia's dumps and a cache of Arrow."""
    half = len(documents) // 2
    parts = documents[:half], documents[half:]
    for name in ("c4", "dolma", "wikipedia", "arrow"):
        (directory / name).mkdir()
    for number, part in enumerate(parts):
        records = [
            {"text": text, "url": f"https://example.org/{i}", "timestamp": "2019-04-25T12:57:54Z"}
            for i, text in enumerate(part)
        ]
        lines = "\n".join(map(json.dumps, records)).encode() + b"\n"
        with gzip.open(directory / "c4" / f"c4-train.0000{number}-of-00002.json.gz", "wb") as file:
            file.write(lines)
        records = [{"id": str(i), "text": text, "source": "x"} for i, text in enumerate(part)]
        path = directory / "dolma" / f"v1_7-000{number}.jsonl.zst"
        path.write_bytes(zstandard.compress("\n".join(map(json.dumps, records)).encode()))
        columns = {"id": list(map(str, range(len(part)))), "title": ["A"] * len(part), "text": part}
        table = pyarrow.table(columns)
        path = directory / "wikipedia" / f"train-0000{number}-of-00002.parquet"
        parquet.write_table(table, path, row_group_size=100)
        path = directory / "arrow" / f"cache-0000{number}.arrow"
        with (
            pyarrow.OSFile(str(path), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table)
    return {name: str(directory / name) for name in ("c4", "dolma", "wikipedia", "arrow")}


def test_the_same_documents_give_the_same_shards_whatever_they_lie_in(
    text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    documents = text.read_text().strip("\n").split("\n\n")
    prepare([str(text)], TOKENIZER, tmp_path / "plain", workers=1)
    expected = content(tmp_path / "plain")
    del expected[MANIFEST]
    for name, directory in layouts(tmp_path, documents).items():
        manifest = prepare([directory], TOKENIZER, tmp_path / f"out-{name}", workers=1)
        found = content(tmp_path / f"out-{name}")
        del found[MANIFEST]
        assert found == expected, name
        assert manifest.totals == read_manifest(tmp_path / "plain").totals


def test_the_directory_is_complete(text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "deep" / "out"
    manifest = prepare([str(text)], TOKENIZER, out, workers=1, shards=4, license="CC0")
    assert read_manifest(out) == manifest
    assert load_tokenizer(out).fingerprint() == manifest.tokenizer_fingerprint
    assert manifest.vocab_size == len(TOKENIZER.tokens)
    assert manifest.options["inputs"] == [str(text)]
    assert (manifest.options["shards"], manifest.options["license"]) == (4, "CC0")
    names = {info.name for info in manifest.train_shards + manifest.eval_shards}
    assert set(content(out)) == names | {"manifest.json", "vocab.txt", "tokenizer_config.json"}
    assert os.listdir(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_workers_change_nothing(text: pathlib.Path, tmp_path: pathlib.Path, workers: int) -> None:
    options = {"eval_fraction": 0.05, "shards": 8}
    for name, number in (("one", 1), ("other", workers)):
        prepare([str(text)], TOKENIZER, tmp_path / name, workers=number, **options)  # type: ignore[arg-type]
    assert content(tmp_path / "one") == content(tmp_path / "other")


def test_duplicates_are_dropped_on_request(tmp_path: pathlib.Path) -> None:
    once = small(tmp_path / "once.txt")
    twice = tmp_path / "twice.txt"
    twice.write_text(f"{pathlib.Path(once).read_text()}\n" * 2)

    def made(name: str, source: str, dedup: bool) -> Manifest:
        out = tmp_path / name
        return prepare([source], TOKENIZER, out, workers=1, eval_fraction=0, dedup=dedup)

    kept, dropped = made("kept", str(twice), False), made("dropped", str(twice), True)
    assert kept.totals["documents"] == 80
    assert (dropped.totals["documents"], dropped.totals["duplicate_documents"]) == (40, 40)
    assert dropped.train == made("reference", once, True).train


def test_blank_lines_and_lines_without_pieces_make_no_documents(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\nba do.\n \n\u200b\n\n\n\t\nki.\n\u00ad\nlu\n\n")
    manifest = prepare([str(path)], TOKENIZER, tmp_path / "out", workers=1, eval_fraction=0)
    assert documents_of(tmp_path / "out", "train") == ["ba do .", "ki .\nlu"]
    assert manifest.totals["empty_documents"] == 1
    assert manifest.totals["empty_sentences"] == 1
    assert manifest.eval_shards == []


def test_progress_is_a_line_every_ten_seconds_in_a_file_and_one_in_a_terminal(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    looks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: next(looks) / 1000)
    monkeypatch.setattr(prepare_module, "time", clock)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    source = small(tmp_path / "a.txt")
    for stream, pattern in (
        (io.StringIO(), ""),
        (
            Terminal(),
            r"(\r\x1b\[K.*)?\r\x1b\[K40 documents, 0\.0 MB of text, .* pieces/s\n",
        ),
    ):
        out = tmp_path / type(stream).__name__
        prepare([source], TOKENIZER, out, workers=1, eval_fraction=0, progress=stream)
        assert re.fullmatch(pattern, stream.getvalue())


# What is refused


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"eval_fraction": -0.1}, "eval_fraction is -0.1; choose a share from 0"),
        ({"eval_fraction": 1.0}, "eval_fraction is 1.0; choose a share from 0"),
        ({"eval_fraction": float("nan")}, "eval_fraction is nan"),
        ({"shards": 0}, "shards is 0; choose 1 or more"),
        ({"shards": 21}, "shards=21 is too many"),
        ({"eval_fraction": 1 - 1e-9}, "puts 0 of 40 documents into the train split"),
    ],
)
def test_options_that_cannot_work(
    tmp_path: pathlib.Path, options: dict[str, float], complaint: str
) -> None:
    source = small(tmp_path / "a.txt")
    options = {"eval_fraction": 0, **options}
    with pytest.raises(InputError, match=complaint):
        prepare([source], TOKENIZER, tmp_path / "out", workers=1, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_input_leaves_nothing_behind(tmp_path: pathlib.Path, workers: int) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(sample_text(seed=1, documents=3000).encode() + b"\xff")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"a\.txt: byte \d+ is not UTF-8"):
        prepare([str(source)], TOKENIZER, tmp_path / "out", workers=workers)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out"]
    assert os.listdir(tmp_path / "out") == []


def test_a_corpus_of_one_document_is_refused(tmp_path: pathlib.Path) -> None:
    source = small(tmp_path / "a.txt", documents=1)
    with pytest.raises(InputError, match="one document only"):
        prepare([source], TOKENIZER, tmp_path / "out", workers=1)


@pytest.mark.parametrize("name", ["manifest.json", "thesis.tex"])
def test_an_output_that_holds_something_is_left_alone(tmp_path: pathlib.Path, name: str) -> None:
    source = small(tmp_path / "a.txt")
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("years of work")
    with pytest.raises(InputError, match=r"out already holds .*; choose another output"):
        prepare([source], TOKENIZER, out, workers=1)
    assert (out / name).read_text() == "years of work"
    with pytest.raises(InputError, match="is a file; choose another output directory"):
        prepare([source], TOKENIZER, out / name, workers=1)


def test_an_empty_output_is_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    prepare([small(tmp_path / "a.txt")], TOKENIZER, tmp_path / "out", workers=1, eval_fraction=0)
    read_manifest(tmp_path / "out")


def test_a_second_preparation_of_the_same_output_is_refused(tmp_path, monkeypatch) -> None:
    """And leaves the first alone, whatever it is given."""
    source, out = small(tmp_path / "a.txt"), tmp_path / "out"
    other = small(tmp_path / "b.txt", documents=50)
    real, refused = Spool.commit_segment, []

    def commit_segment(self) -> None:
        with pytest.raises(InputError, match="out is being prepared by another process") as error:
            prepare([other], TOKENIZER, out, workers=1)
        refused.append(error)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "commit_segment", commit_segment)
        prepare([source], TOKENIZER, out, workers=1)
    prepare([source], TOKENIZER, tmp_path / "whole", workers=1)
    assert refused and content(out) == content(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "out", "whole"]


def test_an_output_can_be_prepared_after_one_that_was_refused_or_killed(tmp_path) -> None:
    source, out = small(tmp_path / "a.txt"), tmp_path / "out"
    (tmp_path / "out.partial.lock").touch()  # nobody holds it
    with pytest.raises(InputError, match="shards=21 is too many"):
        prepare([source], TOKENIZER, out, workers=1, eval_fraction=0, shards=21)
    prepare([source], TOKENIZER, out, workers=1, eval_fraction=0)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out"]


# What survives

PREPARE = """
import sys
from data_pipelines.corpus import prepare as prepare_module
from data_pipelines.corpus.prepare import prepare
from data_pipelines.vocabulary.tokenization import load_tokenizer

if __name__ == "__main__":
    text, vocab, output = sys.argv[1:]
    prepare([text], load_tokenizer(vocab), output, workers=2, shards=8, progress=sys.stderr)
"""


@contextlib.contextmanager
def endless(tmp_path: pathlib.Path, *command: object) -> Iterator[tuple[Any, list[Any]]]:
    """A process that reads an input that never ends, and its workers once they are at work."""
    source = tmp_path / "text.fifo"
    os.mkfifo(source)
    TOKENIZER.save(tmp_path / "vocab")
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=process_environment() | {"PYTHONPATH": os.getcwd()},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with source.open("w") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(sample_text(seed=1, documents=5000))
            pipe.flush()
            workers = psutil.Process(process.pid).children(recursive=True)
            while len(workers) < 2 and process.poll() is None:
                time.sleep(0.05)
                workers = psutil.Process(process.pid).children(recursive=True)
            yield process, workers
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_a_preparation_that_is_stopped_says_so_and_leaves_no_workers(tmp_path, numbers) -> None:
    if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored here, as it is in the background of a script")
    given = ["--input", tmp_path / "text.fifo", "--vocab", tmp_path / "vocab", "--workers", 2]
    verb = ["-m", "bertjax", "prepare", *given, "--output", tmp_path / "out"]
    with endless(tmp_path, *verb) as (process, workers):
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.2)
        assert process.wait(LONG) == 75
        lines = process.stderr.read().splitlines()
    assert lines[-1] == "bertjax: stopped: run the same command again."
    assert not any("Traceback" in line for line in lines)
    assert not psutil.wait_procs(workers, timeout=LONG)[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_corpus_and_no_workers(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    given = "-c", PREPARE, tmp_path / "text.fifo", tmp_path / "vocab", out
    with endless(tmp_path, *given) as (process, workers):
        assert (tmp_path / "out.partial").is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not out.exists()
    for leftover in (out, tmp_path / "out.partial"):
        with pytest.raises(InputError):
            read_manifest(leftover)
    gone, alive = psutil.wait_procs(workers, timeout=LONG)
    assert gone
    assert not alive

    prepare([small(tmp_path / "a.txt")], TOKENIZER, out, workers=1, eval_fraction=0)
    assert read_manifest(out).totals["documents"] == 40
    assert not (tmp_path / "out.partial").exists()
