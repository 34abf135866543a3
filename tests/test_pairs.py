"""Tests of the pairs and single segments drawn from a shard."""

import itertools

import numpy as np
import pytest
from corpus_shards import WHOLE, corpora, generator, make_shard, seeds, seq_lens, shorts
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.corpus.shards import Shard
from data_pipelines.pretraining.pairs import MIN_CHUNK_TOKENS, Pairs, draw_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.ranges import concatenate_ranges


def draw(
    shard: Shard,
    max_seq_length: int,
    short: float = 0.1,
    seed: int = 0,
    max_tokens: int = WHOLE,
    **options: bool,
) -> Pairs:
    sections = Sections.from_shard(shard, max_tokens)
    section_ids = np.arange(len(sections))
    return draw_pairs(sections, section_ids, max_seq_length, short, generator(seed), **options)


def draw_repeatedly(shard: Shard, max_seq_length: int, times: int) -> Pairs:
    """Draw the pairs of the first document many times."""
    section_ids = np.zeros(times, np.int64)
    return draw_pairs(
        Sections.from_shard(shard, WHOLE), section_ids, max_seq_length, 0.0, generator(3)
    )


def documents_of(shard: Shard, starts: np.ndarray) -> np.ndarray:
    """Return the document of each token in `starts`."""
    return np.searchsorted(shard.sentences[shard.documents], starts, "right") - 1


sections = st.just(WHOLE) | st.integers(1, 100)


@pytest.mark.seconds
@given(corpora, seq_lens, shorts, seeds, sections)
def test_draw_pairs_draws_spans_of_documents_that_fit(
    documents, max_seq_length, short, seed, max_tokens
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, max_tokens)
    bounds = shard.sentences[shard.documents]
    assert (pairs.a_length >= 1).all() and (pairs.b_length >= 1).all()
    assert (pairs.lengths == pairs.a_length + pairs.b_length + 3).all()
    assert (pairs.lengths <= max_seq_length).all()
    for start, length in ((pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)):
        assert (start >= 0).all()
        assert (start + length <= bounds[documents_of(shard, start) + 1]).all()


@pytest.mark.seconds
@given(corpora, seq_lens, shorts, seeds, sections)
def test_draw_pairs_takes_random_b_from_another_document_and_true_b_after_a(
    documents, max_seq_length, short, seed, max_tokens
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, max_tokens)
    assert set(pairs.is_random) <= {0, 1}
    a, b = documents_of(shard, pairs.a_start), documents_of(shard, pairs.b_start)
    assert ((a != b) == pairs.is_random).all()
    follows = pairs.is_random == 0
    assert (pairs.b_start == pairs.a_start + pairs.a_length)[follows].all()


@pytest.mark.seconds
@given(corpora, seq_lens, shorts, seeds, sections)
def test_draw_pairs_draws_each_token_once_and_in_order(
    documents, max_seq_length, short, seed, max_tokens
):
    """Tokens of random segments are additional."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, max_tokens)
    lengths = pairs.a_length + np.where(pairs.is_random, 0, pairs.b_length)
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, lengths), shard.tokens)


@given(corpora, seq_lens, shorts, seeds, sections)
def test_draw_pairs_starts_b_with_a_sentence_if_a_ends_with_one(
    documents, max_seq_length, short, seed, max_tokens
):
    """Holds for true and random B, so that the cut does not reveal the label."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, max_tokens)
    ends = np.isin(pairs.a_start + pairs.a_length, shard.sentences)
    assert np.isin(pairs.b_start, shard.sentences)[ends].all()


@given(corpora, seq_lens, shorts, seeds)
def test_draw_pairs_draws_whole_sentences_if_everything_fits(
    documents, max_seq_length, short, seed
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length + 3 * shard.tokens.size, short, seed)
    for edge in (pairs.a_start, pairs.a_start + pairs.a_length, pairs.b_start + pairs.b_length):
        assert np.isin(edge, shard.sentences).all()


