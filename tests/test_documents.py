"""Tests of the encoding of documents and of their assignment to shards."""

import hashlib

import numpy as np
import pytest
from conftest import TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import (
    INDEX,
    MAX_SENTENCE_TOKENS,
    assign_shards,
    compute_totals,
    encode_documents,
    split_long_sentences,
    unpack_documents,
)
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.shards import token_dtype
from data_pipelines.errors import InputError

ENCODER = BulkEncoder(TOKENIZER)
NO_EVAL = CorpusOptions(eval_fraction=0)
DTYPE = token_dtype(len(TOKENIZER.tokens))

texts = st.text(st.characters(codec="utf-8"), min_size=1)


def decoded(index: np.ndarray, payload: bytes) -> list[list[str]]:
    """Return the sentences of every document, as text."""
    documents = []
    for i, row in enumerate(index):
        record = payload[row["start"] : row["start"] + row["size"]]
        tokens, lengths, _ = unpack_documents(index[i : i + 1], [record], DTYPE)
        sentences = np.split(tokens, np.cumsum(lengths)[:-1])
        documents.append([TOKENIZER.decode(sentence.tolist()) for sentence in sentences])
    return documents


def index_of(tokens: list[int], texts: list[int] | None = None) -> np.ndarray:
    """Return an index of documents with these token counts; equal `texts` have equal hashes."""
    index = np.zeros(len(tokens), INDEX)
    index["tokens"] = tokens
    for row, text in zip(index, texts or range(len(tokens)), strict=True):
        row["hash"] = np.frombuffer(hashlib.blake2b(b"%d" % text, digest_size=16).digest(), "<u8")
    return index


# Documents to ids


def test_encode_documents_splits_sentences() -> None:
    documents = ["Badoki me. Lura!\nNo", "Si?"]
    index, payload = encode_documents(documents, ENCODER)
    assert decoded(index, payload) == [["badoki me .", "lura [UNK]", "no"], ["si [UNK]"]]
    assert index["sentences"].tolist() == [3, 1]
    assert index["tokens"].tolist() == [9, 2]
    assert index["unknown"].tolist() == [1, 1]
    assert index["bytes"].tolist() == [19, 3]


def test_encode_documents_drops_and_counts_empty_sentences() -> None:
    index, payload = encode_documents(["\u200b\nba", "\u00ad\n\u0301"], ENCODER)
    assert index["empty"].tolist() == [1, 2]
    assert index["tokens"].tolist() == [1, 0]
    assert decoded(index[:1], payload) == [["ba"]]


def test_encode_documents_splits_long_sentences() -> None:
    index, payload = encode_documents(["ba\n" + "badoki " * 100 + "\nno.", "lu"], ENCODER)
    (first, second) = decoded(index, payload)
    assert [len(sentence.split()) for sentence in first] == [1, 20, 20, 20, 20, 20, 2]
    assert (index["long"].tolist(), index["sentences"].tolist()) == ([1, 0], [7, 1])
    assert second == ["lu"]


