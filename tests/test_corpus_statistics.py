"""What a corpus holds, and what becomes of it in rows, is told before it is trained on."""

import dataclasses

import numpy as np
import pytest

from bertjax.cli.main import main
from bertjax.reports import corpus as corpus_report
from bertjax.reports.corpus import describe_corpus
from bertjax.reports.run import write_report
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.corpus_statistics import compute_corpus_statistics, shard_imbalance
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions


@pytest.fixture(scope="module")
def found(corpus):
    return compute_corpus_statistics(corpus, seq_lens=(64,))


def test_shards_are_sampled_over_the_whole_corpus(corpus, found) -> None:
    shard_infos = read_manifest(corpus).train
    assert (
        found.sampled_shards[0] == shard_infos[0].name
        and found.sampled_shards[-1] == shard_infos[-1].name
    )
    assert len(found.sampled_shards) == 4
    assert 0 <= shard_imbalance(shard_infos) < 0.05


def test_lengths_are_those_of_the_sampled_text(corpus, found) -> None:
    shard_infos = {info.name: info for info in read_manifest(corpus).train}
    shards = [read_shard(corpus, shard_infos[name]) for name in found.sampled_shards]
    sentences = np.concatenate([np.diff(shard.sentences) for shard in shards])
    assert found.sentence_tokens[-1] == sentences.max()
    assert found.sentence_tokens[2] in (int(np.median(sentences)), int(np.median(sentences) + 0.5))
    documents = np.concatenate([np.diff(shard.sentences[shard.documents]) for shard in shards])
    assert found.document_tokens[-1] == documents.max()


def test_rows_are_those_of_training(corpus, found) -> None:
    (rows,) = found.rows
    data = PretrainingData(corpus, PretrainingOptions(64, 8))
    assert rows.rows == pytest.approx(data.sequences_per_epoch, rel=0.02)
    batches = [data.batch(step) for step in range(data.sequences_per_epoch // 8)]
    nonpad_fraction = np.mean([batch["example_ids"] > 0 for batch in batches])
    assert rows.nonpad_fraction == pytest.approx(nonpad_fraction, abs=0.02)
    labels = [
        batch["next_sentence_labels"].sum() / batch["next_sentence_weights"].sum()
        for batch in batches
    ]
    assert rows.random == pytest.approx(np.mean(labels), abs=0.05)
    assert list(rows.seen) == sorted(rows.seen) and rows.seen[0] > 0.95 and rows.seen[2] > 0.999


def test_scripts_are_those_of_the_letters(found) -> None:
    assert found.scripts == (("Latin", 1.0),)


@pytest.mark.parametrize(
    ("scripts", "warning"),
    [
        ((("Latin", 0.96), ("Cyrillic", 0.04)), None),
        ((("Hiragana", 0.5), ("Han", 0.3), ("Katakana", 0.18), ("Latin", 0.02)), None),
        ((("Latin", 0.9), ("Cyrillic", 0.1)), "text is in Latin and Cyrillic: if these are"),
    ],
)
def test_a_second_script_is_warned_of(found, monkeypatch, scripts, warning) -> None:
    found = dataclasses.replace(found, scripts=scripts)
    monkeypatch.setattr(corpus_report, "compute_corpus_statistics", lambda directory: found)
    lines = [line for line in describe_corpus("") if "warning" in line]
    assert len(lines) == (warning is not None) and all(warning in line for line in lines)
    assert ("directory for each" in corpus_report.render_corpus(found.directory, "x")) == bool(
        lines
    )


def test_the_command_and_the_page_say_the_same(corpus, tmp_path, capsys) -> None:
    assert main(["inspect", "--corpus", str(corpus)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines() == "\n".join(describe_corpus(corpus)).splitlines()
    assert "text seen in a pass" in text and "400, of which" in text
    path = write_report(corpus)
    try:
        page = path.read_text()
    finally:
        path.unlink()
    assert "text seen in a pass" in page and "How documents begin" in page


def test_what_is_no_corpus_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="is not a finished corpus"):
        compute_corpus_statistics(tmp_path)


@pytest.mark.parametrize(
    "given",
    ["--config.steps=3", "--steps=1", "--start=0", "--num-processes=1", "--output=x", "--params"],
)
def test_what_is_of_a_run_is_refused(tmp_path, capsys, given) -> None:
    assert main(["inspect", "--corpus", str(tmp_path), given]) == 2
    sentence = capsys.readouterr().err
    assert (
        f"{given.partition('=')[0].replace('.steps', '.*')} is of a run: leave it out" in sentence
    )
