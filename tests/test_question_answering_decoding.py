"""Answers are the passage spans with the highest sum of start and end logits."""

import dataclasses
import functools
import pathlib

import numpy as np
import pytest
from conftest import in_test_all

from bertjax.tasks.question_answering.decoding import (
    MAX_ANSWER_LENGTH,
    N_BEST_SIZE,
    Prediction,
    decode,
)
from bertjax.tasks.question_answering.metrics import score
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    QuestionAnsweringDataset,
    read_squad,
)
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    PassageWindows,
    TokenizedPassage,
    WindowOptions,
    locate_answer,
    make_windows,
)
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "?"], cased=False
)
OPTIONS = WindowOptions(max_seq_length=64, doc_stride=20, max_query_length=4)
PASSAGE = " ".join(LETTERS * 4)


def windows_of(question: Question) -> tuple[PassageWindows, PassageCache]:
    passages = PassageCache(TOKENIZER)
    return make_windows([question], TOKENIZER, OPTIONS, passages), passages


def constant_logits(windows: PassageWindows, value: float = -10.0) -> list[np.ndarray]:
    return [np.full((length, 2), value, np.float32) for length in windows.lengths]


def answer(
    question: Question, logits, windows: PassageWindows, passages: PassageCache
) -> Prediction:
    (prediction,) = decode([question], windows, passages, logits)
    return prediction


QUESTION = Question("q", "a?", PASSAGE)


def test_decode_returns_best_span_of_all_windows() -> None:
    windows, passages = windows_of(QUESTION)
    assert len(windows) > 2
    logits = constant_logits(windows)
    for number in range(len(windows)):  # the same span in each window that contains it
        first, prefix = windows.passage_starts[number], windows.prefix_lengths[number]
        for place, kind in ((40, 0), (43, 1)):
            if first <= place < first + windows.passage_lengths[number]:
                logits[number][place - first + prefix, kind] = 5
    best = answer(QUESTION, logits, windows, passages).candidates[0]
    assert (best.start, best.end) == (80, 87)
    assert best.text == PASSAGE[80:87] == "o p q r"
    assert best.score == 10


@pytest.mark.parametrize(
    ("start", "end", "fits"),
    [
        (5, 5, True),
        (5, 4, False),
        (5, 4 + MAX_ANSWER_LENGTH, True),
        (5, 5 + MAX_ANSWER_LENGTH, False),
    ],
)
def test_decode_limits_the_span_length(start: int, end: int, fits: bool) -> None:
    windows, passages = windows_of(QUESTION)
    logits = constant_logits(windows, 0)
    prefix = windows.prefix_lengths[0]
    logits[0][prefix + start, 0] = logits[0][prefix + end, 1] = 9
    best = answer(QUESTION, logits, windows, passages).candidates[0]
    assert (best.score == 18) is fits


def test_decode_uses_the_window_of_maximum_context() -> None:
    windows, passages = windows_of(QUESTION)
    logits = constant_logits(windows)
    edge = windows.passage_lengths[0] - 1  # it has more context in the second window
    logits[0][windows.prefix_lengths[0] + edge] = 20
    prediction = answer(QUESTION, logits, windows, passages)
    assert all(candidate.start != 2 * edge for candidate in prediction.candidates)


def test_decode_ignores_question_and_special_tokens() -> None:
    windows, passages = windows_of(QUESTION)
    logits = constant_logits(windows)
    for number in range(len(windows)):
        logits[number][: windows.prefix_lengths[number]] = 50
        logits[number][-1] = 50
    prediction = answer(QUESTION, logits, windows, passages)
    assert all(candidate.score == -20 for candidate in prediction.candidates)
    assert prediction.null.score == 100


def test_decode_ignores_tokens_without_characters() -> None:
    windows, passages = windows_of(QUESTION)
    spans = passages[PASSAGE].offsets.copy()
    spans[40, 1] = spans[40, 0]  # as SentencePiece's word-start mark
    passages[PASSAGE] = TokenizedPassage(passages[PASSAGE].ids, spans)
    logits = constant_logits(windows)
    for number in range(len(windows)):
        at = 40 - windows.passage_starts[number]
        if 0 <= at < windows.passage_lengths[number]:
            logits[number][at + windows.prefix_lengths[number]] = 9
    prediction = answer(QUESTION, logits, windows, passages)
    assert prediction.candidates and all(candidate.text for candidate in prediction.candidates)


def test_null_score_is_the_lowest_over_windows() -> None:
    windows, passages = windows_of(QUESTION)
    logits = constant_logits(windows)
    for number in range(len(windows)):
        logits[number][0] = 3 + number
    prediction = answer(QUESTION, logits, windows, passages)
    assert prediction.null.score == 6
    assert prediction.null_odds == 26
    assert prediction.answer(25.9).text == "" and prediction.answer(26.0).text != ""


