"""Pairs are drawn as the paper says, as spans of the shard's tokens, and no text is cut away."""

import itertools

import numpy as np
import pytest
from corpus_shards import corpora, make_shard, seeds, seq_lens, shorts
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.corpus.shards import Shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.pairs import MIN_CHUNK_TOKENS, Pairs, draw_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.ranges import concatenate_ranges


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def draw(
    shard: Shard,
    max_seq_length: int,
    short: float = 0.1,
    seed: int = 0,
    longest: int | None = None,
    **options: bool,
) -> Pairs:
    sections = Sections.from_shard(shard, longest)
    section_ids = np.arange(len(sections))
    return draw_pairs(sections, section_ids, max_seq_length, short, generator(seed), **options)


def again_and_again(shard: Shard, max_seq_length: int, times: int) -> Pairs:
    """The pairs of the first document, drawn many times over."""
    section_ids = np.zeros(times, np.int64)
    return draw_pairs(
        Sections.from_shard(shard, None), section_ids, max_seq_length, 0.0, generator(3)
    )


sections = st.none() | st.integers(1, 100)


@given(corpora, seq_lens, shorts, seeds, sections)
def test_every_pair_is_two_spans_of_documents_that_fit(
    documents, max_seq_length, short, seed, longest
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, longest)
    bounds = shard.sentences[shard.documents]
    assert (pairs.a_length >= 1).all() and (pairs.b_length >= 1).all()
    assert (pairs.lengths == pairs.a_length + pairs.b_length + 3).all()
    assert (pairs.lengths <= max_seq_length).all()
    for start, length, document in (
        (pairs.a_start, pairs.a_length, pairs.a_document),
        (pairs.b_start, pairs.b_length, pairs.b_document),
    ):
        assert (start >= bounds[document]).all()
        assert (start + length <= bounds[document + 1]).all()


@given(corpora, seq_lens, shorts, seeds, sections)
def test_random_is_from_another_document_and_next_goes_on_where_a_ends(
    documents, max_seq_length, short, seed, longest
):
    pairs = draw(make_shard(documents), max_seq_length, short, seed, longest)
    assert set(pairs.is_random) <= {0, 1}
    assert ((pairs.a_document != pairs.b_document) == pairs.is_random).all()
    follows = pairs.is_random == 0
    assert (pairs.b_start == pairs.a_start + pairs.a_length)[follows].all()


@given(corpora, seq_lens, shorts, seeds, sections)
def test_each_piece_of_a_document_comes_once_and_in_order(
    documents, max_seq_length, short, seed, longest
):
    """Beside what random segments repeat."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, longest)
    own = pairs.a_length + np.where(pairs.is_random, 0, pairs.b_length)
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, own), shard.tokens)


@given(corpora, seq_lens, shorts, seeds, sections)
def test_b_begins_with_a_sentence_where_a_ends_with_one(
    documents, max_seq_length, short, seed, longest
):
    """Random or not: else the place of a cut would tell the label."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed, longest)
    ends = np.isin(pairs.a_start + pairs.a_length, shard.sentences)
    assert np.isin(pairs.b_start, shard.sentences)[ends].all()


@given(corpora, seq_lens, shorts, seeds)
def test_where_there_is_room_for_all_only_whole_sentences_are_taken(
    documents, max_seq_length, short, seed
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length + 3 * shard.tokens.size, short, seed)
    for edge in (pairs.a_start, pairs.a_start + pairs.a_length, pairs.b_start + pairs.b_length):
        assert np.isin(edge, shard.sentences).all()


@given(corpora, st.integers(20, 80), shorts, seeds)
def test_a_stump_of_a_sentence_makes_no_true_pair(documents, max_seq_length, short, seed):
    """But for a sentence that stands alone and is cut in two."""
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
def test_no_stump_is_left_at_the_end_of_a_document(documents, max_seq_length, short, seed):
    """It would stand alone, and always before a random B."""
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
    inside = ~np.isin(pairs.a_start, shard.sentences)
    last = pairs.a_start + pairs.a_length == shard.sentences[shard.documents][pairs.a_document + 1]
    assert (pairs.a_length >= MIN_CHUNK_TOKENS)[inside & last].all()


@pytest.mark.parametrize(("last", "left"), [(5, 0), (9, 9)])
def test_a_rest_too_short_to_stand_alone_is_taken_or_left_its_sentence(last, left):
    """In room for 125 pieces."""
    shard = make_shard([[20] * 6 + [last]] * 2)
    firsts = [draw(shard, 128, short=0.0, seed=seed).take(slice(1)) for seed in range(50)]
    ends = {int(p.b_start[0] + p.b_length[0]) for p in firsts if not p.is_random[0]}
    assert ends == {120 + last - left}


def test_a_long_document_fills_every_row():
    pairs = draw(make_shard([[25] * 400, [25] * 400]), 128, short=0.0)
    follows = pairs.is_random == 0
    assert np.mean(pairs.lengths == 128) > 0.97
    assert (pairs.lengths[follows] == 128)[:-1].all()


def test_the_hole_beside_a_pair_is_the_room_of_another():
    """Documents of 90 pieces, and one that has text for whatever they leave."""
    shard = make_shard([[30, 30, 30]] * 200 + [[9] * 30_000])
    pairs = draw(shard, 128, short=0.0)
    alone = pairs.take((pairs.a_document < 200) & (pairs.lengths == 93))
    filling = pairs.take((pairs.a_document == 200) & (pairs.lengths == 128 - 93))
    assert len(alone) > 50
    assert len(filling) >= 0.9 * len(alone)