@pytest.mark.seconds
@given(corpora, st.integers(20, 80), shorts, seeds)
def test_draw_pairs_makes_no_true_pair_of_a_short_partial_sentence(
    documents, max_seq_length, short, seed
):
    """Halves of a single sentence are the exception."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
    pairs = pairs.take(pairs.is_random == 0)
    halves = ~np.isin(pairs.b_start, shard.sentences)
    pairs = pairs.take(~halves)
    for start, length in ((pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)):
        cut = ~np.isin(start, shard.sentences) | ~np.isin(start + length, shard.sentences)
        ends = np.searchsorted(shard.sentences, [start, start + length - 1], "right")
        assert (length >= MIN_CHUNK_TOKENS)[cut & (ends[0] == ends[1])].all()


@given(corpora, st.integers(70, 120), shorts, seeds)
def test_draw_pairs_leaves_no_short_chunk_at_the_end_of_a_document(
    documents, max_seq_length, short, seed
):
    """It would always be followed by a random B."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
    inside = ~np.isin(pairs.a_start, shard.sentences)
    ends = shard.sentences[shard.documents][documents_of(shard, pairs.a_start) + 1]
    last = pairs.a_start + pairs.a_length == ends
    assert (pairs.a_length >= MIN_CHUNK_TOKENS)[inside & last].all()


@pytest.mark.parametrize(("last", "left"), [(5, 0), (9, 9)])
def test_draw_pairs_adds_a_short_remainder_or_leaves_a_sentence(last, left):
    """The room is 125 tokens."""
    shard = make_shard([[20] * 6 + [last]] * 2)
    firsts = [draw(shard, 128, short=0.0, seed=seed).take(slice(1)) for seed in range(50)]
    ends = {int(p.b_start[0] + p.b_length[0]) for p in firsts if not p.is_random[0]}
    assert ends == {120 + last - left}


def test_draw_pairs_fills_sequences_from_a_long_document():
    pairs = draw(make_shard([[25] * 400, [25] * 400]), 128, short=0.0)
    follows = pairs.is_random == 0
    assert np.mean(pairs.lengths == 128) > 0.97
    assert (pairs.lengths[follows] == 128)[:-1].all()


def test_draw_pairs_fills_the_hole_beside_a_pair():
    """Documents of 90 tokens, and a long one that fills the holes."""
    shard = make_shard([[30, 30, 30]] * 200 + [[9] * 30_000])
    pairs = draw(shard, 128, short=0.0)
    documents = documents_of(shard, pairs.a_start)
    alone = pairs.take((documents < 200) & (pairs.lengths == 93))
    filling = pairs.take((documents == 200) & (pairs.lengths == 128 - 93))
    assert len(alone) > 50
    assert len(filling) >= 0.9 * len(alone)


