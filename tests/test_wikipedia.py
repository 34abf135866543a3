"""Articles of dumps: which pages, in which order, from which files."""

import bz2
import gzip
import json
import pathlib
import random
import re
import subprocess
import sys

import pytest
from conftest import TOKENIZER
from document_files import COMPRESS, content, every_compression, read, save
from wikipedia_dumps import make_pages, to_bytes, to_multistream, to_xml

pytest.importorskip("mwparserfromhell", reason="needs pip install 'bertjax[wikipedia]'")

from data_pipelines.corpus import prepare as prepare_module
from data_pipelines.corpus import spool
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.errors import InputError
from data_pipelines.text.sources import ReadOptions, read_documents, read_source

PAGES = make_pages(seed=1, articles=20)
ARTICLES = [page.passages for page in PAGES if page.passages is not None]


@every_compression
def test_articles_of_dumps_are_documents(
    tmp_path: pathlib.Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert read(save(tmp_path / f"x-pages-articles.xml{suffix}", to_bytes(PAGES))) == ARTICLES
    assert "documents are articles of a Wikipedia dump (passages), such as " in caplog.text
    assert "20 articles; left out: 7 redirects, 4 disambiguation pages, 5 other" in caplog.text


@pytest.mark.parametrize("pages_per_stream", [1, 1000])
def test_multistream_dumps_are_read_in_parallel(tmp_path, pages_per_stream: int) -> None:
    path = tmp_path / "dump"  # a dump is recognized by its content
    path.write_bytes(to_bytes(PAGES))
    assert read(str(path)) == ARTICLES
    path = tmp_path / "dump.bz2"
    path.write_bytes(to_multistream(PAGES, pages_per_stream))
    assert list(read_documents([str(path)], workers=2)) == ARTICLES


def test_read_source_skips_articles(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "dump.xml", to_bytes(PAGES))
    for skip in (0, 1, 19, 20):
        assert list(read_source(path, ReadOptions(), skip=skip)) == ARTICLES[skip:]


def test_incomplete_dumps_are_rejected(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "dump.xml", to_bytes(PAGES)[:-100])
    with pytest.raises(InputError, match=r"dump\.xml: incomplete\. Download it again, or append"):
        read(path)
    cut = to_bytes(PAGES)[:-100] + b"</mediawiki>"  # as enwik8
    assert read(save(tmp_path / "cut.xml", cut)) == ARTICLES[:-1]


def test_dumps_need_a_library(tmp_path: pathlib.Path, monkeypatch) -> None:
    path = save(tmp_path / "dump.xml", to_bytes(PAGES))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Run pip install 'bertjax\[wikipedia\]'\.$"):
        read(path)
    assert len(read(path, wikitext="markup")) == 20


def test_pages_that_cannot_be_parsed_are_reported(tmp_path, monkeypatch, caplog) -> None:
    def parse(text: str, skip_style_tags: bool) -> None:
        raise RecursionError

    monkeypatch.setattr("mwparserfromhell.parse", parse)
    assert read(save(tmp_path / "dump.xml", to_bytes(PAGES))) == [[]] * 20
    assert (
        f"20 articles cannot be parsed and are empty. The first: {PAGES[0].title}." in caplog.text
    )


@pytest.mark.parametrize(
    ("template", "is_left_out"),
    [
        ("Airport disambiguation", True),
        ("disambiguation cleanup|date=x", True),
        ("disambiguation needed|date=x", False),
        ("for|a|B (disambiguation)", False),
    ],
)
def test_disambiguation_pages_are_left_out(tmp_path, template: str, is_left_out: bool) -> None:
    text = to_bytes(PAGES[:1]).decode().replace("</text>", f"{{{{{template}}}}}</text>")
    assert read(save(tmp_path / "a.xml", text)) == ([] if is_left_out else ARTICLES[:1])


def test_pages_of_other_models_are_left_out(tmp_path: pathlib.Path) -> None:
    text = to_bytes(PAGES).decode().replace("<model>wikitext", "<model>wikibase-item")
    assert read(save(tmp_path / "a.xml", text)) == []


def test_dumps_of_old_versions_and_of_histories_are_read(tmp_path: pathlib.Path) -> None:
    text = to_bytes(PAGES).decode()
    old = text.replace("<ns>0</ns>", "").replace("<ns>1</ns>", "").replace("<redirect ", "<x ")
    assert read(save(tmp_path / "old.xml", old)) == ARTICLES
    revision = '<revision><id>1</id><text bytes="4">Old.</text></revision>\n    <revision>'
    assert read(save(tmp_path / "history.xml", text.replace("<revision>", revision))) == ARTICLES


@pytest.mark.slow
def test_main_writes_ids_and_titles(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "dump.xml", to_bytes(PAGES[:9]))
    output = tmp_path / "articles.jsonl"
    command = [sys.executable, "-m", "data_pipelines.text.wikipedia", path, "--output", output]
    subprocess.run(command, check=True)
    records = list(map(json.loads, output.read_text().splitlines()))
    assert read(str(output)) == [page.passages for page in PAGES[:9] if page.passages is not None]
    pages = [page for page in PAGES[:9] if page.passages is not None]
    assert [(r["id"], r["title"]) for r in records] == [(str(p.id), p.title) for p in pages]
    assert [r["text"].split("\n") for r in records] == [page.passages for page in pages]


class _KilledError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2])
def test_prepare_of_a_dump_resumes_with_the_same_bytes(
    tmp_path: pathlib.Path, monkeypatch, workers: int
) -> None:
    """A preparation of two dumps is killed after each of its first segments."""
    sources = [str(tmp_path / "a.xml.bz2"), str(tmp_path / "b.xml.gz")]
    pathlib.Path(sources[0]).write_bytes(to_multistream(make_pages(2, 40)))
    pathlib.Path(sources[1]).write_bytes(gzip.compress(to_bytes(make_pages(3, 30))))
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(prepare_module, "_BATCH_CHARS", 8_000)
    options = CorpusOptions(num_shards=2)
    prepare(sources, TOKENIZER, tmp_path / "whole", options, workers=1)

    commit = spool.Spool.commit_segment

    def commit_and_die(self) -> None:
        commit(self)
        raise _KilledError

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(spool.Spool, "commit_segment", commit_and_die)
            with pytest.raises(_KilledError):
                prepare(sources, TOKENIZER, tmp_path / "out", options, workers=workers)
    prepare(sources, TOKENIZER, tmp_path / "out", options, workers=workers)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