def test_the_sentences_of_a_are_as_many_as_of_any_other_number():
    pairs = again_and_again(make_shard([[8] * 5, [8] * 5]), 43, 20_000)
    first = pairs.take(pairs.a_start == 0)
    shares = np.bincount(first.a_length // 8, minlength=5)[1:] / len(first)
    np.testing.assert_allclose(shares, 0.25, atol=0.015)


def test_a_chunk_of_several_sentences_is_continued_half_of_the_time():
    """Of a document with two sentences: one true pair, or else two random ones."""
    pairs = again_and_again(make_shard([[4, 4], [4, 4]]), 32, 40_000)
    continued = np.count_nonzero(pairs.is_random == 0)
    assert continued / 40_000 == pytest.approx(0.5, abs=0.01)
    assert len(pairs) == continued + 2 * (40_000 - continued)


def test_a_random_b_is_uniform_over_the_sentences_of_all_other_documents():
    shard = make_shard([[2, 2], [3], [2, 2], [1, 1, 1, 1]])
    section_ids = np.repeat([1], 40_000)
    pairs = draw_pairs(Sections.from_shard(shard, None), section_ids, 8, 0.0, generator(3))
    starts = np.bincount(pairs.b_start, minlength=15)[shard.sentences[:-1]] / len(pairs)
    np.testing.assert_allclose(starts, np.array([1, 1, 0, 1, 1, 1, 1, 1, 1]) / 8, atol=0.01)


def test_the_length_of_a_pair_does_not_tell_its_label():
    """Of documents shorter than a row, beside others that could fill it."""
    shard = make_shard([[10] * 4] * 100 + [[10] * 100] * 4)
    section_ids = np.repeat(np.arange(100), 100)
    pairs = draw_pairs(Sections.from_shard(shard, None), section_ids, 128, 0.0, generator(5))
    first = pairs.take(np.isin(pairs.a_start, shard.sentences[shard.documents]))
    random, true = (first.take(first.is_random == label).lengths.mean() for label in (1, 0))
    assert random == pytest.approx(true, rel=0.05)


def test_a_document_of_one_sentence_gives_one_random_pair():
    pairs = draw(make_shard([[5], [6], [7]]), 64)
    assert (pairs.is_random == 1).all()
    assert pairs.a_length.tolist() == [5, 6, 7]


def test_the_halves_of_a_sentence_that_fills_a_row_are_a_pair_or_not_by_a_coin():
    """A stops inside a sentence and B begins inside one, whatever the label."""
    shard = make_shard([[24]] * 2000)
    pairs = draw(shard, 32, short=0.0)
    cut = pairs.take(~np.isin(pairs.a_start + pairs.a_length, shard.sentences))
    assert len(cut) == 2000 and (cut.a_length == 12).all() and (cut.b_length == 12).all()
    assert not np.isin(cut.b_start, shard.sentences).any()
    assert cut.is_random.mean() == pytest.approx(0.5, abs=0.03)


def test_a_sentence_longer_than_a_row_is_gone_through():
    shard = make_shard([[100], [80]])
    pairs = draw(shard, 64, short=0.0)
    own = pairs.a_length + np.where(pairs.is_random, 0, pairs.b_length)
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, own), shard.tokens)
    assert (pairs.lengths == 64).sum() >= 3


def test_a_random_b_stops_where_its_document_ends():
    pairs = draw(make_shard([[10], [4]]), 64, short=0.0)
    assert pairs.b_length.tolist() == [4, 10]


@pytest.mark.parametrize("sentences", [5, 20, 200])
@pytest.mark.parametrize("length", [5, 20, 60])
def test_somewhat_more_than_half_of_the_pairs_are_random(sentences, length):
    shard = make_shard([[length] * sentences] * (4000 // sentences))
    assert 0.48 < draw(shard, 128, short=0.0).is_random.mean() < 0.65


def test_one_document_is_refused():
    with pytest.raises(InputError, match="another document"):
        draw(make_shard([[5, 5, 5]]), 64)


@given(corpora, seq_lens, shorts, seeds, sections)
def test_single_segments_are_the_documents_cut_where_they_are_long(
    documents, max_seq_length, short, seed, longest
):
    shard = make_shard(documents[:1])
    pairs = draw(shard, max_seq_length, short, seed, longest, next_sentence=False)
    assert (pairs.b_length == 0).all() and (pairs.is_random == 0).all()
    assert (pairs.lengths == pairs.a_length + 2).all() and (pairs.lengths <= max_seq_length).all()
    np.testing.assert_array_equal(concatenate_ranges(pairs.a_start, pairs.a_length), shard.tokens)


def test_single_segments_are_cut_elsewhere_in_each_pass():
    shard = make_shard([[10] * 100])
    passes = [draw(shard, 64, 0.0, seed, next_sentence=False) for seed in range(200)]
    for pairs in passes:
        assert len(pairs) <= 18 and (pairs.lengths == 64).sum() >= 14
    assert len({int(pairs.a_length[0]) for pairs in passes}) > 40


def test_the_same_generator_draws_the_same_pairs():
    shard = make_shard([[7, 8, 9, 30], [4, 6], [12]])
    for one, other in zip(
        vars(draw(shard, 32, seed=9)).values(), vars(draw(shard, 32, seed=9)).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_documents_can_be_drawn_in_any_order_and_again():
    shard = make_shard([[5, 6], [7], [8, 9, 10]])
    pairs = draw_pairs(Sections.from_shard(shard, None), np.array([2, 0, 2]), 32, 0.0, generator(0))
    assert [document for document, _ in itertools.groupby(pairs.a_document)] == [2, 0, 2]
