"""Documents become ids by themselves; which shard they go to depends on the whole corpus."""

import hashlib

import numpy as np
import pytest
from conftest import sample_pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import (
    INDEX,
    MAX_SENTENCE_TOKENS,
    assign_shards,
    count,
    encode_documents,
    split_long_sentences,
    unpack_documents,
)
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.shards import token_dtype
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(sample_pieces(), cased=False)
ENCODER = BulkEncoder(TOKENIZER)
DTYPE = token_dtype(len(TOKENIZER.tokens))

texts = st.text(st.characters(codec="utf-8"), min_size=1)


def decoded(index: np.ndarray, payload: bytes) -> list[list[str]]:
    """The sentences of every document, as text."""
    documents = []
    for i, row in enumerate(index):
        record = payload[row["start"] : row["start"] + row["size"]]
        tokens, lengths = unpack_documents(index[i : i + 1], [record], DTYPE)
        sentences = np.split(tokens, np.cumsum(lengths)[:-1])
        documents.append([TOKENIZER.decode(sentence.tolist()) for sentence in sentences])
    return documents


def index_of(tokens: list[int], texts: list[int] | None = None) -> np.ndarray:
    """An index of documents with so many pieces; equal numbers in `texts` are equal texts."""
    index = np.zeros(len(tokens), INDEX)
    index["tokens"] = tokens
    for row, text in zip(index, texts or range(len(tokens)), strict=True):
        row["hash"] = np.frombuffer(hashlib.blake2b(b"%d" % text, digest_size=16).digest(), "<u8")
    return index


# Documents to ids


def test_lines_become_sentences_and_sentences_ids() -> None:
    documents = ["Badoki me. Lura!\nNo", "Si?"]
    index, payload = encode_documents(documents, ENCODER)
    assert decoded(index, payload) == [["badoki me .", "lura [UNK]", "no"], ["si [UNK]"]]
    assert index["sentences"].tolist() == [3, 1]
    assert index["tokens"].tolist() == [9, 2]
    assert index["unknown"].tolist() == [1, 1]
    assert index["bytes"].tolist() == [19, 3]


def test_what_gives_no_piece_is_dropped_and_counted() -> None:
    index, payload = encode_documents(["\u200b\nba", "\u00ad\n\u0301"], ENCODER)
    assert index["dropped"].tolist() == [1, 2]
    assert index["tokens"].tolist() == [1, 0]
    assert decoded(index[:1], payload) == [["ba"]]


def test_a_sentence_longer_than_64_pieces_becomes_parts() -> None:
    index, payload = encode_documents(["ba\n" + "badoki " * 100 + "\nno.", "lu"], ENCODER)
    (first, second) = decoded(index, payload)
    assert [len(sentence.split()) for sentence in first] == [1, 20, 20, 20, 20, 20, 2]
    assert (index["divided"].tolist(), index["sentences"].tolist()) == ([1, 0], [7, 1])
    assert second == ["lu"]


@given(st.lists(st.integers(0, 300), max_size=8), st.sampled_from([0.0, 0.6, 1.0]), st.integers(0))
def test_parts_are_the_sentence_and_begin_with_words(lengths, continuing, seed) -> None:
    rng = np.random.Generator(np.random.Philox(key=seed % 2**64))
    tokens = (rng.random(sum(lengths)) < continuing).astype(int)  # 1 continues a word
    found, parts_of = split_long_sentences(tokens, np.array(lengths, int), np.array([False, True]))
    ends = np.cumsum(found)
    assert len(parts_of) == len(lengths) and parts_of.sum() == len(found)
    assert np.isin(np.cumsum(lengths), ends).all() and found.max(initial=0) <= MAX_SENTENCE_TOKENS
    if continuing < 1:
        begins = np.setdiff1d(ends, np.cumsum(lengths))
        late = [b for b in begins if tokens[b] and not tokens[b - 16 : b].all()]
        assert not late  # else there was a word to begin with
    assert (parts_of <= np.maximum(1, -(-np.array(lengths, int) // 32))).all()


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=6))
def test_a_document_does_not_depend_on_its_neighbours(documents: list[str]) -> None:
    index, payload = encode_documents(documents, ENCODER)
    for document, row in zip(documents, index, strict=True):
        (alone,), record = encode_documents([document], ENCODER)
        assert record == payload[row["start"] : row["start"] + row["size"]]
        row["start"] = 0
        assert row == alone


def test_the_hash_is_of_the_text() -> None:
    index, _ = encode_documents(["a b", "a\nb", "a b", "A b"], ENCODER)
    hashes = [row.tobytes() for row in index["hash"]]
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3


# Documents to shards


@given(
    st.lists(st.integers(0, 3), min_size=30, max_size=300),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.2]),
)
def test_every_document_with_pieces_is_dealt_to_one_shard(
    tokens: list[int], shards: int, eval_fraction: float
) -> None:
    index = index_of(tokens)
    try:
        assignment = assign_shards(index, eval_fraction, False, shards)
    except InputError:
        return
    dealt = np.concatenate([rows for part in assignment.values() for rows in part])
    assert sorted(dealt) == np.flatnonzero(tokens).tolist()
    assert len(assignment["train"]) == shards
    assert bool(assignment["eval"]) == bool(eval_fraction)
    for part in assignment.values():
        sizes = [sum(tokens[row] for row in rows) for rows in part]
        assert not sizes or max(sizes) - min(sizes) <= max(tokens)
        assert all(len(rows) >= 2 and (np.diff(rows) > 0).all() for rows in part)


