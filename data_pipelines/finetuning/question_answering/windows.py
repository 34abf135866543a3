"""Questions and passages as windows of tokens: [CLS] question [SEP] part of the passage [SEP].

A passage longer than a window is split into overlapping windows, which start `doc_stride` tokens
apart. Windows are not padded.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.question_answering.squad import Answer, Question
from data_pipelines.vocabulary.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """Splitting of passages into windows (Devlin et al. 2019; defaults of google-research/bert).

    Attributes:
      max_seq_length: maximal tokens of a window, with [CLS] and [SEP].
      doc_stride: passage tokens from the start of a window to the start of the next one.
      max_query_length: maximal tokens of a question; longer questions are truncated at the end.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self) -> None:
        if self.max_query_length < 1:
            raise InputError(
                f"max_query_length={self.max_query_length}: questions need a token. Set it to 1 or "
                "more."
            )
        room = self.max_seq_length - self.max_query_length - 3
        if not 0 < self.doc_stride <= room:
            raise InputError(
                f"doc_stride={self.doc_stride}: windows would skip tokens. It must be at least 1 "
                f"and at most max_seq_length - max_query_length - 3 = {room}. Change one of the "
                "three."
            )


@dataclasses.dataclass(frozen=True)
class TokenizedPassage:
    """A passage of n tokens.

    Attributes:
      ids: int32 [n].
      offsets: int64 [n, 2], start and end character of each token.
    """

    ids: np.ndarray
    offsets: np.ndarray


@dataclasses.dataclass(frozen=True)
class PassageWindows(Examples):
    """W windows; the windows of a question are consecutive.

    The prefix of a window is [CLS] question [SEP]. The target "answer_positions" is the first
    and the last token of the answer within the window. Both are 0, the position of [CLS], if the
    window does not contain the whole answer.

    Attributes:
      question_indices: int64 [W], index of the window's question.
      passage_starts: int64 [W], index in the passage of the window's first passage token.
      truncated: indices of the questions that were longer than `max_query_length`, ascending.
    """

    question_indices: np.ndarray
    passage_starts: np.ndarray
    truncated: list[int]

    @property
    def passage_lengths(self) -> np.ndarray:
        """Passage tokens of each window, int64 [W]."""
        return self.lengths - self.prefix_lengths - 1


class PassageCache(dict[str, TokenizedPassage]):
    """Tokenized passages by their text, each tokenized at its first lookup."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, text: str) -> TokenizedPassage:
        ids, offsets = self._tokenizer.encode_with_offsets(text)
        passage = TokenizedPassage(
            np.array(ids, np.int32), np.array(offsets, np.int64).reshape(-1, 2)
        )
        return self.setdefault(text, passage)


def make_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    options: WindowOptions,
    passages: PassageCache,
    answers: Sequence[Answer | None] | None = None,
) -> PassageWindows:
    """Return the windows of all questions, in order.

    Args:
      questions: the questions with their passages.
      tokenizer: the tokenizer of the questions.
      options: how passages are split.
      passages: the tokenized passages.
      answers: the gold answer of each question; None for no answer.
    """
    ids: list[np.ndarray] = []
    rows: list[tuple[int, ...]] = []
    truncated: list[int] = []
    sep = np.array([tokenizer.sep_id], np.int32)
    for number, question in enumerate(questions):
        query = tokenizer.encode(question.text)
        if len(query) > options.max_query_length:
            truncated.append(number)
        query = query[: options.max_query_length]
        prefix = np.array([tokenizer.cls_id, *query, tokenizer.sep_id], np.int32)
        passage = passages[question.passage]
        answer = answers[number] if answers else None
        answer_span = answer_token_span(answer, passage.offsets) if answer else None
        room = options.max_seq_length - len(prefix) - 1
        for first in window_starts(len(passage.ids), room, options.doc_stride):
            part = passage.ids[first : first + room]
            ids += prefix, part, sep
            span = (0, 0)
            if answer_span and first <= answer_span[0] and answer_span[1] < first + len(part):
                start, end = answer_span
                span = (start - first + len(prefix), end - first + len(prefix))
            rows.append((len(prefix) + len(part) + 1, len(prefix), number, first, *span))
    table = np.array(rows, np.int64).reshape(-1, 6)
    lengths, prefix_lengths, question_indices, starts = (table[:, i].copy() for i in range(4))
    return PassageWindows(
        np.concatenate(ids) if ids else np.zeros(0, np.int32),
        lengths,
        prefix_lengths,
        answer_position_target(table[:, 4:].astype(np.int32)),
        question_indices,
        starts,
        truncated,
    )


def answer_position_target(token_spans: np.ndarray) -> dict[str, Target]:
    """Return the target of windows from each answer's first and last token, int32 [W, 2]."""
    return {"answer_positions": Target("position", token_spans)}


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
    """Return the starts of windows of `room` tokens that cover `num_tokens` tokens."""
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + min(room, doc_stride))
    return starts


def max_context_windows(
    starts: Sequence[int], lengths: Sequence[int], num_tokens: int
) -> np.ndarray:
    """Return the index of the window with maximal context for each token, int64 [n].

    The context of a token is the number of tokens on its shorter side, plus 0.01 times the length
    of the window, as in google-research/bert. The first window wins a tie.

    Args:
      starts: first token of each window.
      lengths: tokens of each window.
      num_tokens: tokens of the passage (n).
    """
    best = np.full(num_tokens, -np.inf)
    window = np.zeros(num_tokens, np.int64)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        left = np.arange(length)
        context = np.minimum(left, left[::-1]) + 0.01 * length
        better = context > best[start : start + length]
        best[start : start + length][better] = context[better]
        window[start : start + length][better] = number
    return window


def answer_token_span(answer: Answer, offsets: np.ndarray) -> tuple[int, int] | None:
    """Return the first and last token that overlap the answer, or None if no token does."""
    overlaps = (offsets[:, 0] < answer.start + len(answer.text)) & (offsets[:, 1] > answer.start)
    tokens = np.flatnonzero(overlaps)
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def locate_answer(question: Question) -> tuple[Answer | None, str | None]:
    """Return a question's first answer, moved to its text, and the problem of a wrong offset.

    If the text is not at the answer's offset, the nearest occurrence is used. If it does not
    occur, or the question is marked as unanswerable, there is no answer.
    """
    if not question.answers or question.is_impossible:
        return None, None
    answer = question.answers[0]
    nearest = nearest_answer(question.passage, answer)
    if nearest == answer:
        return answer, None
    problem = (
        f"answer {answer.text!r} of question {question.id!r} is not at character {answer.start:,}"
    )
    if nearest is None:
        return None, f"{problem} of its passage, nor anywhere in it"
    return nearest, f"{problem} of its passage, but at {nearest.start:,}"


def nearest_answer(passage: str, answer: Answer) -> Answer | None:
    """Return the answer at the occurrence of its text nearest to its offset, or None."""
    text = answer.text
    if text and answer.start >= 0 and passage.startswith(text, answer.start):
        return answer
    start = min(max(answer.start, 0), len(passage))
    # The last occurrence before it is the first of the reversed passage: `str.rfind` takes
    # quadratic time, and `str.find` linear.
    head = passage[: max(start + len(text) - 1, 0)]
    last = head[::-1].find(text[::-1])
    found = [passage.find(text, start), len(head) - last - len(text) if last >= 0 else -1]
    nearest = min(
        (at for at in found if at >= 0 and text), key=lambda at: (abs(at - start), at), default=None
    )
    return None if nearest is None else Answer(text, nearest)
