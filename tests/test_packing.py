"""Rows hold what they can, never more, and each pair once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.packing import SequenceLimits, pack, write_pairs
from data_pipelines.pretraining.pairs import Pairs


@st.composite
def loads(draw):
    """A row shape, and pairs that fit into a row one by one: lengths [P], predictions [P]."""
    shape = SequenceLimits(
        draw(st.integers(8, 64)), draw(st.integers(1, 12)), draw(st.integers(1, 5))
    )
    pairs = st.tuples(st.integers(5, shape.tokens), st.integers(1, shape.slots))
    drawn = np.array(draw(st.lists(pairs, min_size=1, max_size=40)))
    return shape, drawn[:, 0], drawn[:, 1]


@given(loads())
def test_no_row_holds_more_than_it_can(load):
    shape, lengths, predictions = load
    row = pack(lengths, predictions, shape)
    assert np.bincount(row, lengths).max() <= shape.tokens
    assert np.bincount(row, predictions).max() <= shape.slots
    assert np.bincount(row).max() <= shape.pairs


@given(loads())
def test_every_pair_has_a_row_and_no_row_is_empty(load):
    shape, lengths, predictions = load
    row = pack(lengths, predictions, shape)
    assert len(row) == len(lengths)
    assert np.bincount(row).min() >= 1


@given(loads())
def test_rows_are_numbered_from_the_fullest(load):
    shape, lengths, predictions = load
    assert (np.diff(np.bincount(pack(lengths, predictions, shape), lengths)) <= 0).all()


@given(st.lists(st.integers(5, 64), min_size=1, max_size=60))
def test_at_most_one_row_is_half_empty_when_only_length_counts(lengths):
    row = pack(np.array(lengths), np.ones(len(lengths), int), SequenceLimits(64, 99, 99))
    assert np.count_nonzero(np.bincount(row, lengths) <= 32) <= 1


def test_a_pair_goes_where_it_leaves_least_room():
    lengths = np.array([60, 50, 14, 4])
    row = pack(lengths, np.ones(4, int), SequenceLimits(64, 9, 9))
    assert row.tolist() == [0, 1, 1, 0]


def test_each_of_the_three_limits_closes_a_row():
    lengths = np.array([10, 10, 10])
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 3, 3)).max() == 0
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(29, 3, 3)).max() == 1
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 2, 3)).max() == 1
    assert pack(lengths, np.array([1, 1, 1]), SequenceLimits(30, 3, 2)).max() == 1


def test_a_pair_passes_over_a_row_that_lacks_slots_but_not_the_next():
    lengths, predictions = np.array([40, 39, 20]), np.array([5, 1, 2])
    assert pack(lengths, predictions, SequenceLimits(64, 6, 9)).tolist() == [1, 0, 0]


CLS, SEP = 1, 2


def make_pairs(rng: np.random.Generator, count: int, single: bool) -> Pairs:
    a, b = 1 + (rng.random((2, count)) * 9).astype(np.int64)
    at = (rng.random((2, count)) * 80).astype(np.int64)
    is_random = (rng.random(count) < 0.5).astype(np.int64)
    zeros = np.zeros(count, np.int64)
    return Pairs(at[0], a, zeros, at[1], zeros if single else b, zeros + is_random, is_random)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_laid_out_as_one_would_by_hand(seed, single):
    """Against a plain loop over pairs and their pieces."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    tokens = (10 + rng.random(100) * 90).astype(np.uint16)
    pairs = make_pairs(rng, 30, single)
    options = PretrainingOptions(
        max_seq_length=48, batch_size=1, max_examples_per_seq=3, max_predictions_per_seq=40
    )
    row = pack(pairs.lengths, np.ones(30, int), options.row)
    order = np.argsort(row, kind="stable")
    pairs, row = pairs.take(order), row[order]
    batch = options.empty_batch(int(row.max()) + 2)  # the last row stays empty
    cells, segments = write_pairs(tokens[pairs.sources], pairs, row, batch, CLS, SEP)

    expected = options.empty_batch(int(row.max()) + 2)
    expected_cells, expected_runs = [], []
    columns, slots = np.zeros((2, len(expected["input_ids"])), int)
    for i in range(len(pairs)):
        a = tokens[pairs.a_start[i] : pairs.a_start[i] + pairs.a_length[i]].tolist()
        b = tokens[pairs.b_start[i] : pairs.b_start[i] + pairs.b_length[i]].tolist()
        tokens = [CLS, *a, SEP] + ([] if single else [*b, SEP])
        r, column, slot = row[i], columns[row[i]], slots[row[i]]
        at = slice(column, column + len(tokens))
        expected["input_ids"][r, at] = tokens
        expected["token_type_ids"][r, at] = [int(k > len(a) + 1) for k in range(len(tokens))]
        expected["example_ids"][r, at] = slot + 1
        expected["position_ids"][r, at] = range(len(tokens))
        expected["cls_positions"][r, slot] = column
        expected["next_sentence_labels"][r, slot] = pairs.is_random[i]
        expected["next_sentence_weights"][r, slot] = not single
        for k, token in enumerate(tokens):
            if token > SEP:
                expected_cells.append(r * 48 + column + k)
                expected_runs.append(2 * i + (k > len(a) + 1))
        columns[r] += len(tokens)
        slots[r] += 1
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)
    assert cells.tolist() == expected_cells and segments.tolist() == expected_runs
