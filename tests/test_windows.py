"""Windows of passages, and where their answers are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import Answer, Question, read_squad
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    WindowOptions,
    locate_answer,
    make_windows,
    max_context_windows,
    window_starts,
)
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *"?.,!"], cased=False
)
OPTIONS = WindowOptions(max_seq_length=24, doc_stride=6, max_query_length=5)


@given(tokens=st.integers(0, 300), room=st.integers(1, 60), data=st.data())
def test_max_context_windows_returns_one_window_for_each_token(
    tokens: int, room: int, data
) -> None:
    doc_stride = data.draw(st.integers(1, room))
    starts = window_starts(tokens, room, doc_stride)
    parts = [min(room, tokens - start) for start in starts]
    counts = np.zeros(tokens, int)
    for start, part in zip(starts, parts, strict=True):
        counts[start : start + part] += 1
    assert (counts >= 1).all()
    assert all(later - start <= doc_stride for start, later in itertools.pairwise(starts))
    assert starts[-1] + room >= tokens
    windows = max_context_windows(starts, parts, tokens)
    for token, window in enumerate(windows):
        inside = [
            (min(token - start, start + part - 1 - token) + 0.01 * part, -number)
            for number, (start, part) in enumerate(zip(starts, parts, strict=True))
            if start <= token < start + part
        ]
        assert -max(inside)[1] == window


@settings(deadline=None)
@given(
    words=st.lists(st.text("abcdefgh", min_size=1, max_size=5), max_size=40),
    text=st.text("abc ?", max_size=20),
)
def test_make_windows_joins_question_and_passage_part(words: list[str], text: str) -> None:
    question = Question("q", text, " ".join(words))
    passages = PassageCache(TOKENIZER)
    windows = make_windows([question], TOKENIZER, OPTIONS, passages)
    query = TOKENIZER.encode(text)
    passage_ids = passages[question.passage].ids
    ends = np.cumsum(windows.lengths)
    for number in range(len(windows)):
        ids = windows.ids[ends[number] - windows.lengths[number] : ends[number]]
        first, part = windows.passage_starts[number], windows.passage_lengths[number]
        prefix = [TOKENIZER.cls_id, *query[: OPTIONS.max_query_length], TOKENIZER.sep_id]
        assert ids.tolist() == [*prefix, *passage_ids[first : first + part], TOKENIZER.sep_id]
        assert len(ids) <= OPTIONS.max_seq_length
    assert len(windows.truncated) == (len(query) > OPTIONS.max_query_length)


def test_make_windows_targets_are_answer_tokens_or_cls() -> None:
    passage = " ".join(LETTERS)  # one token each
    answer = Answer("k l m", 20)
    question = Question("q", "a?", passage, (answer,))
    windows = make_windows([question], TOKENIZER, OPTIONS, PassageCache(TOKENIZER), [answer])
    target = windows.targets["answer_positions"]
    assert target.level == "position" and target.weights is None
    for number in range(len(windows)):
        first, length = windows.passage_starts[number], windows.passage_lengths[number]
        prefix_length = windows.prefix_lengths[number]
        has_answer = first <= 10 and first + length > 12
        answer_tokens = [10 - first + prefix_length, 12 - first + prefix_length]
        expected = answer_tokens if has_answer else [0, 0]
        assert target.values[number].tolist() == expected
    assert 0 < (target.values[:, 0] > 0).sum() < len(windows)


@pytest.mark.parametrize(("passage", "windows"), [("", 1), ("a " * 50_000, 8_332)])
def test_make_windows_splits_empty_and_huge_passages(passage: str, windows: int) -> None:
    question = Question("q", "a?", passage)
    assert len(make_windows([question], TOKENIZER, OPTIONS, PassageCache(TOKENIZER))) == windows


def test_window_options_reject_a_stride_that_skips_tokens() -> None:
    with pytest.raises(
        InputError, match=r"^doc_stride=300: .* at least 1 and at most .* = 61\. Change"
    ):
        WindowOptions(max_seq_length=128, doc_stride=300)


@pytest.mark.parametrize("max_query_length", [0, -1])
def test_window_options_reject_an_empty_question(max_query_length: int) -> None:
    with pytest.raises(
        InputError, match=f"^max_query_length={max_query_length}: .* Set it to 1 or"
    ):
        WindowOptions(max_query_length=max_query_length)


def make_question(text: str, start: int, passage: str = "no, yes and yes") -> Question:
    return Question("q", "?", passage, (Answer(text, start),))


@pytest.mark.parametrize(
    ("question", "start", "problem"),
    [
        (make_question("yes", 4), 4, None),
        (make_question("yes", 5), 4, "is not at character 5 of its passage, but at 4"),
        (make_question("yes", 400), 12, "is not at character 400 of its passage, but at 12"),
        (make_question("yes", -1), 4, "but at 4"),
        (make_question("maybe", 0), None, "nor anywhere in it"),
        (make_question("", 0), None, "nor anywhere in it"),
        (Question("q", "?", "x"), None, None),
        (Question("q", "?", "x", (Answer("x", 0),), is_impossible=True), None, None),
    ],
    ids=str,
)
def test_locate_answer_finds_the_nearest_occurrence(question, start, problem) -> None:
    answer, found = locate_answer(question)
    assert (answer.start if answer else None) == start
    assert found is None if problem is None else problem in found


def test_locate_answer_finds_misplaced_answers_of_a_published_set(data_dir) -> None:
    questions = read_squad(data_dir / "xquad" / "cmrc2018_trial.json").questions
    assert sum(locate_answer(question)[1] is not None for question in questions) == 5


STRANGE = "Ἀθῆναι ΟΔΟΣ\u00a0naïve\tcafé e\u0301t\u0301e 東京都🙂 İstanbul ﬁne—so “x”"


@pytest.mark.parametrize("cased", [False, True])
@settings(deadline=None)
@given(text=st.one_of(st.text(), st.text(alphabet=STRANGE), st.just(STRANGE)))
def test_encode_with_offsets_returns_the_characters_of_tokens(
    cased: bool, text: str, multilingual
) -> None:
    tokenizer = multilingual[cased]
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(offsets) == len(ids)
    assert all(0 <= start < end <= len(text) for start, end in offsets)
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)
    for number, (start, end) in zip(ids, offsets, strict=True):
        token = tokenizer.tokens[number].removeprefix("##")
        covered = text[start:end]
        if number != tokenizer.unk_id and covered.isascii():
            assert token == (covered if cased else covered.lower())


@pytest.fixture(scope="module")
def multilingual() -> dict[bool, WordPieceTokenizer]:
    signs = [chr(code) for code in range(33, 127)]
    extra = [*"東京都αθ—“”ο🙂", "##η", "##ν", "##α", "##ι", "##ς"]
    lower = [sign for sign in signs if not sign.isupper()]
    tokenizers = {}
    for cased, basic in ((True, signs), (False, lower)):
        tokens = [*SPECIAL_TOKENS, *basic, *(f"##{s}" for s in basic if s.isalnum()), *extra]
        tokenizers[cased] = WordPieceTokenizer(tokens, cased=cased)
    return tokenizers


@pytest.mark.slow
def test_make_windows_matches_the_published_code_on_squad(data_dir) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    questions = read_squad(data_dir / "squad" / "dev-v1.1.json").questions
    windows = make_windows(questions, tokenizer, WindowOptions(), PassageCache(tokenizer))
    assert len(windows) == 10_833  # as google-research/bert makes
