"""Pairs of old corpora are what google-research/bert would draw, as spans of the shard's tokens."""

import itertools
import random

import numpy as np
import pytest
from corpus_shards import Documents, corpora, make_shard, seeds, seq_lens, shorts
from hypothesis import given

from data_pipelines.corpus.shards import Shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.truncation import _tokens_to_cut, draw_truncated_pairs
from data_pipelines.ranges import concatenate_ranges


def draw(
    shard: Shard, max_seq_length: int, short: float = 0.1, seed: int = 0, **options: bool
) -> Pairs:
    documents = np.arange(len(shard.documents) - 1)
    rng = np.random.Generator(np.random.Philox(key=seed))
    return draw_pairs(shard, documents, max_seq_length, short, rng, **options)


def draw_pairs(shard: Shard, documents: np.ndarray, *arguments, **options) -> Pairs:
    return draw_truncated_pairs(Sections.from_shard(shard, None), documents, *arguments, **options)


@given(corpora, seq_lens, shorts, seeds)
def test_every_pair_is_two_spans_of_documents(documents, max_seq_length, short, seed):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
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


@given(corpora, seq_lens, shorts, seeds)
def test_random_means_from_another_document_and_next_means_after_a(
    documents, max_seq_length, short, seed
):
    pairs = draw(make_shard(documents), max_seq_length, short, seed)
    assert set(pairs.is_random) <= {0, 1}
    assert ((pairs.a_document != pairs.b_document) == pairs.is_random).all()
    follows = pairs.is_random == 0
    assert (pairs.b_start >= pairs.a_start + pairs.a_length)[follows].all()
    whole = follows & (pairs.lengths < max_seq_length)
    assert (pairs.b_start == pairs.a_start + pairs.a_length)[whole].all()


@given(corpora, seq_lens, shorts, seeds)
def test_what_is_not_truncated_is_whole_sentences(documents, max_seq_length, short, seed):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
    whole = pairs.take(np.flatnonzero(pairs.lengths < max_seq_length))
    for edge in (
        whole.a_start,
        whole.a_start + whole.a_length,
        whole.b_start,
        whole.b_start + whole.b_length,
    ):
        assert np.isin(edge, shard.sentences).all()


@given(corpora, seq_lens, shorts, seeds)
def test_documents_are_walked_in_order_and_no_text_comes_twice(
    documents, max_seq_length, short, seed
):
    shard = make_shard(documents)
    pairs = draw(shard, max_seq_length, short, seed)
    assert [document for document, _ in itertools.groupby(pairs.a_document)] == list(
        range(len(documents))
    )
    own = np.where(pairs.is_random, pairs.a_start, pairs.b_start)
    end = own + np.where(pairs.is_random, pairs.a_length, pairs.b_length)
    assert (pairs.a_start[1:] >= end[:-1]).all()


@given(corpora, seq_lens, seeds)
def test_without_truncation_nothing_of_a_document_is_lost(documents, max_seq_length, seed):
    """With room for everything, pairs and returned sentences together are the document."""
    shard = make_shard(documents)
    max_seq_length += 2 * shard.tokens.size
    pairs = draw(shard, max_seq_length, 0.1, seed)
    covered = np.zeros(shard.tokens.size, int)
    follows = pairs.is_random == 0
    covered[concatenate_ranges(pairs.a_start, pairs.a_length)] += 1
    covered[concatenate_ranges(pairs.b_start[follows], pairs.b_length[follows])] += 1
    assert (covered == 1).all()


def test_documents_can_be_drawn_in_any_order_and_again():
    shard = make_shard([[5, 6], [7], [8, 9, 10]])
    rng = np.random.Generator(np.random.Philox(key=0))
    pairs = draw_pairs(shard, np.array([2, 0, 2]), 32, 0.0, rng)
    assert [document for document, _ in itertools.groupby(pairs.a_document)] == [2, 0, 2]


def test_a_document_of_one_sentence_gives_one_random_pair():
    pairs = draw(make_shard([[5], [6], [7]]), 64)
    assert (pairs.is_random == 1).all()
    assert pairs.a_length.tolist() == [5, 6, 7]


def test_sentences_longer_than_a_row_are_cut_to_fill_it():
    pairs = draw(make_shard([[1000, 900], [800]]), 64, short=0.0)
    assert (pairs.lengths == 64).all()
    assert pairs.a_length.tolist() == [31] * 3  # 61 pieces; B is cut first, so A keeps the odd one
    assert (pairs.b_length == 30).all()


def test_a_random_b_stops_where_its_document_ends():
    pairs = draw(make_shard([[10], [4]]), 64, short=0.0)
    assert pairs.b_length.tolist() == [4, 10]


def test_a_random_b_is_uniform_over_the_other_documents_and_their_sentences():
    shard = make_shard([[3], [2, 2], [1, 1, 1, 1]])
    rng = np.random.Generator(np.random.Philox(key=3))
    pairs = draw_pairs(shard, np.zeros(40_000, np.int64), 8, 0.0, rng)
    starts = np.bincount(pairs.b_start, minlength=11)[shard.sentences[1:-1]] / len(pairs)
    np.testing.assert_allclose(starts, [1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8], atol=0.01)