@pytest.mark.parametrize(("text", "passage"), [("a?", ""), ("", "a b"), ("", "")])
def test_decode_accepts_empty_question_and_passage(text: str, passage: str) -> None:
    question = Question("q", text, passage)
    windows, passages = windows_of(question)
    prediction = answer(question, constant_logits(windows), windows, passages)
    assert prediction.answer(None).text == ("a" if passage else "")
    (first, *_) = prediction.probabilities(with_null=True)
    assert 0 < first[1] <= 1
    if not passage:
        assert prediction.candidates == [] and prediction.answer(0.0) == prediction.null


def test_candidates_are_distinct_and_probabilities_sum_to_1() -> None:
    windows, passages = windows_of(QUESTION)
    random = np.random.default_rng(0)
    logits = [
        random.normal(size=values.shape).astype(np.float32) for values in constant_logits(windows)
    ]
    prediction = answer(QUESTION, logits, windows, passages)
    texts = [candidate.text for candidate in prediction.candidates]
    assert len(set(texts)) == len(texts) == N_BEST_SIZE
    scores = [candidate.score for candidate in prediction.candidates]
    assert scores == sorted(scores, reverse=True)
    for with_null in (False, True):
        listed = prediction.probabilities(with_null)
        assert sum(probability for _, probability in listed) == pytest.approx(1)
        assert len(listed) == N_BEST_SIZE + with_null


@pytest.mark.parametrize("null_score", [-0.25, 0.25, 0.75, 1.5])
def test_null_regression_is_a_probability_beside_those_of_spans(null_score: float) -> None:
    windows, passages = windows_of(QUESTION)
    logits = constant_logits(windows)
    for values in logits:
        values[0] = null_score / 2
    prediction = dataclasses.replace(
        answer(QUESTION, logits, windows, passages), has_null_regression=True
    )
    assert prediction.null_odds == null_score - 0.5
    assert (prediction.answer(0.0).text == "") is (null_score > 0.5)
    listed = prediction.probabilities(with_null=True)
    assert [p for candidate, p in listed if candidate is prediction.null] == [
        min(max(null_score, 0), 1)
    ]
    assert sum(p for _, p in listed) == pytest.approx(1)
    assert prediction.null not in [c for c, _ in prediction.probabilities(with_null=False)]


@functools.cache
def vocabulary(path: pathlib.Path):
    return load_tokenizer(path)


def decode_gold_logits(data: QuestionAnsweringDataset, tokenizer) -> dict[str, str]:
    """Return the answers to logits that point at the first gold answer."""
    passages = PassageCache(tokenizer)
    answers: list[Answer | None] = [locate_answer(question)[0] for question in data.questions]
    windows = make_windows(data.questions, tokenizer, WindowOptions(), passages, answers)
    logits = constant_logits(windows, -5)
    for number, (start, end) in enumerate(windows.targets["answer_positions"].values):
        logits[number][start, 0] = logits[number][end, 1] = 5
    answers_by_id = {}
    for prediction in decode(data.questions, windows, passages, logits):
        best = prediction.answer(None)
        assert best.text == prediction.question.passage[best.start : best.end]
        answers_by_id[prediction.question.id] = best.text
    return answers_by_id


@pytest.mark.slow
def test_decode_returns_gold_answers_of_squad(data_dir) -> None:
    data = read_squad(data_dir / "squad" / "dev-v1.1.json")
    tokenizer = vocabulary(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    predictions = decode_gold_logits(data, tokenizer)
    wrong = [
        q
        for q in data.questions
        if score(QuestionAnsweringDataset([q], 1), predictions)["exact"] == 0
    ]
    # These gold answers begin or end within a token ("1940" of "1940s"), or are longer than
    # MAX_ANSWER_LENGTH.
    assert len(wrong) == 32
    for question in wrong:
        gold = question.answers[0]
        _, spans = tokenizer.encode_with_offsets(question.passage)
        starts, ends = ({span[i] for span in spans} for i in (0, 1))
        tokens = [s for s in spans if s[0] < gold.start + len(gold.text) and s[1] > gold.start]
        within = gold.start not in starts or gold.start + len(gold.text) not in ends
        assert within or len(tokens) > MAX_ANSWER_LENGTH, (question.id, gold)


# Other answers have more than 30 tokens (98 of 100 in Thai, whose words are split into letters),
# begin or end within a token, or exceed the window of their start's maximum context.
XQUAD = {"ar": 98.29, "de": 99.42, "el": 96.14, "en": 99.98, "es": 99.74, "hi": 97.89}
XQUAD |= {"ro": 99.00, "ru": 98.74, "th": 91.65, "tr": 99.24, "vi": 99.40, "zh": 98.82}


@pytest.mark.slow
@pytest.mark.parametrize(
    "language", ["en", "th", *in_test_all(*[name for name in XQUAD if name not in ("en", "th")])]
)
def test_decode_returns_gold_answers_of_xquad(language: str, data_dir) -> None:
    data = read_squad(data_dir / "xquad" / f"xquad.{language}.json")
    tokenizer = vocabulary(data_dir / "vocab" / "bert-base-multilingual-cased-vocab.txt")
    assert score(data, decode_gold_logits(data, tokenizer))["f1"] == pytest.approx(
        XQUAD[language], abs=0.01
    )
