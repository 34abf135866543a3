"""Tests of the selection and the replacement of masked tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.masking import (
    MASKING_UNITS,
    MAX_SPAN_LENGTH,
    choose_masked_tokens,
    entity_numbers,
    prediction_counts,
    replace_masked_tokens,
    word_starts,
)


def uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).random(shape)


@st.composite
def candidates(draw):
    """Draw pairs of word lengths: (segments [C], starts [C], counts [P])."""
    words = st.lists(st.integers(1, 5), min_size=1, max_size=12)
    pairs = draw(st.lists(st.tuples(words, st.just([]) | words), min_size=1, max_size=5))
    segments, starts, counts = [], [], []
    for pair, sentences in enumerate(pairs):
        for sentence, sizes in enumerate(sentences):
            segments += [2 * pair + sentence] * sum(sizes)
            starts += [i == 0 for size in sizes for i in range(size)]
        counts.append(draw(st.integers(1, sum(map(sum, sentences)))))
    return np.array(segments), np.array(starts), np.array(counts)


def test_prediction_counts_equal_those_of_google_research_bert():
    lengths = np.arange(3, 600)
    for prob, limit in ((0.15, 20), (0.15, 1000), (0.05, 3), (0.5, 1000), (1.0, 1000)):
        expected = [min(limit, max(1, round(prob * n)), n - 3 or 1) for n in lengths.tolist()]
        counts = prediction_counts(lengths, np.maximum(lengths - 3, 1), prob, limit)
        assert counts.tolist() == expected


def test_prediction_counts_round_halves_to_even():
    assert prediction_counts(np.array([10, 30]), np.array([7, 27]), 0.25, 99).tolist() == [2, 8]


@pytest.mark.seconds
@pytest.mark.parametrize("masking", MASKING_UNITS)
@given(case=candidates(), seed=st.integers(0, 2**32))
def test_choose_masked_tokens_meets_every_count(masking, case, seed):
    segments, starts, counts = case
    draws, outside = uniform(seed, len(segments)), np.full(len(segments), -1)
    chosen = choose_masked_tokens(masking, counts, segments, starts, draws, outside)
    assert (np.bincount(segments[chosen] // 2, minlength=len(counts)) == counts).all()


@pytest.mark.seconds
@given(case=candidates(), seed=st.integers(0, 2**32))
def test_choose_masked_tokens_takes_whole_words_while_one_fits(case, seed):
    segments, starts, counts = case
    chosen = choose_masked_tokens(
        "whole_word", counts, segments, starts, uniform(seed, len(segments))
    )
    word = np.cumsum(starts) - 1
    size = np.bincount(word)
    whole = np.bincount(word, chosen) == size
    pair = segments[starts] // 2
    remaining = counts - np.bincount(pair, whole * size, len(counts))
    assert (size > remaining[pair])[~whole].all()


def test_choose_masked_tokens_masks_part_of_a_word_longer_than_the_count():
    """A line of Chinese is one word of 60 tokens for SentencePiece."""
    segments, starts = np.repeat(np.arange(0, 2000, 2), 60), np.tile(np.arange(60) == 0, 1000)
    chosen = choose_masked_tokens(
        "whole_word", np.full(1000, 9), segments, starts, uniform(2, 60_000)
    ).reshape(1000, 60)
    assert (chosen.sum(axis=1) == 9).all()
    np.testing.assert_allclose(chosen.mean(axis=0), 0.15, atol=0.05)


@pytest.mark.seconds
@given(case=candidates(), seed=st.integers(0, 2**32))
def test_choose_masked_tokens_truncates_at_most_one_span_of_a_pair(case, seed):
    segments, starts, counts = case
    chosen = choose_masked_tokens("span", counts, segments, starts, uniform(seed, len(segments)))
    word = np.cumsum(starts) - 1
    taken, size = np.bincount(word, chosen), np.bincount(word)
    partial = (taken > 0) & (taken < size)
    assert (np.bincount(segments[starts] // 2, partial) <= 1).all()


@pytest.mark.parametrize("masking", MASKING_UNITS)
def test_choose_masked_tokens_can_choose_all(masking):
    segments = np.repeat([0, 1, 2], [7, 4, 5])
    starts = word_starts(np.arange(16), segments, np.arange(16) % 3 == 1)
    counts, outside = np.array([11, 5]), np.full(16, -1)
    chosen = choose_masked_tokens(masking, counts, segments, starts, uniform(0, 16), outside)
    assert chosen.all()


@pytest.mark.seconds
@given(case=candidates(), seed=st.integers(0, 2**32))
def test_choose_masked_tokens_takes_whole_entities(case, seed):
    segments, starts, counts = case
    word = np.cumsum(starts) - 1
    entities = np.where(word // 2 % 2 == seed % 2, word // 2, -1)  # of two words, or of one
    draws = uniform(seed, len(segments))
    chosen = choose_masked_tokens("entity", counts, segments, starts, draws, entities)
    taken = np.bincount(segments[chosen] // 2, minlength=len(counts))
    assert (taken <= counts).all()
    unit = np.unique(np.stack([segments, entities]), axis=1, return_inverse=True)[1].ravel()
    inside = entities >= 0
    share = np.bincount(unit, chosen) / np.bincount(unit)
    assert np.isin(share[unit[inside]], [0, 1]).all()  # in each segment of its own
    # The count is missed only where no token outside is left, and no entity fits.
    pair = segments // 2
    assert not (~chosen & ~inside & (taken < counts)[pair]).any()
    sizes = np.bincount(unit)[unit]
    assert not (~chosen & inside & (taken[pair] + sizes <= counts[pair])).any()


def test_choose_masked_tokens_never_takes_an_entity_longer_than_the_count():
    segments, starts = np.repeat(np.arange(0, 2000, 2), 60), np.ones(60_000, bool)
    entities = np.where(np.tile(np.arange(60) < 10, 1000), segments, -1)
    for count, expected in ((9, 0), (10, 1 / 51)):  # it must come first
        counts = np.full(1000, count)
        draws = uniform(3, 60_000)
        chosen = choose_masked_tokens("entity", counts, segments, starts, draws, entities)
        assert chosen.sum() == 1000 * count
        rate = chosen[entities >= 0].mean()
        assert rate == pytest.approx(expected, abs=4 * (expected / 1000) ** 0.5)


def test_entity_numbers_are_those_of_the_spans_of_a_shard():
    spans = np.array([[2, 4], [4, 5], [8, 11]])
    numbers = entity_numbers(np.array([0, 2, 3, 4, 5, 10, 11, 3, 8]), spans)
    assert numbers.tolist() == [-1, 0, 0, 1, -1, 2, -1, 0, 2]
    assert entity_numbers(np.arange(3), spans[:0]).tolist() == [-1, -1, -1]


def test_choose_masked_tokens_chooses_tokens_uniformly():
    pairs, length, count = 40_000, 12, 5
    segments = 2 * np.repeat(np.arange(pairs), length)
    starts = np.zeros(len(segments), bool)
    draws = uniform(0, len(segments))
    chosen = choose_masked_tokens("token", np.full(pairs, count), segments, starts, draws).reshape(
        pairs, length
    )
    np.testing.assert_allclose(chosen.mean(0), count / length, atol=0.01)
    both = (chosen[:, :1] & chosen[:, 1:]).mean(0)  # without replacement
    np.testing.assert_allclose(both, count * (count - 1) / (length * (length - 1)), atol=0.01)


def test_choose_masked_tokens_chooses_words_uniformly():
    pairs, sizes = 40_000, [1, 2, 1, 2]
    starts = np.tile([i == 0 for size in sizes for i in range(size)], pairs)
    segments = 2 * np.repeat(np.arange(pairs), sum(sizes))
    chosen = choose_masked_tokens(
        "whole_word", np.full(pairs, 2), segments, starts, uniform(1, len(segments))
    )
    words = chosen[starts].reshape(pairs, len(sizes)).mean(0)
    # Half of the pairs draw a short word first and add the other; a long word fills the count.
    np.testing.assert_allclose(words, [1 / 2, 1 / 4, 1 / 2, 1 / 4], atol=0.01)


@pytest.mark.seconds
def test_choose_masked_tokens_draws_geometric_bounded_spans():
    pairs, length = 4000, 400
    segments = 2 * np.repeat(np.arange(pairs), length)
    starts = np.ones(len(segments), bool)
    chosen = choose_masked_tokens(
        "span", np.full(pairs, MAX_SPAN_LENGTH), segments, starts, uniform(2, len(segments))
    )
    chosen = np.pad(chosen.reshape(pairs, length), ((0, 0), (1, 1)))
    edges = np.diff(chosen.astype(int))
    sizes = np.flatnonzero(edges.ravel() == -1) - np.flatnonzero(edges.ravel() == 1)
    assert sizes.max() == MAX_SPAN_LENGTH
    # Spans of 3.8 words on average, the last of a pair cut short.
    assert 2.7 < sizes.mean() < 3.6
    assert (sizes == 1).mean() == pytest.approx(0.25, abs=0.08)


def test_choose_masked_tokens_ends_a_span_with_its_segment():
    """With A of one word, a span that starts there has one word."""
    pairs = 5000
    segments = np.tile([0, 1, 1, 1, 1, 1], pairs) + 2 * np.repeat(np.arange(pairs), 6)
    starts = np.ones(len(segments), bool)
    chosen = choose_masked_tokens(
        "span", np.full(pairs, 2), segments, starts, uniform(3, len(segments))
    )
    chosen = chosen.reshape(pairs, 6)
    after_a = chosen[chosen[:, 0]][:, 1:].mean(0)
    # The second token of such a pair starts another span, anywhere in B.
    assert after_a[0] < 0.35


def test_word_starts_at_the_start_of_a_segment():
    is_continuation = np.array([False, True])
    starts = word_starts(np.array([0, 1, 1, 1, 0]), np.array([0, 0, 1, 1, 2]), is_continuation)
    assert starts.tolist() == [True, False, True, False, True]


def test_replace_masked_tokens_uses_two_draws_per_token():
    draws = np.array([[0.0, 0.79, 0.81, 0.89, 0.91, 0.99], [0.0, 0.0, 0.0, 0.0, 0.0, 0.99]])
    inputs = replace_masked_tokens(np.arange(10, 16), 0.8, 0.1, 3, np.array([70, 71]), draws)
    assert inputs.tolist() == [3, 3, 12, 13, 70, 71]


@pytest.mark.parametrize(
    ("mask_prob", "random_prob", "expected"), [(1, 0, [3, 3]), (0, 0, [10, 11]), (0, 1, [70, 70])]
)
def test_replace_masked_tokens_with_probability_one(mask_prob, random_prob, expected):
    draws = np.array([[0.0, np.nextafter(1, 0)], [0.5, 0.5]])
    inputs = replace_masked_tokens(
        np.array([10, 11]), mask_prob, random_prob, 3, np.array([70]), draws
    )
    assert inputs.tolist() == expected


def test_replace_masked_tokens_without_random_tokens():
    draws = np.array([[np.nextafter(1, 0)], [0.0]])
    for mask_prob in np.linspace(0, 1, 101):
        inputs = replace_masked_tokens(np.array([10]), mask_prob, 0.0, 3, np.array([70]), draws)
        assert inputs[0] in (3, 10)


@given(st.floats(0, 1))
def test_replace_masked_tokens_keeps_none_if_probabilities_sum_to_one(mask_prob):
    """Rounding of 1 - random may move the boundary by one unit in the last place at most."""
    draws = np.array([np.linspace(0, np.nextafter(1, 0), 1001), np.zeros(1001)])
    draws = draws[:, np.abs(draws[0] - mask_prob) > 1e-15]
    ids = np.full(draws.shape[1], 10)
    inputs = replace_masked_tokens(ids, mask_prob, 1 - mask_prob, 3, np.array([70]), draws)
    assert set(inputs.tolist()) <= {3, 70}


def test_replace_masked_tokens_matches_the_probabilities():
    ids = np.full(400_000, 10)
    random_ids = np.arange(100, 200)
    inputs = replace_masked_tokens(ids, 0.8, 0.1, 3, random_ids, uniform(4, 2, len(ids)))
    assert (inputs == 3).mean() == pytest.approx(0.8, abs=0.002)
    assert (inputs == 10).mean() == pytest.approx(0.1, abs=0.002)
    random = inputs[inputs >= 100]
    counts = np.bincount(random - 100, minlength=100)
    assert counts.min() > 300 and counts.sum() / len(inputs) == pytest.approx(0.1, abs=0.002)
