"""Choosing pieces to predict and replacing them, at the limits and for any pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.masking import (
    MASKING_UNITS,
    MAX_SPAN_LENGTH,
    choose,
    prediction_counts,
    replace_masked_tokens,
    word_starts,
)


def uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).random(shape)


@st.composite
def candidates(draw):
    """Pairs as runs of words: (runs [C], starts [C], counts [P])."""
    words = st.lists(st.integers(1, 5), min_size=1, max_size=12)
    pairs = draw(st.lists(st.tuples(words, st.just([]) | words), min_size=1, max_size=5))
    segments, starts, counts = [], [], []
    for pair, segments in enumerate(pairs):
        for segment, sizes in enumerate(segments):
            segments += [2 * pair + segment] * sum(sizes)
            starts += [i == 0 for size in sizes for i in range(size)]
        counts.append(draw(st.integers(1, sum(map(sum, segments)))))
    return np.array(segments), np.array(starts), np.array(counts)


def test_the_number_of_predictions_is_that_of_the_original():
    lengths = np.arange(3, 600)
    for prob, most in ((0.15, 20), (0.15, 1000), (0.05, 3), (0.5, 1000), (1.0, 1000)):
        expected = [min(most, max(1, round(prob * n)), n - 3 or 1) for n in lengths.tolist()]
        found = prediction_counts(lengths, np.maximum(lengths - 3, 1), prob, most)
        assert found.tolist() == expected


def test_halves_are_rounded_to_even():
    assert prediction_counts(np.array([10, 30]), np.array([7, 27]), 0.25, 99).tolist() == [2, 8]


@pytest.mark.parametrize("masking", MASKING_UNITS)
@given(case=candidates(), seed=st.integers(0, 2**32))
def test_every_pair_has_as_many_predictions_as_it_should(masking, case, seed):
    segments, starts, counts = case
    chosen = choose(masking, counts, segments, starts, uniform(seed, len(segments)))
    assert (np.bincount(segments[chosen] // 2, minlength=len(counts)) == counts).all()


@given(case=candidates(), seed=st.integers(0, 2**32))
def test_words_are_taken_whole_as_long_as_one_fits(case, seed):
    segments, starts, counts = case
    draws = uniform(seed, len(segments))
    chosen = choose("word", counts, segments, starts, draws, exact=False)
    word = np.cumsum(starts) - 1
    size = np.bincount(word)
    taken = np.bincount(word, chosen)
    assert ((taken == 0) | (taken == size)).all()
    left = counts - np.bincount(segments[chosen] // 2, minlength=len(counts))
    pair = segments[starts] // 2
    assert (size > left[pair])[taken == 0].all()
    assert (chosen <= choose("word", counts, segments, starts, draws)).all()


def test_a_word_longer_than_the_count_is_masked_by_pieces():
    """As a line of Chinese is to SentencePiece: one word of 60 pieces."""
    segments, starts = np.repeat(np.arange(0, 2000, 2), 60), np.tile(np.arange(60) == 0, 1000)
    chosen = choose("word", np.full(1000, 9), segments, starts, uniform(2, 60_000)).reshape(
        1000, 60
    )
    assert (chosen.sum(axis=1) == 9).all()
    np.testing.assert_allclose(chosen.mean(axis=0), 0.15, atol=0.05)


@given(case=candidates(), seed=st.integers(0, 2**32))
def test_spans_leave_at_most_one_word_of_a_pair_in_part(case, seed):
    segments, starts, counts = case
    chosen = choose("span", counts, segments, starts, uniform(seed, len(segments)))
    word = np.cumsum(starts) - 1
    taken, size = np.bincount(word, chosen), np.bincount(word)
    partial = (taken > 0) & (taken < size)
    assert (np.bincount(segments[starts] // 2, partial) <= 1).all()


@pytest.mark.parametrize("masking", MASKING_UNITS)
def test_all_pieces_can_be_chosen(masking):
    segments = np.repeat([0, 1, 2], [7, 4, 5])
    starts = word_starts(np.arange(16), segments, np.arange(16) % 3 == 1)
    assert choose(masking, np.array([11, 5]), segments, starts, uniform(0, 16)).all()


def test_pieces_are_chosen_uniformly():
    pairs, length, count = 40_000, 12, 5
    segments = 2 * np.repeat(np.arange(pairs), length)
    starts = np.zeros(len(segments), bool)
    draws = uniform(0, len(segments))
    chosen = choose("token", np.full(pairs, count), segments, starts, draws).reshape(pairs, length)
    np.testing.assert_allclose(chosen.mean(0), count / length, atol=0.01)
    both = (chosen[:, :1] & chosen[:, 1:]).mean(0)  # chosen together: without replacement
    np.testing.assert_allclose(both, count * (count - 1) / (length * (length - 1)), atol=0.01)


def test_words_are_chosen_uniformly():
    pairs, sizes = 40_000, [1, 2, 1, 2]
    starts = np.tile([i == 0 for size in sizes for i in range(size)], pairs)
    segments = 2 * np.repeat(np.arange(pairs), sum(sizes))
    chosen = choose("word", np.full(pairs, 2), segments, starts, uniform(1, len(segments)))
    words = chosen[starts].reshape(pairs, len(sizes)).mean(0)
    # A short word first (1/2): the other one joins it. A long one first: it fills the count.
    np.testing.assert_allclose(words, [1 / 2, 1 / 4, 1 / 2, 1 / 4], atol=0.01)


def test_span_lengths_are_geometric_and_bounded():
    pairs, length = 4000, 400
    segments = 2 * np.repeat(np.arange(pairs), length)
    starts = np.ones(len(segments), bool)
    chosen = choose(
        "span", np.full(pairs, MAX_SPAN_LENGTH), segments, starts, uniform(2, len(segments))
    )
    chosen = np.pad(chosen.reshape(pairs, length), ((0, 0), (1, 1)))
    edges = np.diff(chosen.astype(int))
    sizes = np.flatnonzero(edges.ravel() == -1) - np.flatnonzero(edges.ravel() == 1)
    assert sizes.max() == MAX_SPAN_LENGTH
    # Spans of 3.8 words on average, the last of a pair cut short.
    assert 2.7 < sizes.mean() < 3.6
    assert (sizes == 1).mean() == pytest.approx(0.25, abs=0.08)


def test_a_span_stays_in_its_sentence():
    """With A of one word, a span that starts there has one word."""
    pairs = 5000
    segments = np.tile([0, 1, 1, 1, 1, 1], pairs) + 2 * np.repeat(np.arange(pairs), 6)
    starts = np.ones(len(segments), bool)
    chosen = choose("span", np.full(pairs, 2), segments, starts, uniform(3, len(segments)))
    chosen = chosen.reshape(pairs, 6)
    after_a = chosen[chosen[:, 0]][:, 1:].mean(0)
    # The second word of such a pair began a span of its own, anywhere in B.
    assert after_a[0] < 0.35


def test_a_word_ends_with_its_sentence():
    """A continuing piece at the start of B begins a word: it has no word before it there."""
    is_continuation = np.array([False, True])
    starts = word_starts(np.array([0, 1, 1, 1, 0]), np.array([0, 0, 1, 1, 2]), is_continuation)
    assert starts.tolist() == [True, False, True, False, True]


def test_each_pair_of_draws_decides_for_one_piece():
    draws = np.array([[0.0, 0.79, 0.81, 0.89, 0.91, 0.99], [0.0, 0.0, 0.0, 0.0, 0.0, 0.99]])
    seen = replace_masked_tokens(np.arange(10, 16), (0.8, 0.1, 0.1), 3, np.array([70, 71]), draws)
    assert seen.tolist() == [3, 3, 12, 13, 70, 71]


@pytest.mark.parametrize(
    ("replace_probs", "expected"),
    [((1, 0, 0), [3, 3]), ((0, 1, 0), [10, 11]), ((0, 0, 1), [70, 70])],
)
def test_a_share_of_one_is_always(replace_probs, expected):
    draws = np.array([[0.0, np.nextafter(1, 0)], [0.5, 0.5]])
    assert (
        replace_masked_tokens(np.array([10, 11]), replace_probs, 3, np.array([70]), draws).tolist()
        == expected
    )


def test_shares_that_leave_no_random_piece_give_none():
    """0.7 + 0.3 may round to less than 1; the last draw below 1 must not slip through."""
    draws = np.array([[np.nextafter(1, 0)], [0.0]])
    for mask in np.linspace(0, 1, 101):
        replace_probs = (mask, 1 - mask, 0.0)
        seen = replace_masked_tokens(np.array([10]), replace_probs, 3, np.array([70]), draws)
        assert seen[0] in (3, 10)


def test_the_shares_are_those_asked_for():
    targets = np.full(400_000, 10)
    random_ids = np.arange(100, 200)
    seen = replace_masked_tokens(
        targets, (0.8, 0.1, 0.1), 3, random_ids, uniform(4, 2, len(targets))
    )
    assert (seen == 3).mean() == pytest.approx(0.8, abs=0.002)
    assert (seen == 10).mean() == pytest.approx(0.1, abs=0.002)
    random = seen[seen >= 100]
    counts = np.bincount(random - 100, minlength=100)
    assert counts.min() > 300 and counts.sum() / len(seen) == pytest.approx(0.1, abs=0.002)
