"""Passages as windows with the spans that are answers."""

import functools
import pydoc_data.topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_vocabulary import CASED_TOKENS, TRICKY

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.answer_spans import (
    ENDS_WORD,
    MAX_ANSWER_LENGTH,
    STARTS_WORD,
    Passage,
    SpanWindows,
    group_answers,
    make_span_windows,
    word_boundaries,
)
from data_pipelines.finetuning.question_answering.squad import Answer, Question
from data_pipelines.finetuning.question_answering.windows import PassageCache
from data_pipelines.vocabulary.counting import count_words, sentencepiece_splitters
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.training import sentencepiece_from_counts
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(list(CASED_TOKENS), cased=True)


@functools.cache
def sentencepiece() -> SentencePieceTokenizer:
    lines = pydoc_data.topics.topics["specialnames"].split("\n")
    counts = count_words(lines, *sentencepiece_splitters())
    return SentencePieceTokenizer(
        sentencepiece_from_counts(counts, 300, kind="unigram", cased=True)
    )


def windows_of(passages: list[Passage], length: int = 12, stride: int = 4) -> SpanWindows:
    return make_span_windows(passages, TOKENIZER, length, stride, PassageCache(TOKENIZER))


def spans_in(windows: SpanWindows, window: int) -> set[tuple[int, int]]:
    """Return the first and the last token of each answer, counted in the passage."""
    begin, length = int(windows.starts[window]), int(windows.lengths[window])
    bits = windows.targets["answer_lengths"].values[begin : begin + length]
    first = int(windows.passage_starts[window]) - 1
    return {
        (first + token, first + token + extent)
        for token in range(length)
        for extent in range(32)
        if bits[token] >> extent & 1
    }


@pytest.mark.seconds
@settings(deadline=None)
@given(
    words=st.lists(st.text("abcun", min_size=1, max_size=4), min_size=1, max_size=30),
    data=st.data(),
)
def test_windows_have_the_answers_that_they_contain(words: list[str], data) -> None:
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    answers = []
    for _ in range(data.draw(st.integers(0, 4))):
        first = data.draw(st.integers(0, len(words) - 1))
        last = data.draw(st.integers(first, len(words) - 1))
        start, end = int(starts[first]), int(starts[last + 1]) - 1
        answers.append(Answer(text[start:end], start))
    cache = PassageCache(TOKENIZER)
    windows = make_span_windows([Passage(text, tuple(answers))], TOKENIZER, 12, 4, cache)
    ids, offsets = cache[text].ids, cache[text].offsets.tolist()
    begins, ends = ({span[i]: t for t, span in enumerate(offsets)} for i in (0, 1))
    golds = {(begins[a.start], ends[a.start + len(a.text)]) for a in answers}
    short = {span for span in golds if span[1] - span[0] < MAX_ANSWER_LENGTH}
    assert windows.num_long == len(golds) - len(short)
    for window, (first, count) in enumerate(
        zip(windows.passage_starts.tolist(), windows.passage_lengths.tolist(), strict=True)
    ):
        begin = int(windows.starts[window])
        row = windows.ids[begin : begin + count + 2].tolist()
        assert row == [TOKENIZER.cls_id, *ids[first : first + count], TOKENIZER.sep_id]
        inside = {span for span in short if first <= span[0] and span[1] < first + count}
        assert spans_in(windows, window) == inside
        boundaries = windows.targets["span_boundaries"].values[begin : begin + count + 2]
        assert boundaries[0] == boundaries[-1] == 0
        assert (boundaries[1:-1] == windows.boundaries_of(window)).all()
    kept = windows.with_answers()
    assert [spans_in(kept, i) for i in range(len(kept))] == [
        spans for i in range(len(windows)) if (spans := spans_in(windows, i))
    ]
    assert (kept.prefix_lengths == kept.lengths).all()  # one token type


@pytest.mark.seconds
@settings(deadline=None)
@given(text=st.text(TRICKY, max_size=30), is_sentencepiece=st.booleans())
def test_spans_of_words_begin_and_end_between_words(text: str, is_sentencepiece: bool) -> None:
    tokenizer = sentencepiece() if is_sentencepiece else TOKENIZER
    passage = PassageCache(tokenizer)[text]
    bits = word_boundaries(text, passage, tokenizer.is_continuation)
    has_text = passage.offsets[:, 1] > passage.offsets[:, 0]
    assert not bits[~has_text].any()
    bits, offsets = bits[has_text], passage.offsets[has_text]
    if len(bits):
        assert bits[0] & STARTS_WORD and bits[-1] & ENDS_WORD
    assert ((bits[1:] & STARTS_WORD > 0) == (bits[:-1] & ENDS_WORD > 0)).all()
    for bit, (start, end) in zip(bits.tolist(), offsets.tolist(), strict=True):
        before, after = text[:start][-1:], text[end:][:1]
        if not before.isalnum() or not text[start].isalnum() or not before.isascii():
            continue
        if text[start].isascii():
            assert not bit & STARTS_WORD
        if after.isascii() and after.isalnum() and text[end - 1].isascii():
            assert not (text[end - 1].isalnum() and bit & ENDS_WORD)


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("unwant ed", [0, 7], [6, 9]),
        ("(b)", [0, 1, 2], [1, 2, 3]),
        ("日本 a", [0, 1, 3], [1, 2, 4]),
    ],
)
def test_word_boundaries_of_examples(text: str, starts: list[int], ends: list[int]) -> None:
    passage = PassageCache(TOKENIZER)[text]
    bits = word_boundaries(text, passage, TOKENIZER.is_continuation)
    assert passage.offsets[bits & STARTS_WORD > 0, 0].tolist() == starts
    assert passage.offsets[bits & ENDS_WORD > 0, 1].tolist() == ends


def test_answers_inside_a_word_become_the_word() -> None:
    windows = windows_of([Passage("a unwanted b", (Answer("want", 4),))])
    ((first, last),) = spans_in(windows, 0)
    offsets = PassageCache(TOKENIZER)["a unwanted b"].offsets
    assert (offsets[first, 0], offsets[last, 1]) == (2, 10)


def test_group_answers_joins_the_questions_of_a_passage() -> None:
    text = "a b c b"
    questions = [
        Question("1", "", text, (Answer("a", 0), Answer("b", 2))),
        Question("2", "", "x"),
        Question("3", "", text, (Answer("b", 2), Answer("b", 5), Answer("z", 0))),
        Question("4", "", text, (Answer("c", 4),), is_impossible=True),
    ]
    passages, num_missing = group_answers(questions)
    assert passages == [
        Passage(text, (Answer("a", 0), Answer("b", 2), Answer("b", 6))),
        Passage("x"),
    ]
    assert num_missing == 1


def test_passages_without_tokens_have_a_window() -> None:
    windows = windows_of([Passage("\u200b"), Passage("a")])
    assert windows.lengths.tolist() == [2, 3] and windows.passage_indices.tolist() == [0, 1]
    assert len(windows.with_answers()) == 0


@pytest.mark.parametrize("stride", [0, 11])
def test_windows_may_not_skip_tokens(stride: int) -> None:
    windows_of([Passage("a")], 12, 10)
    with pytest.raises(InputError, match=f"^doc_stride={stride}: windows would skip tokens"):
        windows_of([Passage("a")], 12, stride)
