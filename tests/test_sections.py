"""Tests of the sections of long documents."""

import numpy as np
from corpus_shards import WHOLE, corpora, make_shard
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.streams import permutation


def test_from_shard_without_a_bound_makes_one_section_per_document() -> None:
    sections = Sections.from_shard(make_shard([[5, 6], [7], [8, 9, 10]]), WHOLE)
    assert sections.documents.tolist() == [0, 1, 2]
    assert sections.sizes(np.array([2, 0, 1, 0])).tolist() == [27, 11, 7, 11]
    assert list(sections.sentence_offsets(np.array([1, 0]))) == [(1, [11, 18]), (0, [0, 5, 11])]


def test_from_shard_ends_a_section_with_the_sentence_that_reaches_the_bound() -> None:
    sections = Sections.from_shard(make_shard([[5, 5, 5, 5, 5], [9]]), 10)
    assert list(sections.sentence_offsets(np.arange(4))) == [
        (0, [0, 5, 10]),
        (0, [10, 15, 20]),
        (0, [20, 25]),
        (1, [25, 34]),
    ]


@given(corpora, st.integers(1, 100))
def test_from_shard_keeps_all_sentences_in_order(documents, max_tokens) -> None:
    shard = make_shard(documents)
    sections = Sections.from_shard(shard, max_tokens)
    lengths: list[list[int]] = [[] for _ in documents]
    for document, offsets in sections.sentence_offsets(np.arange(len(sections))):
        assert len(offsets) > 1
        lengths[document] += np.diff(offsets).tolist()
    assert lengths == documents
    assert sections.sizes(np.arange(len(sections))).max() < 2 * max_tokens + 40


@given(corpora, st.integers(1, 100), st.integers(1, 300))
def test_split_into_chunks_keeps_all_sections_in_order(documents, max_tokens, tokens) -> None:
    sections = Sections.from_shard(make_shard(documents), max_tokens)
    order = permutation(len(sections), "order")
    chunks = sections.split_into_chunks(order, tokens)
    assert np.concatenate(chunks).tolist() == order.tolist()
    assert all(len(chunk) for chunk in chunks)
    sizes = sections.sizes(order)
    limit = sizes.sum() / max(1, round(sizes.sum() / tokens)) + sizes.max() + 1
    assert max(sections.sizes(chunk).sum() for chunk in chunks) <= limit