def test_draw_pairs_draws_a_uniform_number_of_sentences_for_a():
    pairs = draw_repeatedly(make_shard([[8] * 5, [8] * 5]), 43, 20_000)
    first = pairs.take(pairs.a_start == 0)
    fractions = np.bincount(first.a_length // 8, minlength=5)[1:] / len(first)
    np.testing.assert_allclose(fractions, 0.25, atol=0.015)


def test_draw_pairs_continues_half_of_the_chunks():
    """A document of two sentences gives one true pair or two random ones."""
    pairs = draw_repeatedly(make_shard([[4, 4], [4, 4]]), 32, 40_000)
    continued = np.count_nonzero(pairs.is_random == 0)
    assert continued / 40_000 == pytest.approx(0.5, abs=0.01)
    assert len(pairs) == continued + 2 * (40_000 - continued)


@pytest.mark.seconds
def test_draw_pairs_draws_random_b_uniformly_from_all_other_sentences():
    shard = make_shard([[2, 2], [3], [2, 2], [1, 1, 1, 1]])
    section_ids = np.repeat([1], 40_000)
    pairs = draw_pairs(Sections.from_shard(shard, WHOLE), section_ids, 8, 0.0, generator(3))
    starts = np.bincount(pairs.b_start, minlength=15)[shard.sentences[:-1]] / len(pairs)
    np.testing.assert_allclose(starts, np.array([1, 1, 0, 1, 1, 1, 1, 1, 1]) / 8, atol=0.01)


def test_draw_pairs_does_not_reveal_the_label_by_length():
    """Short documents, beside others that could fill a sequence."""
    shard = make_shard([[10] * 4] * 100 + [[10] * 100] * 4)
    section_ids = np.repeat(np.arange(100), 100)
    pairs = draw_pairs(Sections.from_shard(shard, WHOLE), section_ids, 128, 0.0, generator(5))
    first = pairs.take(np.isin(pairs.a_start, shard.sentences[shard.documents]))
    random, true = (first.take(first.is_random == label).lengths.mean() for label in (1, 0))
    assert random == pytest.approx(true, rel=0.05)


def test_draw_pairs_draws_one_random_pair_from_one_sentence():
    pairs = draw(make_shard([[5], [6], [7]]), 64)
    assert (pairs.is_random == 1).all()
    assert pairs.a_length.tolist() == [5, 6, 7]


def test_draw_pairs_splits_a_sentence_that_fills_a_sequence():
    """A ends inside a sentence and B starts inside one, for both labels."""
    shard = make_shard([[24]] * 2000)
    pairs = draw(shard, 32, short=0.0)
    cut = pairs.take(~np.isin(pairs.a_start + pairs.a_length, shard.sentences))
    assert len(cut) == 2000 and (cut.a_length == 12).all() and (cut.b_length == 12).all()
    assert not np.isin(cut.b_start, shard.sentences).any()
    assert cut.is_random.mean() == pytest.approx(0.5, abs=0.03)


def test_draw_pairs_covers_a_sentence_longer_than_a_sequence():
    shard = make_shard([[100], [80]])
    pairs = draw(shard, 64, short=0.0)
    lengths = pairs.a_length + np.where(pairs.is_random, 0, pairs.b_length)
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, lengths), shard.tokens)
    assert (pairs.lengths == 64).sum() >= 3


def test_draw_pairs_ends_random_b_with_its_document():
    pairs = draw(make_shard([[10], [4]]), 64, short=0.0)
    assert pairs.b_length.tolist() == [4, 10]


@pytest.mark.parametrize("sentences", [5, 20, 200])
@pytest.mark.parametrize("length", [5, 20, 60])
def test_draw_pairs_draws_slightly_more_random_than_true_pairs(sentences, length):
    shard = make_shard([[length] * sentences] * (4000 // sentences))
    assert 0.48 < draw(shard, 128, short=0.0).is_random.mean() < 0.65


@pytest.mark.seconds
@given(corpora, seq_lens, shorts, seeds, sections)
def test_draw_pairs_covers_documents_with_single_segments(
    documents, max_seq_length, short, seed, max_tokens
):
    shard = make_shard(documents[:1])
    pairs = draw(shard, max_seq_length, short, seed, max_tokens, next_sentence=False)
    assert (pairs.b_length == 0).all() and (pairs.is_random == 0).all()
    assert (pairs.lengths == pairs.a_length + 2).all() and (pairs.lengths <= max_seq_length).all()
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, pairs.a_length), shard.tokens)


def test_draw_pairs_cuts_single_segments_elsewhere_in_each_pass():
    shard = make_shard([[10] * 100])
    passes = [draw(shard, 64, 0.0, seed, next_sentence=False) for seed in range(200)]
    for pairs in passes:
        assert len(pairs) <= 18 and (pairs.lengths == 64).sum() >= 14
    assert len({int(pairs.a_length[0]) for pairs in passes}) > 40


def test_draw_pairs_is_deterministic():
    shard = make_shard([[7, 8, 9, 30], [4, 6], [12]])
    for array, repeated in zip(
        vars(draw(shard, 32, seed=9)).values(), vars(draw(shard, 32, seed=9)).values(), strict=True
    ):
        np.testing.assert_array_equal(array, repeated)


def test_draw_pairs_accepts_sections_in_any_order_and_repeated():
    shard = make_shard([[5, 6], [7], [8, 9, 10]])
    pairs = draw_pairs(
        Sections.from_shard(shard, WHOLE), np.array([2, 0, 2]), 32, 0.0, generator(0)
    )
    documents = documents_of(shard, pairs.a_start)
    assert [document for document, _ in itertools.groupby(documents)] == [2, 0, 2]
