"""Tests of the sequences of a corpus: epochs, streams, content, real text."""

import dataclasses
import itertools
import pathlib
import time

import numpy as np
import pytest
from pretraining_corpora import (
    TOKENIZER,
    TRAIN_DOCUMENTS,
    assert_equal,
    check_processes,
    documents_of,
    equal,
    options,
    restored,
    write_corpus,
)

from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import read_manifest
from data_pipelines.pretraining import corpus_sequences
from data_pipelines.pretraining.corpus_sequences import CorpusSequences
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.sequences import draw_sequences
from data_pipelines.vocabulary.tokenization import load_tokenizer


@pytest.fixture
def corpus(tiny_corpus: pathlib.Path, small_chunks: None) -> pathlib.Path:
    return tiny_corpus


# ---------------------------------------------------------------- epochs


def test_epochs_have_equal_length_and_differ(corpus):
    """With a batch of 1, the step is the index of the sequence."""
    data = PretrainingData(corpus, options(batch_size=1))
    epoch = data.sequences_per_epoch
    same = [equal(data.batch(step), data.batch(step + epoch)) for step in range(0, epoch, 7)]
    assert not any(same)


@pytest.mark.seconds
def test_sequences_of_an_epoch_have_different_masks(corpus):
    """Full sequences of one pair would have equal positions if they shared random numbers."""
    data = PretrainingData(corpus, options(batch_size=1, packing=False))
    batches = [data.batch(step) for step in range(data.sequences_per_epoch)]
    full = [batch["masked_lm_positions"] for batch in batches if batch["example_ids"].all()]
    assert len(full) > 100
    assert len({positions.tobytes() for positions in full}) == len(full)


@pytest.mark.seconds
@pytest.mark.parametrize("dupe_factor", [1, 3])
def test_dupe_factor_repeats_epochs(corpus, dupe_factor):
    data = PretrainingData(corpus, options(batch_size=1, dupe_factor=dupe_factor))
    epoch = data.sequences_per_epoch
    for step in range(0, epoch, 7):
        assert_equal(data.batch(step), data.batch(step + dupe_factor * epoch))
        for between in range(1, dupe_factor):
            assert not equal(data.batch(step), data.batch(step + between * epoch))


def test_seed_changes_the_batches(corpus):
    one, other = (PretrainingData(corpus, options(seed=seed)) for seed in (1, 2))
    assert one.sequences_per_epoch == other.sequences_per_epoch
    assert not equal(one.batch(0), other.batch(0))


@pytest.mark.seconds
@pytest.mark.parametrize("packing", [True, False])
def test_epochs_cover_the_corpus(corpus, packing):
    data = PretrainingData(corpus, options(batch_size=1, packing=packing))
    epoch = range(data.sequences_per_epoch)
    seen = set().union(*(documents_of(restored(data.batch(step))) for step in epoch))
    assert len(seen) > 0.97 * TRAIN_DOCUMENTS
    for step in epoch:
        seen |= documents_of(restored(data.batch(step + len(epoch))))
    assert seen == set(range(TRAIN_DOCUMENTS))


@pytest.mark.seconds
@pytest.mark.parametrize("objective", ["mlm", "clm"])
@pytest.mark.parametrize(
    ("shortest", "min_filled"), [(1, 0.95), (32, 0.7)], ids=["many a sequence", "one a sequence"]
)
def test_documents_of_one_segment_are_all_read(tmp_path, objective, shortest, min_filled):
    """Such as tweets or abstracts: no epoch cuts them otherwise, so none may always be left out."""
    numbers = range(TRAIN_DOCUMENTS)
    documents = [f"w{number} " * (shortest + number % 25) for number in numbers]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    no_eval = CorpusOptions(eval_fraction=0)
    prepare([str(tmp_path / "text.txt")], TOKENIZER, tmp_path / "corpus", no_eval, workers=1)
    data = PretrainingData(tmp_path / "corpus", options(1, objective=objective))
    batches = [data.batch(step) for step in range(20 * data.sequences_per_epoch)]
    seen = set().union(*(documents_of(batch["input_ids"]) for batch in batches))
    assert seen >= set(numbers)
    assert np.mean([batch["example_ids"] > 0 for batch in batches]) > min_filled


def test_batch_without_packing_has_one_pair_per_sequence(corpus):
    data = PretrainingData(corpus, options(packing=False))
    batch = data.batch(0)
    assert batch["example_ids"].max() == 1 and batch["next_sentence_weights"].shape == (16, 1)
    assert data.sequences_per_epoch > PretrainingData(corpus, options()).sequences_per_epoch