@given(st.lists(st.integers(0, 300), max_size=8), st.sampled_from([0.0, 0.6, 1.0]), st.integers(0))
def test_split_long_sentences_prefers_word_starts(lengths, continuing, seed) -> None:
    rng = np.random.Generator(np.random.Philox(key=seed % 2**64))
    tokens = (rng.random(sum(lengths)) < continuing).astype(int)  # 1 continues a word
    part_lengths, num_parts = split_long_sentences(np.array(lengths, int), tokens == 1)
    ends = np.cumsum(part_lengths)
    assert len(num_parts) == len(lengths) and num_parts.sum() == len(part_lengths)
    assert np.isin(np.cumsum(lengths), ends).all()
    assert part_lengths.max(initial=0) <= MAX_SENTENCE_TOKENS
    if continuing < 1:
        begins = np.setdiff1d(ends, np.cumsum(lengths))
        late = [b for b in begins if tokens[b] and not tokens[b - 16 : b].all()]
        assert not late  # otherwise a word started in the second half of the part
    assert (num_parts <= np.maximum(1, -(-np.array(lengths, int) // 32))).all()


@pytest.mark.seconds
@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=6))
def test_encode_documents_encodes_each_document_independently(documents: list[str]) -> None:
    index, payload = encode_documents(documents, ENCODER)
    for document, row in zip(documents, index, strict=True):
        (alone,), record = encode_documents([document], ENCODER)
        assert record == payload[row["start"] : row["start"] + row["size"]]
        row["start"] = 0
        assert row == alone


def test_encode_documents_hashes_the_text() -> None:
    index, _ = encode_documents(["a b", "a\nb", "a b", "A b"], ENCODER)
    hashes = [row.tobytes() for row in index["hash"]]
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3


# Documents to shards


@pytest.mark.seconds
@given(
    st.lists(st.integers(0, 3), min_size=30, max_size=300),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.2]),
)
def test_assign_shards_assigns_each_document_once(
    tokens: list[int], num_shards: int, eval_fraction: float
) -> None:
    index = index_of(tokens)
    try:
        assignment = assign_shards(index, CorpusOptions(eval_fraction, num_shards=num_shards))
    except InputError:
        return
    assigned = np.concatenate([rows for shards in assignment.values() for rows in shards])
    assert sorted(assigned) == np.flatnonzero(tokens).tolist()
    assert len(assignment["train"]) == num_shards
    assert bool(assignment["eval"]) == bool(eval_fraction)
    for shards in assignment.values():
        sizes = [sum(tokens[row] for row in rows) for rows in shards]
        assert not sizes or max(sizes) - min(sizes) <= max(tokens)
        assert all(len(rows) >= 2 and (np.diff(rows) > 0).all() for rows in shards)


def test_assign_shards_chooses_the_eval_split_by_text_alone() -> None:
    texts = list(range(10_000))
    index = index_of([1] * 10_000, texts)
    reversed_index = index_of([5] * 10_000, texts[::-1])
    eval_texts, reversed_eval_texts = (
        {
            row_texts[row]
            for rows in assign_shards(table, CorpusOptions(0.05, num_shards=4))["eval"]
            for row in rows
        }
        for table, row_texts in ((index, texts), (reversed_index, texts[::-1]))
    )
    assert eval_texts == reversed_eval_texts
    assert 400 < len(eval_texts) < 600
    more = assign_shards(index, CorpusOptions(0.1, num_shards=4))["eval"]
    assert eval_texts < {int(row) for rows in more for row in rows}


def test_assign_shards_keeps_equal_texts_in_one_split() -> None:
    texts = [text % 50 for text in range(1000)]
    assignment = assign_shards(index_of([1] * 1000, texts), CorpusOptions(0.3, num_shards=4))
    train_texts, eval_texts = (
        {texts[row] for rows in shards for row in rows} for shards in assignment.values()
    )
    assert not train_texts & eval_texts


@pytest.mark.seconds
@given(st.lists(st.integers(0, 30), min_size=40, max_size=100).filter(lambda t: len(set(t)) > 1))
def test_assign_shards_keeps_the_first_of_equal_texts(texts: list[int]) -> None:
    index = index_of([1] * len(texts), texts)
    assignment = assign_shards(index, CorpusOptions(eval_fraction=0, dedup=True))
    assert assignment["train"][0].tolist() == sorted(
        {text: texts.index(text) for text in texts}.values()
    )
    totals = compute_totals(index, assignment)
    assert totals["documents"] == len(set(texts))
    assert totals["duplicate_documents"] == len(texts) - len(set(texts))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("documents", "tokens", "num_shards"),
    [
        (2, 1, 1),
        (511, 100_000, 1),  # too few documents for two shards
        (512, 100_000, 2),
        (100_000, 1, 1),  # too few tokens
        (2_000, 600, 4),  # a few megabytes
        (32_000, 420, 64),
        (1_000_000, 600, 256),
    ],
)
def test_assign_shards_makes_more_shards_of_larger_corpora(
    documents: int, tokens: int, num_shards: int
) -> None:
    index = np.zeros(documents, INDEX)
    index["tokens"] = tokens
    assert len(assign_shards(index, NO_EVAL)["train"]) == num_shards


