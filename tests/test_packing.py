"""Tests of the assignment of pairs to sequences and of the batch arrays."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.packing import SequenceLimits, pack, write_pairs
from data_pipelines.pretraining.pairs import Pairs


@st.composite
def loads(draw):
    """Draw limits, and pairs within them: lengths [P], predictions [P]."""
    limits = SequenceLimits(
        draw(st.integers(8, 64)), draw(st.integers(1, 12)), draw(st.integers(1, 5))
    )
    pairs = st.tuples(st.integers(5, limits.tokens), st.integers(1, limits.predictions))
    drawn = np.array(draw(st.lists(pairs, min_size=1, max_size=40)))
    return limits, drawn[:, 0], drawn[:, 1]


@pytest.mark.seconds
@given(loads())
def test_pack_respects_the_limits(load):
    limits, lengths, predictions = load
    sequence = pack(lengths, predictions, limits)
    assert np.bincount(sequence, lengths).max() <= limits.tokens
    assert np.bincount(sequence, predictions).max() <= limits.predictions
    assert np.bincount(sequence).max() <= limits.examples


@given(loads())
def test_pack_leaves_no_sequence_empty(load):
    limits, lengths, predictions = load
    sequence = pack(lengths, predictions, limits)
    assert len(sequence) == len(lengths)
    assert np.bincount(sequence).min() >= 1


@given(loads())
def test_pack_numbers_sequences_from_the_fullest(load):
    limits, lengths, predictions = load
    assert (np.diff(np.bincount(pack(lengths, predictions, limits), lengths)) <= 0).all()


@given(st.lists(st.integers(5, 64), min_size=1, max_size=60))
def test_pack_leaves_at_most_one_sequence_half_empty(lengths):
    sequence = pack(np.array(lengths), np.ones(len(lengths), int), SequenceLimits(64, 99, 99))
    assert np.count_nonzero(np.bincount(sequence, lengths) <= 32) <= 1


def test_pack_chooses_the_best_fit():
    lengths = np.array([60, 50, 14, 4])
    sequence = pack(lengths, np.ones(4, int), SequenceLimits(64, 9, 9))
    assert sequence.tolist() == [0, 1, 1, 0]


def test_pack_closes_a_sequence_at_each_limit():
    lengths = np.array([10, 10, 10])
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 3, 3)).max() == 0
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(29, 3, 3)).max() == 1
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 2, 3)).max() == 1
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 3, 2)).max() == 1


def test_pack_skips_a_sequence_without_free_predictions():
    lengths, predictions = np.array([40, 39, 20]), np.array([5, 1, 2])
    assert pack(lengths, predictions, SequenceLimits(64, 6, 9)).tolist() == [1, 0, 0]


def pack_by_scan(lengths: np.ndarray, predictions: np.ndarray, limits: SequenceLimits) -> list:
    """Return what `pack` does, from a scan over all sequences for each pair."""
    sequences: list[list[int]] = []  # room, free predictions and free examples
    sequence_of_pair = np.zeros(len(lengths), int)
    for pair in np.argsort(-lengths, kind="stable"):
        needs = lengths[pair], predictions[pair], 1
        fits = [
            (free[0], i)
            for i, free in enumerate(sequences)
            if all(np.greater_equal(free, needs)) and free[1]
        ]
        if not fits:
            fits = [(limits.tokens, len(sequences))]
            sequences.append([limits.tokens, limits.predictions, limits.examples])
        sequence_of_pair[pair] = sequence = min(fits)[1]
        sequences[sequence] = np.subtract(sequences[sequence], needs).tolist()
    order = np.argsort([free[0] for free in sequences], kind="stable")
    return np.argsort(order)[sequence_of_pair].tolist()


@given(loads())
def test_pack_equals_a_scan_over_all_sequences(load):
    limits, lengths, predictions = load
    sequence = pack(lengths, predictions, limits)
    assert sequence.tolist() == pack_by_scan(lengths, predictions, limits)


@pytest.mark.parametrize("least_need", [1, 10])
@pytest.mark.parametrize("max_predictions", [32, 64])
def test_pack_of_many_pairs_equals_a_scan_over_all_sequences(max_predictions, least_need):
    """Scans are long where predictions are the limit."""
    rng = np.random.default_rng(0)
    predictions = rng.integers(10, 33, 400)
    lengths = predictions + rng.integers(8, 40, 400)
    predictions[lengths.argmin()] = least_need
    limits = SequenceLimits(512, max_predictions, 64)
    assert pack(lengths, predictions, limits).tolist() == pack_by_scan(lengths, predictions, limits)


@pytest.mark.parametrize("least_need", [1, 10])
def test_pack_is_fast_if_predictions_are_the_limit(least_need):
    """Sequences with room but too few free predictions took 8 s and more for these pairs."""
    rng = np.random.default_rng(0)
    predictions = rng.integers(10, 33, 20_000)
    lengths = predictions + rng.integers(8, 40, 20_000)
    predictions[lengths.argmin()] = least_need
    start = time.process_time()
    sequence = pack(lengths, predictions, SequenceLimits(512, 32, 64))
    assert time.process_time() - start < 2  # 0.1 s
    assert sequence.max() < 14_500
    assert np.bincount(sequence, predictions).max() <= 32
    assert np.bincount(sequence, lengths).max() <= 512


CLS, SEP = 1, 2


def make_pairs(rng: np.random.Generator, count: int, single: bool) -> Pairs:
    a, b = 1 + (rng.random((2, count)) * 9).astype(np.int64)
    at = (rng.random((2, count)) * 80).astype(np.int64)
    is_random = (rng.random(count) < 0.5).astype(np.int64)
    return Pairs(at[0], a, at[1], 0 * b if single else b, is_random)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_write_pairs_equals_a_loop_over_tokens(seed, single):
    rng = np.random.Generator(np.random.Philox(key=seed))
    shard_tokens = (10 + rng.random(100) * 90).astype(np.uint16)
    pairs = make_pairs(rng, 30, single)
    options = PretrainingOptions(
        max_seq_length=48, batch_size=1, max_examples_per_seq=3, max_predictions_per_seq=40
    )
    sequence = pack(pairs.lengths, np.ones(30, int), options.sequence_limits)
    order = np.argsort(sequence, kind="stable")
    pairs, sequence = pairs.take(order), sequence[order]
    batch = options.empty_batch(int(sequence.max()) + 2)  # the last sequence stays empty
    cells, segments = write_pairs(
        shard_tokens[pairs.token_indices], pairs, sequence, batch, CLS, SEP
    )

    expected = options.empty_batch(int(sequence.max()) + 2)
    expected_cells, expected_segments = [], []
    columns, slots = np.zeros((2, len(expected["input_ids"])), int)
    for i in range(len(pairs)):
        a = shard_tokens[pairs.a_start[i] :][: pairs.a_length[i]].tolist()
        b = shard_tokens[pairs.b_start[i] :][: pairs.b_length[i]].tolist()
        tokens = [CLS, *a, SEP] + ([] if single else [*b, SEP])
        index = sequence[i]
        column, slot = columns[index], slots[index]
        at = slice(column, column + len(tokens))
        expected["input_ids"][index, at] = tokens
        expected["token_type_ids"][index, at] = [int(k > len(a) + 1) for k in range(len(tokens))]
        expected["example_ids"][index, at] = slot + 1
        expected["position_ids"][index, at] = range(len(tokens))
        expected["cls_positions"][index, slot] = column
        expected["next_sentence_labels"][index, slot] = pairs.is_random[i]
        expected["next_sentence_weights"][index, slot] = not single
        for k, token in enumerate(tokens):
            if token > SEP:
                expected_cells.append(index * 48 + column + k)
                expected_segments.append(2 * i + (k > len(a) + 1))
        columns[index] += len(tokens)
        slots[index] += 1
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)
    assert cells.tolist() == expected_cells and segments.tolist() == expected_segments