def test_documents_are_held_out_by_their_text_alone() -> None:
    texts = list(range(10_000))
    one = index_of([1] * 10_000, texts)
    other = index_of([5] * 10_000, texts[::-1])
    held = [
        {texts_[row] for rows in assign_shards(index, 0.05, False, 4)["eval"] for row in rows}
        for index, texts_ in ((one, texts), (other, texts[::-1]))
    ]
    assert held[0] == held[1]
    assert 400 < len(held[0]) < 600
    more = assign_shards(one, 0.1, False, 4)["eval"]
    assert held[0] < {int(row) for rows in more for row in rows}


def test_equal_texts_are_on_one_side() -> None:
    texts = [text % 50 for text in range(1000)]
    assignment = assign_shards(index_of([1] * 1000, texts), 0.3, False, 4)
    train, eval = ({texts[row] for rows in part for row in rows} for part in assignment.values())
    assert not train & eval


@given(st.lists(st.integers(0, 30), min_size=40, max_size=100).filter(lambda t: len(set(t)) > 1))
def test_of_equal_texts_the_first_is_kept(texts: list[int]) -> None:
    index = index_of([1] * len(texts), texts)
    assignment = assign_shards(index, 0, True, 1)
    assert assignment["train"][0].tolist() == sorted(
        {text: texts.index(text) for text in texts}.values()
    )
    totals = count(index, assignment)
    assert totals["documents"] == len(set(texts))
    assert totals["duplicate_documents"] == len(texts) - len(set(texts))


@pytest.mark.parametrize(
    ("documents", "tokens", "shards"),
    [
        (2, 1, 1),
        (511, 100_000, 1),  # too few documents for two
        (512, 100_000, 2),
        (100_000, 1, 1),  # too few pieces
        (2_000, 600, 4),  # a few megabytes
        (32_000, 420, 64),
        (1_000_000, 600, 256),
    ],
)
def test_larger_corpora_have_more_shards(documents: int, tokens: int, shards: int) -> None:
    index = np.zeros(documents, INDEX)
    index["tokens"] = tokens
    assert len(assign_shards(index, 0, False, None)["train"]) == shards


def test_shards_have_as_many_pieces_each() -> None:
    rng = np.random.Generator(np.random.Philox(key=4))
    tokens = (50 * (1 - rng.random(20_000)) ** -0.6).astype(int)  # some are long, as in the world
    index = np.zeros(len(tokens), INDEX)
    index["tokens"] = tokens
    sizes = [tokens[rows].sum() for rows in assign_shards(index, 0, False, 16)["train"]]
    assert max(sizes) <= 1.001 * min(sizes)


def test_every_shard_has_two_documents_if_there_are_so_many() -> None:
    for tokens in ([1000, 1, 1, 1, 1, 1, 1, 1], [7] * 8):
        dealt = assign_shards(index_of(tokens), 0, False, 4)["train"]
        assert [len(rows) for rows in dealt] == [2] * 4


def test_a_document_longer_than_a_shard_makes_shards_fewer() -> None:
    index = np.zeros(1001, INDEX)
    index["tokens"] = [1000] * 1000 + [600_000]
    assert len(assign_shards(index, 0, False, None)["train"]) == 2
    index["tokens"] = [1000] * 1000 + [2_000_000]
    assert len(assign_shards(index, 0, False, None)["train"]) == 1


def test_documents_that_are_too_short_are_left_out_and_counted() -> None:
    index = index_of([0, 5, 10, 20, 30])
    assignment = assign_shards(index, 0, False, None, Filters(min_document_tokens=10))
    assert assignment["train"][0].tolist() == [2, 3, 4]
    totals = count(index, assignment, Filters(min_document_tokens=10))
    names = ("documents", "empty_documents", "short_documents", "duplicate_documents")
    assert [totals[name] for name in names] == [3, 1, 1, 0]


def test_of_few_documents_two_are_held_out() -> None:
    for documents in (4, 40):
        assignment = assign_shards(index_of([7] * documents), 0.01, False, None)
        assert [len(rows) for rows in assignment["eval"]] == [2]


def test_held_out_shards_are_as_many_as_their_documents_fill() -> None:
    index = index_of([600] * 8000)
    assignment = assign_shards(index, 0.02, False, None)
    assert len(assignment["train"]) == 16
    assert len(assignment["eval"]) == 8
    assert len(assign_shards(index, 0.02, False, 3)["eval"]) == 3


@pytest.mark.parametrize(
    ("tokens", "eval_fraction", "shards", "complaint"),
    [
        ([], 0, None, "the input holds no document with text in it"),
        ([0, 0, 0], 0, None, "the input holds no document with text in it"),
        ([7], 0, None, "one document only, .* give two or more, a blank line between them"),
        ([7, 0], 0, None, "one document only"),
        ([7] * 9, 1 - 1e-9, None, "puts 0 of 9 documents into the train split"),
        ([7] * 9, 0, 5, "shards=5 is too many for 9 train documents, .* choose 4 or fewer"),
    ],
)
def test_too_little_text_is_refused(
    tokens: list[int], eval_fraction: float, shards: int | None, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        assign_shards(index_of(tokens), eval_fraction, False, shards)


def test_a_text_repeated_is_one_document_without_duplicates() -> None:
    with pytest.raises(InputError, match="one document only"):
        assign_shards(index_of([7, 7], [1, 1]), 0, True, None)
