"""Questions and passages to windows of pieces: [CLS] question [SEP] part of the passage [SEP].

A passage longer than a window is read in several, each `doc_stride` pieces on. Windows are made once,
in memory, and keep their own lengths: nothing is padded here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import Examples, Target
from data_pipelines.finetuning.squad import Answer, Question
from data_pipelines.vocabulary.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """How passages are cut (Devlin et al. 2019, appendix A.3, by the released code).

    Attributes:
      max_seq_length: the most pieces of a window, special ones included.
      stride: pieces of the passage from the start of a window to that of the next.
      max_query_length: the most pieces of a question; what is longer is cut at its end.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self) -> None:
        if self.max_query_length < 1:
            raise InputError(f"max_query_length={self.max_query_length} must be at least 1.")
        room = self.max_seq_length - self.max_query_length - 3
        if not 0 < self.doc_stride <= room:
            raise InputError(
                f"stride={self.doc_stride} must be at least 1 and at most max_seq_length - max_query_length - 3 = "
                f"{room}, else windows leave pieces out: change one of the three."
            )


@dataclasses.dataclass(frozen=True)
class TokenizedPassage:
    """The pieces of a passage: ids int32 [n], and the characters int64 [n, 2] that each covers."""

    ids: np.ndarray
    spans: np.ndarray


@dataclasses.dataclass(frozen=True)
class PassageWindows(Examples):
    """W windows of many questions, one question's one after the other.

    The prefix of each is what comes before the part of the passage: [CLS], the question, [SEP]. Its
    target, "answer_positions", is first and last piece of the answer within the window; 0, the place of [CLS],
    where the window does not hold the whole of it.

    Attributes:
      question: int64 [W], the number of its question.
      first: int64 [W], the number, in the passage, of its first piece of the passage.
      cut: questions that were longer than `max_query_length`.
    """

    question: np.ndarray
    first: np.ndarray
    num_truncated: int

    @property
    def parts(self) -> np.ndarray:
        """int64 [W], pieces of the passage in each window."""
        return self.lengths - self.prefix - 1


class PassageCache(dict[str, TokenizedPassage]):
    """PassageCache by their text, each tokenised when it is first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, text: str) -> TokenizedPassage:
        ids, spans = self._tokenizer.encode_with_offsets(text)
        passage = TokenizedPassage(
            np.array(ids, np.int32), np.array(spans, np.int64).reshape(-1, 2)
        )
        return self.setdefault(text, passage)


def make_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    options: WindowOptions,
    passages: PassageCache,
    answers: Sequence[Answer | None] | None = None,
) -> PassageWindows:
    """The windows of questions, in their order.

    Args:
      answers: what each question's windows are to point at; None for no answer.
    """
    ids: list[np.ndarray] = []
    rows: list[tuple[int, ...]] = []
    num_truncated = 0
    sep = np.array([tokenizer.sep_id], np.int32)
    for number, question in enumerate(questions):
        query = tokenizer.encode(question.text)
        num_truncated += len(query) > options.max_query_length
        query = query[: options.max_query_length]
        head = np.array([tokenizer.cls_id, *query, tokenizer.sep_id], np.int32)
        passage = passages[question.passage]
        answer = answers[number] if answers else None
        target = _answer_token_span(answer, passage.spans) if answer else None
        room = options.max_seq_length - len(head) - 1
        for first in window_starts(len(passage.ids), room, options.doc_stride):
            part = passage.ids[first : first + room]
            ids += head, part, sep
            inside = (0, 0)
            if target and first <= target[0] and target[1] < first + len(part):
                inside = (target[0] - first + len(head), target[1] - first + len(head))
            rows.append((len(head) + len(part) + 1, len(head), number, first, *inside))
    table = np.array(rows, np.int64).reshape(-1, 6)
    lengths, prefix, question_of, firsts = (table[:, i].copy() for i in range(4))
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    targets = answer_position_target(table[:, 4:].astype(np.int32))
    return PassageWindows(flat, lengths, prefix, targets, question_of, firsts, num_truncated)


def answer_position_target(position: np.ndarray) -> dict[str, Target]:
    """The target of windows, from first and last piece of the answer in each, int32 [W, 2]."""
    return {"answer_positions": Target("position", position)}


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
    """Where windows of `room` pieces begin, so that the last one reaches the end."""
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + min(room, doc_stride))
    return starts


def max_context_windows(starts: Sequence[int], parts: Sequence[int], num_tokens: int) -> np.ndarray:
    """The window in which each piece of a passage has most pieces on its poorer side, int64 [n].

    The first one where several have; a longer window counts for a hundredth of a piece a piece.

    Args:
      starts, parts: first piece and number of pieces of each window.
    """
    best = np.full(num_tokens, -np.inf)
    window = np.zeros(num_tokens, np.int64)
    for number, (start, part) in enumerate(zip(starts, parts, strict=True)):
        left = np.arange(part)
        context = np.minimum(left, left[::-1]) + 0.01 * part
        better = context > best[start : start + part]
        best[start : start + part][better] = context[better]
        window[start : start + part][better] = number
    return window


def _answer_token_span(answer: Answer, spans: np.ndarray) -> tuple[int, int] | None:
    """First and last piece that hold a character of the answer; None where there is none."""
    holds = (spans[:, 0] < answer.start + len(answer.text)) & (spans[:, 1] > answer.start)
    found = np.flatnonzero(holds)
    return (int(found[0]), int(found[-1])) if len(found) else None


def locate_answer(question: Question) -> tuple[Answer | None, str | None]:
    """The answer of a question that training points at, and what is wrong with its place.

    It is the first one. One whose text is not at its offset is taken at the nearest place where
    its text is; one whose text is nowhere is no answer to point at.

    Returns:
      The answer, None where there is none to point at; and a phrase, None where all is well.
    """
    if not question.answers:
        return None, None
    answer = question.answers[0]
    found = nearest_answer(question.passage, answer)
    if found == answer:
        return answer, None
    said = (
        f"answer {answer.text!r} of question {question.id!r} is not at character {answer.start:,}"
    )
    if found is None:
        return None, f"{said} of its passage, nor anywhere in it"
    return found, f"{said} of its passage, but at {found.start:,}"


def nearest_answer(passage: str, answer: Answer) -> Answer | None:
    """The answer where its text is: at its offset, or else nearest by; None where it is nowhere."""
    text = answer.text
    if text and answer.start >= 0 and passage.startswith(text, answer.start):
        return answer
    position = [i for i in range(len(passage)) if text and passage.startswith(text, i)]
    nearest = min(position, key=lambda start: abs(start - answer.start), default=None)
    return None if nearest is None else Answer(text, nearest)
