"""Tests of the statistics of a corpus and of their report."""

import dataclasses
import re

import numpy as np
import pytest
from conftest import TOKENIZER

from bertjax.cli.main import main
from bertjax.reports import corpus as corpus_report
from bertjax.reports.corpus import describe_corpus
from bertjax.reports.writer import write_report
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.corpus_statistics import compute_corpus_statistics, shard_imbalance
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions


@pytest.fixture(scope="module")
def statistics(corpus):
    return compute_corpus_statistics(corpus, max_seq_lengths=(64,))


def test_statistics_sample_shards_from_the_whole_corpus(corpus, statistics) -> None:
    shard_infos = read_manifest(corpus).train_shards
    assert statistics.sampled_shards[0] == shard_infos[0].name
    assert statistics.sampled_shards[-1] == shard_infos[-1].name
    assert len(statistics.sampled_shards) == 4
    assert 0 <= shard_imbalance(shard_infos) < 0.05


def test_statistics_have_the_lengths_of_the_sampled_text(corpus, statistics) -> None:
    shard_infos = {info.name: info for info in read_manifest(corpus).train_shards}
    shards = [read_shard(corpus, shard_infos[name]) for name in statistics.sampled_shards]
    sentences = np.concatenate([np.diff(shard.sentences) for shard in shards])
    assert statistics.sentence_tokens[-1] == sentences.max()
    assert statistics.sentence_tokens[2] in (
        int(np.median(sentences)),
        int(np.median(sentences) + 0.5),
    )
    documents = np.concatenate([np.diff(shard.sentences[shard.documents]) for shard in shards])
    assert statistics.document_tokens[-1] == documents.max()


@pytest.mark.seconds
def test_packing_statistics_equal_those_of_training(corpus, statistics) -> None:
    (packing,) = statistics.packing
    data = PretrainingData(corpus, PretrainingOptions(64, 8))
    assert packing.sequences_per_epoch == pytest.approx(data.sequences_per_epoch, rel=0.02)
    batches = [data.batch(step) for step in range(data.sequences_per_epoch // 8)]
    nonpad_fraction = np.mean([batch["example_ids"] > 0 for batch in batches])
    assert packing.nonpad_fraction == pytest.approx(nonpad_fraction, abs=0.02)
    labels = [
        batch["next_sentence_labels"].sum() / batch["next_sentence_weights"].sum()
        for batch in batches
    ]
    assert packing.random_fraction == pytest.approx(np.mean(labels), abs=0.05)
    seen = packing.seen_fractions
    assert list(seen) == sorted(seen) and seen[0] > 0.95 and seen[2] > 0.999


@pytest.mark.seconds
def test_statistics_of_uneven_shards(tmp_path) -> None:
    text = tmp_path / "a.txt"
    documents = ["\n".join(["ba do ki."] * 900), *["\n".join(["me no."] * 6)] * 12]
    text.write_text("\n\n".join(documents))
    prepare([str(text)], TOKENIZER, tmp_path / "corpus", CorpusOptions(0, num_shards=2))
    (packing,) = compute_corpus_statistics(tmp_path / "corpus", [32]).packing
    assert packing.nonpad_fraction > 0.8 and packing.seen_fractions[2] > 0.97


def test_statistics_have_the_scripts_of_letters(statistics) -> None:
    assert statistics.scripts == (("Latin", 1.0),)


@pytest.mark.parametrize(
    ("scripts", "warning"),
    [
        ((("Latin", 0.96), ("Cyrillic", 0.04)), None),
        ((("Hiragana", 0.5), ("Han", 0.3), ("Katakana", 0.18), ("Latin", 0.02)), None),
        ((("Latin", 0.9), ("Cyrillic", 0.1)), "scripts=Latin+Cyrillic: if these are several"),
    ],
)
def test_report_warns_of_a_second_script(statistics, monkeypatch, scripts, warning) -> None:
    statistics = dataclasses.replace(statistics, scripts=scripts)
    monkeypatch.setattr(corpus_report, "compute_corpus_statistics", lambda directory: statistics)
    lines = [line for line in describe_corpus("") if "warning" in line]
    assert len(lines) == (warning is not None) and all(warning in line for line in lines)
    assert ("directory for each" in corpus_report.render_corpus(statistics.directory, "x")) == bool(
        lines
    )


def test_inspect_prints_the_facts_of_the_report(corpus, tmp_path, capsys) -> None:
    assert main(["inspect", "--corpus", str(corpus)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines() == "\n".join(describe_corpus(corpus)).splitlines()
    assert "text seen in 1 epoch" in text
    assert re.search(r"documents +400, \d+ of them in the eval split", text)
    path = write_report(corpus)
    try:
        page = path.read_text()
    finally:
        path.unlink()
    assert "text seen in 1 epoch" in page and "Sample documents" in page


def test_statistics_reject_a_directory_that_is_no_corpus(tmp_path) -> None:
    with pytest.raises(InputError, match="not a finished corpus"):
        compute_corpus_statistics(tmp_path)


@pytest.mark.parametrize(
    "argument",
    ["--config.steps=3", "--steps=1", "--start=0", "--num-processes=1", "--output=x", "--params"],
)
def test_inspect_corpus_rejects_options_of_a_run(tmp_path, capsys, argument) -> None:
    assert main(["inspect", "--corpus", str(tmp_path), argument]) == 2
    sentence = capsys.readouterr().err
    option = argument.partition("=")[0]
    assert f"{option}: belongs to a run, not to --corpus. Leave it out." in sentence