def test_assign_shards_balances_tokens() -> None:
    rng = np.random.Generator(np.random.Philox(key=4))
    tokens = (50 * (1 - rng.random(20_000)) ** -0.6).astype(int)  # a long tail, as in real text
    index = np.zeros(len(tokens), INDEX)
    index["tokens"] = tokens
    sizes = [
        tokens[rows].sum()
        for rows in assign_shards(index, CorpusOptions(0, num_shards=16))["train"]
    ]
    assert max(sizes) <= 1.001 * min(sizes)


def test_assign_shards_gives_each_shard_two_documents() -> None:
    for tokens in ([1000, 1, 1, 1, 1, 1, 1, 1], [7] * 8):
        shards = assign_shards(index_of(tokens), CorpusOptions(0, num_shards=4))["train"]
        assert [len(rows) for rows in shards] == [2] * 4


def test_assign_shards_makes_fewer_shards_if_a_document_is_long() -> None:
    index = np.zeros(1001, INDEX)
    index["tokens"] = [1000] * 1000 + [600_000]
    assert len(assign_shards(index, NO_EVAL)["train"]) == 2
    index["tokens"] = [1000] * 1000 + [2_000_000]
    assert len(assign_shards(index, NO_EVAL)["train"]) == 1


def test_assign_shards_drops_short_documents() -> None:
    index = index_of([0, 5, 10, 20, 30])
    filters = Filters(min_document_tokens=10)
    assignment = assign_shards(index, CorpusOptions(eval_fraction=0, filters=filters))
    assert assignment["train"][0].tolist() == [2, 3, 4]
    totals = compute_totals(index, assignment, filters)
    names = ("documents", "empty_documents", "short_documents", "duplicate_documents")
    assert [totals[name] for name in names] == [3, 1, 1, 0]


def test_assign_shards_puts_two_documents_into_the_eval_split() -> None:
    for documents in (4, 40):
        assignment = assign_shards(index_of([7] * documents), CorpusOptions(0.01))
        assert [len(rows) for rows in assignment["eval"]] == [2]


def test_assign_shards_splits_two_repeated_texts() -> None:
    index = index_of([9] * 7, [1, 2, 1, 2, 1, 2, 2])
    assignment = assign_shards(index, CorpusOptions(0.01))
    texts = [
        {int(index["hash"][row, 0]) for rows in assignment[s] for row in rows} for s in assignment
    ]
    assert sorted(map(len, texts)) == [1, 1]
    assert sum(len(rows) for split in assignment.values() for rows in split) == 7


def test_assign_shards_limits_the_eval_shards() -> None:
    index = index_of([600] * 8000)
    assignment = assign_shards(index, CorpusOptions(0.02))
    assert len(assignment["train"]) == 16
    assert len(assignment["eval"]) == 8
    assert len(assign_shards(index, CorpusOptions(0.02, num_shards=3))["eval"]) == 3


@pytest.mark.parametrize(
    ("tokens", "eval_fraction", "num_shards", "message"),
    [
        ([], 0, None, "documents=0: a random next sentence needs another document"),
        ([0, 0, 0], 0, None, "documents=0: a random next sentence needs another document"),
        (
            [7],
            0,
            None,
            "documents=1: .* Provide two or more documents with text, separated by blank lines",
        ),
        ([7, 0], 0, None, "documents=1: a random next sentence needs another document"),
        ([7] * 9, 1 - 1e-9, None, ": 0 of 9 documents in the train split, which needs two"),
        ([7] * 9, 0, 5, "num_shards=5: too many for 9 train documents, .* Use at most 4"),
    ],
)
def test_assign_shards_rejects_too_little_text(
    tokens: list[int], eval_fraction: float, num_shards: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        assign_shards(index_of(tokens), CorpusOptions(eval_fraction, num_shards=num_shards))


def test_assign_shards_rejects_one_repeated_text() -> None:
    with pytest.raises(InputError, match="documents=1: "):
        assign_shards(index_of([7, 7], [1, 1]), CorpusOptions(eval_fraction=0, dedup=True))