MUTATIONS = 12  # 1,000 were run once


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_mutations_of_a_dump_keep_the_articles(tmp_path: pathlib.Path, seed: int) -> None:
    check_mutation(tmp_path, seed)


def check_mutation(directory: pathlib.Path, seed: int) -> None:
    """Check that line ends, order of elements, escapes and compression change no article."""
    rng = random.Random(seed)
    pages = make_pages(seed, 3)
    expected = [page.passages for page in pages if page.passages is not None]
    parts = [text for part in to_xml(pages) for text in ([part] if isinstance(part, str) else part)]
    if rng.random() < 0.3:
        parts[0] = f'<?xml version="1.0" encoding="utf-8"?>\n<!-- x -->\n{parts[0]}'
    if rng.random() < 0.3:
        parts = [part.replace("\n", "\r\n") for part in parts]
    if rng.random() < 0.3:
        parts = [re.sub(r"(\s*<title>.*</title>)(\s*<ns>.*</ns>)", r"\2\1", p) for p in parts]
    if rng.random() < 0.3:
        parts = [part.replace("&quot;", rng.choice(['"', "&#34;", "&#x22;"])) for part in parts]
    if rng.random() < 0.3:
        parts = [re.sub(r">\s+<(?=[a-z/])", "><", part) for part in parts]
    if rng.random() < 0.3:
        parts[0] = f"\ufeff{parts[0]}"
    suffix = rng.choice([*COMPRESS, "multistream"])
    content = [part.encode() for part in parts]
    path = directory / f"{seed}.xml{suffix if suffix != 'multistream' else '.bz2'}"
    whole = COMPRESS.get(suffix, bytes)(b"".join(content))
    if suffix == "multistream":
        whole = b"".join(map(bz2.compress, content))
    path.write_bytes(whole)
    assert read(str(path)) == expected, (seed, path.name)
