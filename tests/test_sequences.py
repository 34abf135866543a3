"""Tests of drawing, packing and masking of sequences."""

import dataclasses

import numpy as np
import pytest
from corpus_shards import WHOLE, generator
from hypothesis import given
from hypothesis import strategies as st
from pretraining_corpora import restored

from data_pipelines.corpus.shards import Shard
from data_pipelines.pretraining.options import BATCH_ARRAYS, PretrainingOptions
from data_pipelines.pretraining.packing import pack
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.sequences import (
    TARGET_NONPAD_FRACTION,
    PackedPairs,
    choose_sequences,
    chunk_tokens,
    count_sequences_to_keep,
    draw_sequences,
    make_batch_arrays,
    max_section_tokens,
    render_sequence,
)
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
TOKENIZER = WordPieceTokenizer(
    SPECIAL_TOKENS + [f"w{i}" for i in range(60)] + [f"##c{i}" for i in range(30)], cased=False
)


def make_shard(seed: int = 0, documents: int = 60) -> Shard:
    """Documents of 1 to 12 sentences of 1 to 25 tokens, none of them special."""
    rng = generator(seed)
    counts = 1 + (rng.random(documents) * 12).astype(int)
    sizes = 1 + (rng.random(counts.sum()) * 25).astype(int)
    tokens = (6 + rng.random(sizes.sum()) * 90).astype(np.uint16)
    return Shard(tokens, np.cumsum([0, *sizes]), np.cumsum([0, *counts]))


SHARD = make_shard()
SECTIONS = Sections.from_shard(SHARD, WHOLE)
DOCUMENTS = np.arange(60)


def make_batch(
    options: PretrainingOptions, seed: int = 0
) -> tuple[dict[str, np.ndarray], PackedPairs]:
    """Return all sequences of the documents, and their packed pairs."""
    pairs, sequence_of_pair = draw_sequences(SECTIONS, DOCUMENTS, options, generator(seed))
    order = np.argsort(sequence_of_pair, kind="stable")
    draws = generator(seed + 1).random((sequence_of_pair.max() + 1, options.draws_per_sequence))
    packed = PackedPairs(SHARD, pairs.take(order), sequence_of_pair[order], draws)
    return make_batch_arrays([packed], len(draws), options, TOKENIZER), packed


# ---------------------------------------------------------------- drawing


@pytest.mark.parametrize("packing", [True, False])
def test_draw_sequences_draws_min_sequences(packing):
    options = PretrainingOptions(64, 8, packing=packing)
    _, sequence_of_pair = draw_sequences(SECTIONS, DOCUMENTS, options, generator(0))
    natural = int(sequence_of_pair.max()) + 1
    for minimum in (1, natural, natural + 1, 2 * natural, 5 * natural):
        pairs, sequence_of_pair = draw_sequences(
            SECTIONS, DOCUMENTS, options, generator(0), minimum
        )
        assert len(set(sequence_of_pair.tolist())) == sequence_of_pair.max() + 1 >= minimum
        assert len(pairs) == len(sequence_of_pair)


def test_draw_sequences_draws_only_a_few_documents_again():
    options = PretrainingOptions(64, 8)
    pairs, sequence_of_pair = draw_sequences(SECTIONS, DOCUMENTS, options, generator(0))
    more, sequence_of_more = draw_sequences(
        SECTIONS, DOCUMENTS, options, generator(0), int(sequence_of_pair.max()) + 3
    )
    assert len(pairs) < len(more) < 1.2 * len(pairs)
    first = slice(len(pairs))
    np.testing.assert_array_equal(more.take(first).a_start, pairs.a_start)
    np.testing.assert_array_equal(sequence_of_more[first], sequence_of_pair)


def test_count_sequences_to_keep_reaches_the_target_on_average():
    sections, options = Sections.from_shard(make_shard(3, 3000), WHOLE), PretrainingOptions(128, 8)
    pairs, sequence_of_pair = draw_sequences(sections, np.arange(3000), options, generator(0))
    filled = np.bincount(sequence_of_pair, pairs.lengths) / 128
    kept = count_sequences_to_keep(pairs, sequence_of_pair, options)
    target = TARGET_NONPAD_FRACTION
    assert filled[:kept].mean() >= target
    assert kept == len(filled) or filled[: kept + 1].mean() < target


