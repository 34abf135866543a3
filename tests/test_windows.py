"""Every piece of a passage is in some window, and is judged in exactly one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Answer, Question, read_squad
from data_pipelines.finetuning.windows import (
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
def test_windows_cover_a_passage_and_each_piece_has_one_of_maximum_context(
    tokens: int, room: int, data
) -> None:
    doc_stride = data.draw(st.integers(1, room))
    starts = window_starts(tokens, room, doc_stride)
    parts = [min(room, tokens - start) for start in starts]
    seen = np.zeros(tokens, int)
    for start, part in zip(starts, parts, strict=True):
        seen[start : start + part] += 1
    assert (seen >= 1).all()
    assert all(later - start <= doc_stride for start, later in itertools.pairwise(starts))
    assert starts[-1] + room >= tokens
    judge = max_context_windows(starts, parts, tokens)
    for token, window in enumerate(judge):
        inside = [
            (min(token - start, start + part - 1 - token) + 0.01 * part, -number)
            for number, (start, part) in enumerate(zip(starts, parts, strict=True))
            if start <= token < start + part
        ]
        assert -max(inside)[1] == window


@settings(deadline=None)
@given(
    words=st.lists(st.text("abcdefgh", min_size=1, max_size=5), max_size=40),
    asked=st.text("abc ?", max_size=20),
)
def test_a_window_is_question_and_part_of_the_passage(words: list[str], asked: str) -> None:
    question = Question("q", asked, " ".join(words))
    passages = PassageCache(TOKENIZER)
    windows = make_windows([question], TOKENIZER, OPTIONS, passages)
    query = TOKENIZER.encode(asked)
    whole = passages[question.passage].ids
    ends = np.cumsum(windows.lengths)
    for number in range(len(windows)):
        ids = windows.ids[ends[number] - windows.lengths[number] : ends[number]]
        first, part = windows.first[number], windows.parts[number]
        head = [TOKENIZER.cls_id, *query[: OPTIONS.max_query_length], TOKENIZER.sep_id]
        assert ids.tolist() == [*head, *whole[first : first + part], TOKENIZER.sep_id]
        assert len(ids) <= OPTIONS.max_seq_length
    assert windows.num_truncated == (len(query) > OPTIONS.max_query_length)


def test_targets_are_the_pieces_of_the_answer_or_the_first_piece() -> None:
    passage = " ".join(LETTERS)  # a piece a letter
    answer = Answer("k l m", 20)
    question = Question("q", "a?", passage, (answer,))
    windows = make_windows([question], TOKENIZER, OPTIONS, PassageCache(TOKENIZER), [answer])
    target = windows.targets["answer_positions"]
    assert target.level == "position" and target.weights is None
    for number in range(len(windows)):
        first, part, prefix = (x[number] for x in (windows.first, windows.parts, windows.prefix))
        holds = first <= 10 and first + part > 12
        expected = [10 - first + prefix, 12 - first + prefix] if holds else [0, 0]
        assert target.values[number].tolist() == expected
    assert 0 < (target.values[:, 0] > 0).sum() < len(windows)


@pytest.mark.parametrize(("passage", "windows"), [("", 1), ("a " * 50_000, 8_332)])
def test_empty_and_huge_passages_have_windows(passage: str, windows: int) -> None:
    question = Question("q", "a?", passage)
    assert len(make_windows([question], TOKENIZER, OPTIONS, PassageCache(TOKENIZER))) == windows


def test_a_stride_that_would_leave_pieces_out_is_refused() -> None:
    with pytest.raises(InputError, match=r"stride=300 must be at least 1 and at most .* = 61"):
        WindowOptions(max_seq_length=128, doc_stride=300)


@pytest.mark.parametrize("max_query_length", [0, -1])
def test_a_question_of_nothing_is_refused(max_query_length: int) -> None:
    with pytest.raises(InputError, match=f"max_query_length={max_query_length} must be at least 1"):
        WindowOptions(max_query_length=max_query_length)


def asked(text: str, start: int, passage: str = "no, yes and yes") -> Question:
    return Question("q", "?", passage, (Answer(text, start),))


@pytest.mark.parametrize(
    ("question", "start", "complaint"),
    [
        (asked("yes", 4), 4, None),
        (asked("yes", 5), 4, "is not at character 5 of its passage, but at 4"),
        (asked("yes", 400), 12, "is not at character 400 of its passage, but at 12"),
        (asked("yes", -1), 4, "but at 4"),
        (asked("maybe", 0), None, "nor anywhere in it"),
        (asked("", 0), None, "nor anywhere in it"),
        (Question("q", "?", "x"), None, None),
    ],
    ids=str,
)
def test_an_answer_is_taken_where_its_text_is(question, start, complaint) -> None:
    answer, phrase = locate_answer(question)
    assert (answer.start if answer else None) == start
    assert phrase is None if complaint is None else complaint in phrase


def test_answers_out_of_place_in_a_published_set_are_found(data_dir) -> None:
    questions = read_squad(data_dir / "xquad" / "cmrc2018_trial.json").questions
    assert sum(locate_answer(question)[1] is not None for question in questions) == 5


STRANGE = "Ἀθῆναι ΟΔΟΣ\u00a0naïve\tcafé e\u0301t\u0301e 東京都🙂 İstanbul ﬁne—so “x”"


@pytest.mark.parametrize("cased", [False, True])
@settings(deadline=None)
@given(text=st.one_of(st.text(), st.text(alphabet=STRANGE), st.just(STRANGE)))
def test_spans_are_where_the_pieces_stand(cased: bool, text: str, multilingual) -> None:
    tokenizer = multilingual[cased]
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(spans) == len(ids)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    for number, (start, end) in zip(ids, spans, strict=True):
        token = tokenizer.tokens[number].removeprefix("##")
        there = text[start:end]
        if number != tokenizer.unk_id and there.isascii():
            assert token == (there if cased else there.lower())


@pytest.fixture(scope="module")
def multilingual() -> dict[bool, WordPieceTokenizer]:
    signs = [chr(code) for code in range(33, 127)]
    extra = [
        "東",
        "京",
        "都",
        "α",
        "θ",
        "##η",
        "##ν",
        "##α",
        "##ι",
        "—",
        "“",
        "”",
        "ο",
        "##ς",
        "🙂",
    ]
    lower = [sign for sign in signs if not sign.isupper()]
    made = {}
    for cased, basic in ((True, signs), (False, lower)):
        tokens = [*SPECIAL_TOKENS, *basic, *(f"##{s}" for s in basic if s.isalnum()), *extra]
        made[cased] = WordPieceTokenizer(tokens, cased=cased)
    return made


@pytest.mark.slow
def test_real_passages_have_the_known_number_of_windows(data_dir) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    questions = read_squad(data_dir / "squad" / "dev-v1.1.json").questions
    windows = make_windows(questions, tokenizer, WindowOptions(), PassageCache(tokenizer))
    assert len(windows) == 10_833  # of the original code