@pytest.mark.parametrize("room", range(2, 14))
def test_truncation_is_that_of_the_original(room):
    """`_tokens_to_cut` against the loop that it replaces, for every pair of lengths up to 14."""
    for a, b in itertools.product(range(1, 15), repeat=2):
        left_a, left_b = a, b
        while left_a + left_b > room:
            if left_a > left_b:
                left_a -= 1
            else:
                left_b -= 1
        cut_a, cut_b = _tokens_to_cut(np.array([a]), np.array([b]), room)
        assert (a - cut_a[0], b - cut_b[0]) == (left_a, left_b)


def test_pieces_are_cut_from_either_end_with_equal_probability():
    shard = make_shard([[20], [20]])
    rng = np.random.Generator(np.random.Philox(key=1))
    pairs = draw_pairs(shard, np.zeros(20_000, np.int64), 23, 0.0, rng)  # 10 pieces are left of 20
    for cut in (pairs.a_start, pairs.b_start - 20):
        assert cut.min() == 0 and cut.max() == 10
        assert cut.mean() == pytest.approx(5, abs=0.05)
        assert cut.var() == pytest.approx(2.5, abs=0.1)  # binomial: 10 fair coins


def original_pairs(
    documents: Documents, max_seq_length: int, short: float, rng: random.Random
) -> list[tuple[int, int, bool]]:
    """The original's sampling, sentence by sentence: (length of A, of B, is random)."""
    room = max_seq_length - 3
    found = []
    for index, document in enumerate(documents):
        target = rng.randint(2, room) if rng.random() < short else room
        chunk: list[int] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a, b = sum(chunk[:a_end]), sum(chunk[a_end:])
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    other = rng.choice([d for d in range(len(documents)) if d != index])
                    b = 0
                    for length in documents[other][rng.randrange(len(documents[other])) :]:
                        b += length
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                while a + b > room:
                    if a > b:
                        a -= 1
                    else:
                        b -= 1
                found.append((a, b, is_random))
                chunk = []
            i += 1
    return found


@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_lengths_and_labels_are_distributed_as_in_the_original(short):
    rng = random.Random(5)
    documents = [
        [rng.randint(1, 30) for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 40]))] for _ in range(120)
    ]
    expected = np.array(
        [pair for _ in range(25) for pair in original_pairs(documents, 64, short, rng)], float
    )
    shard = make_shard(documents)
    pairs = Pairs.concatenate(draw(shard, 64, short, seed) for seed in range(25))
    found = np.stack([pairs.a_length, pairs.b_length, pairs.is_random], 1).astype(float)
    assert len(found) == pytest.approx(len(expected), rel=0.02)
    error = np.sqrt(expected.var(0) / len(expected) + found.var(0) / len(found))
    assert (np.abs(found.mean(0) - expected.mean(0)) < 4 * error).all()
    for column in (0, 1):  # the whole distributions: Kolmogorov-Smirnov at p = 0.001
        edges = np.arange(62)
        shares = [(data[:, column, None] <= edges).mean(0) for data in (expected, found)]
        bound = 1.95 * np.sqrt(1 / len(expected) + 1 / len(found))
        assert np.abs(shares[0] - shares[1]).max() < bound


def test_a_chunk_of_several_sentences_is_continued_half_of_the_time():
    """Of a document with two sentences: one true pair, or else two random ones."""
    shard = make_shard([[4, 4], [4, 4]])
    rng = np.random.Generator(np.random.Philox(key=2))
    pairs = draw_pairs(shard, np.zeros(40_000, np.int64), 32, 0.0, rng)
    assert (pairs.is_random == 0).sum() / 40_000 == pytest.approx(0.5, abs=0.01)
    assert len(pairs) == (pairs.is_random == 0).sum() + 2 * (40_000 - (pairs.is_random == 0).sum())


def test_the_random_share_is_above_one_half():
    documents = [[20] * 20] * 50
    assert 0.5 < draw(make_shard(documents), 128).is_random.mean() < 0.6


def test_one_document_is_refused():
    with pytest.raises(InputError, match="another document"):
        draw(make_shard([[5, 5, 5]]), 64)


@given(corpora, seq_lens, shorts, seeds)
def test_single_segments_are_chunks_of_a_document(documents, max_seq_length, short, seed):
    shard = make_shard(documents[:1])
    pairs = draw(shard, max_seq_length, short, seed, next_sentence=False)
    assert (pairs.b_length == 0).all() and (pairs.is_random == 0).all()
    assert (pairs.lengths == pairs.a_length + 2).all() and (pairs.lengths <= max_seq_length).all()
    end = pairs.a_start + pairs.a_length
    assert (pairs.a_start[1:] >= end[:-1]).all()
    whole = pairs.lengths < max_seq_length
    assert np.isin(pairs.a_start[whole], shard.sentences).all()
    assert np.isin(end[whole], shard.sentences).all()


def test_single_segments_reach_the_full_length():
    pairs = draw(make_shard([[10] * 100]), 64, short=0.0, next_sentence=False)
    assert pairs.lengths.tolist() == [64] * 14 + [22]  # chunks of 7 sentences, cut to 62 pieces


def test_the_same_generator_draws_the_same_pairs():
    shard = make_shard([[7, 8, 9, 30], [4, 6], [12]])
    for one, other in zip(
        vars(draw(shard, 32, seed=9)).values(), vars(draw(shard, 32, seed=9)).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