def single_segments(text_lengths: np.ndarray) -> Pairs:
    starts, zeros = np.cumsum(text_lengths) - text_lengths, np.zeros_like(text_lengths)
    return Pairs(starts, text_lengths, starts + text_lengths, zeros, zeros)


def test_count_sequences_to_keep_keeps_all_that_cannot_be_dense():
    """Leaving out the emptiest would leave out the same texts in every epoch."""
    pairs = single_segments(np.arange(63, 113))  # a pair of them does not fit
    options = PretrainingOptions(128, 8, objective="mlm")
    sequence_of_pair = pack(pairs.lengths, np.ones(50, np.int64), options.sequence_limits)
    assert count_sequences_to_keep(pairs, sequence_of_pair, options) == 50


def test_choose_sequences_leaves_out_none_for_certain_and_the_emptier_more_often():
    pairs, options = single_segments(np.arange(63, 113)), PretrainingOptions(128, 8)
    counts = np.zeros(50, int)
    for seed in range(500):
        chosen = choose_sequences(pairs, np.arange(50), 40, options, generator(seed))
        assert len(chosen) == 40 and (np.diff(chosen) > 0).all()
        counts[chosen] += 1
    assert counts.min() > 200
    assert counts[:25].mean() < 0.9 * counts[25:].mean()  # the emptier half


@pytest.mark.parametrize("max_seq_length", [8, 32, 128, 512, 4096])
def test_sections_hold_many_sequences_and_chunks_many_sections(max_seq_length):
    section, chunk = max_section_tokens(max_seq_length), chunk_tokens(max_seq_length)
    assert section >= max(4096, 32 * max_seq_length) and section % max_seq_length == 0
    assert chunk >= max(8 * section, 1024 * max_seq_length)


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_draw_sequences_packs_densely(objective):
    sections = Sections.from_shard(make_shard(3, 3000), WHOLE)
    options = PretrainingOptions(128, 8, objective=objective)
    pairs, sequence_of_pair = draw_sequences(sections, np.arange(3000), options, generator(0))
    assert np.mean(np.bincount(sequence_of_pair, pairs.lengths) / 128) > 0.97


def test_count_sequences_to_keep_without_packing_keeps_all():
    options = PretrainingOptions(64, 8, packing=False)
    pairs, sequence_of_pair = draw_sequences(SECTIONS, DOCUMENTS, options, generator(0))
    assert sequence_of_pair.tolist() == list(range(len(pairs)))
    assert count_sequences_to_keep(pairs, sequence_of_pair, options) == len(pairs)


# ---------------------------------------------------------------- batch arrays


CASES = st.fixed_dictionaries(
    {
        "max_seq_length": st.sampled_from([8, 33, 64, 128]),
        "packing": st.booleans(),
        "objective": st.sampled_from(["mlm_nsp", "mlm"]),
        "masking": st.sampled_from(["token", "whole_word", "span"]),
        "mlm_probability": st.sampled_from([0.01, 0.15, 0.5, 1.0]),
        "max_predictions_per_seq": st.sampled_from([None, 1, 3, 8]),
        "short_seq_prob": st.sampled_from([0.0, 0.1, 1.0]),
    }
)


@pytest.mark.seconds
@given(CASES, st.integers(0, 2**32))
def test_make_batch_arrays_makes_valid_sequences(fields, seed):
    options = PretrainingOptions(batch_size=8, **fields)
    batch, packed = make_batch(options, seed)
    for name, like in options.empty_batch(len(packed.draws)).items():
        assert batch[name].dtype == like.dtype and batch[name].shape == like.shape
    assert list(batch) == list(BATCH_ARRAYS)

    input_ids, real = restored(batch), batch["example_ids"] > 0
    assert not input_ids[~real].any()
    assert np.isin(input_ids[real], [2, 3, *TOKENIZER.text_token_ids]).all()
    assert real.sum() == packed.pairs.lengths.sum()
    assert (np.diff(real.astype(int), axis=1) <= 0).all()  # padding is at the end

    # Exactly n positions in each pair, ascending, none of them special.
    weights, positions = batch["masked_lm_weights"], batch["masked_lm_positions"]
    sequence, slot = np.nonzero(weights)
    assert np.isin(weights, [0, 1]).all()
    assert (input_ids[sequence, positions[sequence, slot]] > 5).all()
    ascending = np.diff(positions, axis=1)[(weights[:, 1:] > 0)]
    assert (ascending > 0).all()
    example_ids = batch["example_ids"][sequence, positions[sequence, slot]]
    max_examples = options.sequence_limits.examples
    counts = np.zeros((len(weights), max_examples), int)
    np.add.at(counts, (sequence, example_ids - 1), 1)
    counts = counts[np.arange(max_examples) < np.bincount(packed.sequence)[:, None]]
    special = 3 if options.objective == "mlm_nsp" else 2
    for n, length in zip(counts.tolist(), packed.pairs.lengths.tolist(), strict=True):
        limit = min(
            options.sequence_limits.predictions,
            max(1, round(options.mlm_probability * length)),
            length - special,
        )
        assert n == limit