@pytest.mark.seconds
@pytest.mark.parametrize(("shards", "repeats"), [(3, 1), (8, 1), (24, 1), (8, 20)])
def test_streams_pass_over_all_shards_equally_often(tmp_path, small_chunks, shards, repeats):
    """Holds too if a document is longer than a shard should be and shards are unequal."""
    corpus = write_corpus(tmp_path, shards, sizes=[10] * 6, repeats=repeats)
    data = PretrainingData(corpus, options())
    passes = 12
    counts = np.zeros(shards)
    for step in range(passes * data.sequences_per_epoch // 16):
        for input_ids in restored(data.batch(step)):
            (shard,) = {document % shards for document in documents_of(input_ids)}
            counts[shard] += 1
    counts /= [info.tokens for info in read_manifest(corpus).train_shards]
    # Counts are whole numbers: 31 instead of 30 sequences of a shard.
    assert counts.max() / counts.min() < (1.02 if repeats == 1 else 1.05)


@pytest.mark.seconds
@pytest.mark.parametrize("shards", [1, 3])
def test_streams_that_share_shards_read_each_sequence_once(tmp_path, small_chunks, shards):
    """The random numbers of its masks identify a sequence."""
    corpus = corpus_sequences.Corpus(write_corpus(tmp_path, shards), "train")

    def read(streams: int, count: int) -> list[bytes]:
        source = CorpusSequences(
            corpus, options(), streams, range(streams), 16, lambda make, size: make()
        )
        return [
            draws.tobytes()
            for stream in range(streams)
            for packed in source.packed_pairs(stream, 0, count)
            for draws in packed.draws
        ]

    count = PretrainingData(tmp_path, options()).sequences_per_epoch
    identities = read(5, count)
    assert sorted(identities) == sorted(read(1, 5 * count))
    assert len(set(identities)) == len(identities)


def test_batch_draws_from_all_parts_of_a_single_shard(tmp_path, small_chunks):
    """A chunk has some ten documents, so one or two chunks would give few."""
    data = PretrainingData(write_corpus(tmp_path, shards=1), options())
    counts = [len(documents_of(restored(data.batch(step)))) for step in range(20)]
    assert np.mean(counts) > 30


@pytest.mark.seconds
def test_batch_makes_the_chunks_of_all_streams_only_in_the_first_step(
    tmp_path, small_chunks, monkeypatch
):
    data = PretrainingData(write_corpus(tmp_path, shards=4), options(batch_size=4))
    calls = []
    monkeypatch.setattr(
        corpus_sequences, "draw_sequences", lambda *a: calls.append(a) or draw_sequences(*a)
    )
    counts = []
    for step in range(3 * data.sequences_per_epoch // 4):
        before = len(calls)
        data.batch(step)
        counts.append(len(calls) - before)
    assert counts[0] >= 4 == data.num_streams
    assert max(counts[1:]) <= 2


# ---------------------------------------------------------------- content of a batch


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_next_sentence_labels_are_1_if_b_is_of_another_document(corpus, masking):
    data = PretrainingData(corpus, options(masking=masking))
    labels = []
    for step in range(20):
        batch = data.batch(step)
        input_ids = restored(batch)
        for sequence, slot in zip(*np.nonzero(batch["next_sentence_weights"]), strict=True):
            in_pair = batch["example_ids"][sequence] == slot + 1
            a, b = (
                documents_of(
                    input_ids[sequence][in_pair & (batch["token_type_ids"][sequence] == type_id)]
                )
                for type_id in (0, 1)
            )
            assert len(a) == len(b) == 1
            assert batch["next_sentence_labels"][sequence, slot] == (a != b)
            labels.append(a != b)
    assert 0.5 < np.mean(labels) < 0.65


def test_single_segments_have_no_b_and_no_label(corpus):
    batch = PretrainingData(corpus, options(objective="mlm")).batch(0)
    assert not batch["token_type_ids"].any() and not batch["next_sentence_weights"].any()
    assert not batch["next_sentence_labels"].any()
    pairs = batch["example_ids"].max(axis=1)
    assert ((batch["input_ids"] == TOKENIZER.sep_id).sum(axis=1) == pairs).all()
    assert (batch["masked_lm_weights"].sum(axis=1) > 0).all()


@pytest.mark.parametrize(
    "fields", [{"max_seq_length": 8}, {"max_predictions_per_seq": 1}, {"mlm_probability": 1.0}]
)
def test_batch_with_extreme_options(corpus, fields):
    data = PretrainingData(corpus, options(**fields))
    for step in range(3):
        batch = data.batch(step)
        assert (batch["masked_lm_weights"].sum(axis=1) > 0).all()
        assert (batch["example_ids"][:, 0] == 1).all()


# ---------------------------------------------------------------- real text


@pytest.fixture(scope="module")
def wiki(data_dir, tmp_path_factory) -> pathlib.Path:
    tokenizer = load_tokenizer(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    directory = tmp_path_factory.mktemp("wiki") / "corpus"
    prepare([str(data_dir / "text" / "wiki_en.txt.xz")], tokenizer, directory, workers=1)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("max_seq_length", [128, 512])
def test_real_text_fills_sequences(wiki, max_seq_length):
    data = PretrainingData(wiki, PretrainingOptions(max_seq_length, 256))
    batches = [data.batch(step) for step in range(0, data.sequences_per_epoch // 256, 4)]
    assert np.mean([batch["example_ids"] > 0 for batch in batches]) >= 0.98
    labels = sum(batch["next_sentence_labels"].sum() for batch in batches)
    assert 0.5 < labels / sum(batch["next_sentence_weights"].sum() for batch in batches) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_masks_of_real_text(wiki, masking):
    """A million predictions: replaced within 0.002, exact counts, no special token, whole words."""
    data = PretrainingData(wiki, PretrainingOptions(128, 256, masking=masking))
    is_continuation = data.tokenizer.is_continuation
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    broken = joins = 0
    for step in itertools.count():
        batch = data.batch(step)
        sequence, slot = np.nonzero(batch["masked_lm_weights"])
        positions = batch["masked_lm_positions"][sequence, slot]
        inputs.append(batch["input_ids"][sequence, positions])
        targets.append(batch["masked_lm_ids"][sequence, slot])
        lengths, counts = np.zeros((2, 256, 9), int)
        np.add.at(lengths, (np.arange(256)[:, None], batch["example_ids"]), 1)
        np.add.at(counts, (sequence, batch["example_ids"][sequence, positions]), 1)
        expected = np.minimum(20, np.maximum(1, np.rint(0.15 * lengths)))
        real = (lengths > 0) & (np.arange(9) > 0)
        assert (counts == expected)[real].all()
        if masking == "whole_word":
            input_ids = restored(batch)
            chosen = np.zeros(input_ids.shape, bool)
            chosen[sequence, positions] = True
            inside = is_continuation[input_ids[:, 1:]] & (
                input_ids[:, :-1] != data.tokenizer.sep_id
            )
            inside &= input_ids[:, :-1] != data.tokenizer.cls_id
            broken += np.count_nonzero((chosen[:, 1:] != chosen[:, :-1])[inside])
            joins += np.count_nonzero(inside)
        if sum(map(len, inputs)) >= 1_000_000:
            break
    assert broken <= 0.002 * joins  # where no remaining word fits
    shown, target = np.concatenate(inputs), np.concatenate(targets)
    tokenizer = data.tokenizer
    special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert not np.isin(target, special).any()
    random = (shown != tokenizer.mask_id) & (shown != target)
    assert np.mean(shown == tokenizer.mask_id) == pytest.approx(0.8, abs=0.002)
    assert np.mean(shown == target) == pytest.approx(0.1, abs=0.002)
    assert np.mean(random) == pytest.approx(0.1, abs=0.002)
    assert np.isin(shown[random], tokenizer.text_token_ids).all()


@pytest.mark.slow
def test_any_step_is_reached_in_seconds(wiki):
    began = time.perf_counter()
    PretrainingData(wiki, PretrainingOptions(128, 256)).batch(1_000_000)
    assert time.perf_counter() - began < 100  # the batches before it would take days


@pytest.mark.slow
def test_real_text_does_not_depend_on_processes_or_the_first_step(wiki):
    chosen = PretrainingOptions(128, 64)
    alone = PretrainingData(wiki, chosen)
    for num_processes in (2, 8):
        check_processes(wiki, chosen, num_processes, steps=(0, 25, 50, 1_000_000))
    again = PretrainingData(wiki, dataclasses.replace(chosen, workers=8))
    for step, batch in enumerate(again.dataset(25, 51).as_numpy_iterator(), 25):
        assert_equal(batch, alone.batch(step))
