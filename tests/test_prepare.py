"""Tests of the preparation of a corpus."""

import csv
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import types

import pyarrow
import pytest
import zstandard
from conftest import TOKENIZER, sample_text
from document_files import content, small
from pyarrow import parquet

from data_pipelines.corpus import prepare as prepare_module
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import MANIFEST, Manifest, read_manifest, read_shard
from data_pipelines.corpus.spool import Spool
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer

NO_EVAL = CorpusOptions(eval_fraction=0)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """3,000 documents, a megabyte: several batches."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(sample_text(seed=2, documents=3000))
    return path


def documents_of(directory: pathlib.Path, split: str, shard: str | None = None) -> list[str]:
    """Return the documents of a split or of one shard, one sentence per line."""
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


# Content


def test_prepare_warns_of_unequal_shards(tmp_path, caplog):
    text = tmp_path / "text.txt"
    words = "ba do ki lu"
    text.write_text("\n\n".join([f"{words} {n}." for n in range(40)] + [f"{words} no. " * 60]))
    prepare([str(text)], TOKENIZER, tmp_path / "even", NO_EVAL, workers=1)
    assert "Omit num_shards" not in caplog.text
    prepare(
        [str(text)],
        TOKENIZER,
        tmp_path / "uneven",
        CorpusOptions(eval_fraction=0, num_shards=4),
        workers=1,
    )
    assert "because some documents are longer than a shard should be" in caplog.text


def test_prepare_warns_once_of_poor_vocabulary_coverage(tmp_path, caplog) -> None:
    lines = {"known.txt": "ba do ki.", "greek.txt": "ναι οχι.", "thai.txt": "ที่นี่ วันนี้ กำลัง."}
    for name, line in lines.items():
        (tmp_path / name).write_text(f"{line}\n\n" * 9)
    inputs = [str(tmp_path / name) for name in lines]
    prepare(inputs, TOKENIZER, tmp_path / "corpus", workers=1)
    (warning,) = [message for message in caplog.messages if "poor coverage" in message]
    assert re.search(r"greek\.txt \(\d+% of the characters unknown\); ", warning)
    assert re.search(r"thai\.txt \(\d+% of the letters stripped as accents", warning)
    assert "known.txt" not in warning


@pytest.mark.seconds
def test_prepare_writes_all_documents(text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    manifest = prepare(
        [str(text)], TOKENIZER, tmp_path / "out", CorpusOptions(eval_fraction=0.1), workers=1
    )
    written = text.read_text().strip("\n").split("\n\n")
    train_documents, eval_documents = (
        documents_of(tmp_path / "out", split) for split in ("train", "eval")
    )
    assert sorted(train_documents + eval_documents) == sorted(written)
    for info in manifest.train_shards:
        shard = documents_of(tmp_path / "out", "train", info.name)
        assert shard == [document for document in written if document in set(shard)]
    assert 200 < len(eval_documents) < 400
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
    """Write the documents in the formats of public corpora."""
    half = len(documents) // 2
    parts = documents[:half], documents[half:]
    names = ("c4", "dolma", "wikipedia", "arrow", "csv", "json", "wikiextractor")
    for name in names:
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
        with (directory / "csv" / f"train{number}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "text"], *enumerate(part)])
        (directory / "json" / f"train{number}.json").write_text(json.dumps(records, indent=1))
        blocks = [f'<doc id="{i}" title="A">\nA\n\n{text}\n</doc>\n' for i, text in enumerate(part)]
        (directory / "wikiextractor" / f"AA{number}").mkdir()
        (directory / "wikiextractor" / f"AA{number}" / "wiki_00").write_text("".join(blocks))
    return {name: str(directory / name) for name in names}


@pytest.mark.seconds
def test_prepare_writes_equal_shards_for_every_input_format(
    text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    documents = text.read_text().strip("\n").split("\n\n")
    prepare([str(text)], TOKENIZER, tmp_path / "plain", workers=1)
    expected = content(tmp_path / "plain")
    del expected[MANIFEST]
    for name, directory in layouts(tmp_path, documents).items():
        manifest = prepare([directory], TOKENIZER, tmp_path / f"out-{name}", workers=1)
        files = content(tmp_path / f"out-{name}")
        del files[MANIFEST]
        assert files == expected, name
        assert manifest.totals == read_manifest(tmp_path / "plain").totals


@pytest.mark.seconds
def test_prepare_writes_a_complete_directory(text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "deep" / "out"
    manifest = prepare(
        [str(text)], TOKENIZER, out, CorpusOptions(num_shards=4, license="CC0"), workers=1
    )
    assert read_manifest(out) == manifest
    assert load_tokenizer(out).fingerprint() == manifest.tokenizer_fingerprint
    assert manifest.vocab_size == len(TOKENIZER.tokens)
    assert manifest.options["inputs"] == [str(text)]
    assert (manifest.options["num_shards"], manifest.options["license"]) == (4, "CC0")
    names = {info.name for info in manifest.train_shards + manifest.eval_shards}
    assert set(content(out)) == names | {"manifest.json", "vocab.txt", "tokenizer_config.json"}
    assert os.listdir(tmp_path / "deep") == ["out"]


@pytest.mark.seconds
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_prepare_does_not_depend_on_workers(
    text: pathlib.Path, tmp_path: pathlib.Path, workers: int
) -> None:
    options = {"eval_fraction": 0.05, "num_shards": 8}
    for name, number in (("one", 1), ("other", workers)):
        prepare([str(text)], TOKENIZER, tmp_path / name, CorpusOptions(**options), workers=number)
    assert content(tmp_path / "one") == content(tmp_path / "other")


@pytest.mark.seconds
def test_prepare_drops_duplicates_on_request(tmp_path: pathlib.Path) -> None:
    once = small(tmp_path / "once.txt")
    twice = tmp_path / "twice.txt"
    twice.write_text(f"{pathlib.Path(once).read_text()}\n" * 2)

    def made(name: str, source: str, dedup: bool) -> Manifest:
        out = tmp_path / name
        return prepare(
            [source], TOKENIZER, out, CorpusOptions(eval_fraction=0, dedup=dedup), workers=1
        )

    kept, dropped = made("kept", str(twice), False), made("dropped", str(twice), True)
    assert kept.totals["documents"] == 80
    assert (dropped.totals["documents"], dropped.totals["duplicate_documents"]) == (40, 40)
    assert dropped.train_shards == made("reference", once, True).train_shards


def test_prepare_drops_documents_without_tokens(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\nba do.\n \n\u200b\n\n\n\t\nki.\n\u00ad\nlu\n\n")
    manifest = prepare([str(path)], TOKENIZER, tmp_path / "out", NO_EVAL, workers=1)
    assert documents_of(tmp_path / "out", "train") == ["ba do .", "ki .\nlu"]
    assert manifest.totals["empty_documents"] == 1
    assert manifest.totals["empty_sentences"] == 1
    assert manifest.eval_shards == []


def test_progress_is_redrawn_in_a_terminal_and_rare_in_a_file(
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
        (Terminal(), r"(\r\x1b\[K.*)?\r\x1b\[K40 documents, 0\.0 MB of text, .* tokens/s\n"),
    ):
        out = tmp_path / type(stream).__name__
        prepare([source], TOKENIZER, out, NO_EVAL, workers=1, progress=stream)
        assert re.fullmatch(pattern, stream.getvalue())


# Invalid input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_fraction": -0.1}, r"eval_fraction=-0.1: not in \[0, 1\)\. Use 0 for no"),
        ({"eval_fraction": 1.0}, r"eval_fraction=1.0: not in \[0, 1\)\. Use 0 for no"),
        ({"eval_fraction": float("nan")}, "eval_fraction=nan: not in"),
        ({"num_shards": 0}, "num_shards=0: below the minimum. Use at least 1"),
        ({"num_shards": 21}, "num_shards=21: too many for 40 train documents"),
        ({"eval_fraction": 1 - 1e-9}, ": 0 of 40 documents in the train split"),
    ],
)
def test_prepare_rejects_invalid_options(
    tmp_path: pathlib.Path, options: dict[str, float], message: str
) -> None:
    source = small(tmp_path / "a.txt")
    options = {"eval_fraction": 0, **options}
    with pytest.raises(InputError, match=message):
        prepare([source], TOKENIZER, tmp_path / "out", CorpusOptions(**options), workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.seconds
@pytest.mark.parametrize("workers", [1, 2])
def test_prepare_leaves_nothing_after_invalid_input(tmp_path: pathlib.Path, workers: int) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(sample_text(seed=1, documents=3000).encode() + b"\xff")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"a\.txt: byte \d+ is not UTF-8"):
        prepare([str(source)], TOKENIZER, tmp_path / "out", workers=workers)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out"]
    assert os.listdir(tmp_path / "out") == []


def test_prepare_rejects_a_corpus_of_one_document(tmp_path: pathlib.Path) -> None:
    source = small(tmp_path / "a.txt", documents=1)
    with pytest.raises(
        InputError, match="documents=1: a random next sentence needs another document"
    ):
        prepare([source], TOKENIZER, tmp_path / "out", workers=1)


@pytest.mark.parametrize("name", ["manifest.json", "thesis.tex"])
def test_prepare_keeps_the_files_of_a_nonempty_output(tmp_path: pathlib.Path, name: str) -> None:
    source = small(tmp_path / "a.txt")
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("years of work")
    with pytest.raises(InputError, match=r"out: already contains .*\. Choose another output"):
        prepare([source], TOKENIZER, out, workers=1)
    assert (out / name).read_text() == "years of work"
    with pytest.raises(InputError, match=r"is a file\. Choose another output directory"):
        prepare([source], TOKENIZER, out / name, workers=1)


def test_prepare_accepts_an_empty_output(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    prepare([small(tmp_path / "a.txt")], TOKENIZER, tmp_path / "out", NO_EVAL, workers=1)
    read_manifest(tmp_path / "out")


def test_prepare_rejects_an_output_in_preparation(tmp_path, monkeypatch) -> None:
    """The first preparation continues undisturbed."""
    source, out = small(tmp_path / "a.txt"), tmp_path / "out"
    other = small(tmp_path / "b.txt", documents=50)
    real, errors = Spool.commit_segment, []

    def commit_segment(self) -> None:
        with pytest.raises(InputError, match="out: another process prepares this corpus") as error:
            prepare([other], TOKENIZER, out, workers=1)
        errors.append(error)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "commit_segment", commit_segment)
        prepare([source], TOKENIZER, out, workers=1)
    prepare([source], TOKENIZER, tmp_path / "whole", workers=1)
    assert errors and content(out) == content(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "out", "whole"]


def test_prepare_succeeds_after_a_failed_or_killed_preparation(tmp_path) -> None:
    source, out = small(tmp_path / "a.txt"), tmp_path / "out"
    (tmp_path / "out.partial.lock").touch()  # not locked
    with pytest.raises(InputError, match="num_shards=21: too many"):
        prepare([source], TOKENIZER, out, CorpusOptions(eval_fraction=0, num_shards=21), workers=1)
    prepare([source], TOKENIZER, out, NO_EVAL, workers=1)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out"]