@pytest.mark.seconds
@given(CASES, st.integers(0, 2**32))
def test_make_batch_arrays_writes_each_pair(fields, seed):
    options = PretrainingOptions(batch_size=8, **fields)
    batch, packed = make_batch(options, seed)
    input_ids = restored(batch)
    slots = np.arange(len(packed.sequence)) - np.searchsorted(packed.sequence, packed.sequence)
    for i in range(0, len(packed.pairs), 7):
        sequence, slot = packed.sequence[i], slots[i]
        in_pair = batch["example_ids"][sequence] == slot + 1
        a = SHARD.tokens[packed.pairs.a_start[i] :][: packed.pairs.a_length[i]]
        b = SHARD.tokens[packed.pairs.b_start[i] :][: packed.pairs.b_length[i]]
        expected = [2, *a, 3, *b, 3] if len(b) else [2, *a, 3]
        assert input_ids[sequence][in_pair].tolist() == expected
        assert batch["position_ids"][sequence][in_pair].tolist() == list(range(len(expected)))
        assert batch["token_type_ids"][sequence][in_pair].sum() == (len(b) + 1 if len(b) else 0)
        assert input_ids[sequence, batch["cls_positions"][sequence, slot]] == 2
        assert batch["next_sentence_labels"][sequence, slot] == packed.pairs.is_random[i]
        assert batch["next_sentence_weights"][sequence, slot] == (options.objective == "mlm_nsp")


def test_make_batch_arrays_with_full_sentences_makes_one_text():
    options = PretrainingOptions(64, 8, objective="mlm")
    apart, packed = make_batch(options)
    across = make_batch_arrays(
        [packed], len(packed.draws), dataclasses.replace(options, full_sentences=True), TOKENIZER
    )
    assert apart["example_ids"].max() > 1
    real = apart["example_ids"] > 0
    np.testing.assert_array_equal(across["example_ids"], real)
    np.testing.assert_array_equal(across["position_ids"], np.where(real, np.arange(64), 0))
    for name in BATCH_ARRAYS:
        assert across[name].dtype == apart[name].dtype
        if name not in ("example_ids", "position_ids"):
            np.testing.assert_array_equal(across[name], apart[name])


def test_make_batch_arrays_pads_with_weight_zero():
    options = PretrainingOptions(64, 8)
    batch, packed = make_batch(options)
    longer = make_batch_arrays([packed], len(packed.draws) + 3, options, TOKENIZER)
    for name, array in batch.items():
        np.testing.assert_array_equal(longer[name][:-3], array)
        assert not longer[name][-3:].any()
    for array in make_batch_arrays([], 4, options, TOKENIZER).values():
        assert len(array) == 4 and not array.any()


def test_make_batch_arrays_does_not_depend_on_the_parts():
    """Any split of a chunk into parts gives the same sequences."""
    options = PretrainingOptions(64, 8)
    whole, packed = make_batch(options)
    parts = []
    for first, last in ((0, 1), (1, 6), (6, len(packed.draws))):
        at = slice(*np.searchsorted(packed.sequence, (first, last)))
        parts.append(
            PackedPairs(
                packed.shard,
                packed.pairs.take(at),
                packed.sequence[at] - first,
                packed.draws[first:last],
            )
        )
    cut = make_batch_arrays(parts, len(packed.draws), options, TOKENIZER)
    for name, array in whole.items():
        np.testing.assert_array_equal(cut[name], array, err_msg=name)


def test_make_batch_arrays_masks_whole_words():
    batch, _ = make_batch(PretrainingOptions(128, 8, masking="whole_word"))
    input_ids = restored(batch)
    chosen = np.zeros(input_ids.shape, bool)
    sequence, slot = np.nonzero(batch["masked_lm_weights"])
    chosen[sequence, batch["masked_lm_positions"][sequence, slot]] = True
    is_continuation = TOKENIZER.is_continuation[input_ids[:, 1:]]
    after_text = input_ids[:, :-1] > 5
    joined = is_continuation & after_text
    assert joined.any()
    assert (chosen[:, 1:] == chosen[:, :-1])[
        joined
    ].mean() > 0.99  # except where no whole word fits


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"mask_replace_prob": 1.0, "random_replace_prob": 0.0}, "mask"),
        ({"mask_replace_prob": 0.0, "random_replace_prob": 0.0}, "same"),
        ({"mask_replace_prob": 0.0, "random_replace_prob": 1.0}, "random"),
    ],
)
def test_make_batch_arrays_with_replacement_probability_one(fields, allowed):
    batch, _ = make_batch(PretrainingOptions(128, 8, **fields))
    sequence, slot = np.nonzero(batch["masked_lm_weights"])
    inputs = batch["input_ids"][sequence, batch["masked_lm_positions"][sequence, slot]]
    token_ids = batch["masked_lm_ids"][sequence, slot]
    if allowed == "mask":
        assert (inputs == TOKENIZER.mask_id).all()
    elif allowed == "same":
        assert (inputs == token_ids).all()
    else:
        assert set(inputs) == set(TOKENIZER.text_token_ids.tolist())
        assert 0 < (inputs == token_ids).mean() < 0.1


def test_random_tokens_are_independent_of_replacement():
    batches = [make_batch(PretrainingOptions(128, 8), seed)[0] for seed in range(20)]
    inputs, token_ids = (
        np.concatenate([pick(batch) for batch in batches])
        for pick in (
            lambda batch: np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)[
                batch["masked_lm_weights"] > 0
            ],
            lambda batch: batch["masked_lm_ids"][batch["masked_lm_weights"] > 0],
        )
    )
    random = inputs[(inputs != TOKENIZER.mask_id) & (inputs != token_ids)]
    assert set(random) == set(TOKENIZER.text_token_ids.tolist())


def test_random_tokens_all_draws_from_the_whole_vocabulary():
    fields = {"mask_replace_prob": 0.0, "random_replace_prob": 1.0, "random_tokens": "all"}
    batch, _ = make_batch(PretrainingOptions(128, 8, **fields))
    sequence, slot = np.nonzero(batch["masked_lm_weights"])
    inputs = batch["input_ids"][sequence, batch["masked_lm_positions"][sequence, slot]]
    assert set(inputs) == set(range(len(TOKENIZER.tokens)))


# ---------------------------------------------------------------- rendering


def test_render_sequence_shows_labels_and_masks():
    options = PretrainingOptions(16, 1, max_examples_per_seq=2, max_predictions_per_seq=2)
    batch = options.empty_batch(1)
    batch["input_ids"][0, :14] = [2, 6, 4, 3, 7, 66, 3, 2, 8, 3, 9, 10, 11, 3]
    batch["example_ids"][0, :14] = [1] * 7 + [2] * 7
    batch["masked_lm_positions"][0] = [2, 11]
    batch["masked_lm_ids"][0] = [12, 10]
    batch["masked_lm_weights"][0] = 1
    batch["next_sentence_labels"][0] = [0, 1]
    batch["next_sentence_weights"][0] = 1
    assert render_sequence(batch, 0, TOKENIZER).split("\n") == [
        "next: [CLS] w0 ⟦w6→[MASK]⟧ [SEP] w1 ##c0 [SEP]",
        "random: [CLS] w2 [SEP] w3 ⟦w4→w4⟧ w5 [SEP]",
    ]
    batch["next_sentence_weights"][0] = 0
    assert render_sequence(batch, 0, TOKENIZER).startswith("[CLS] w0")
    assert render_sequence(options.empty_batch(1), 0, TOKENIZER) == ""
