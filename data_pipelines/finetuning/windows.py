"""Questions and passages to windows of pieces: [CLS] question [SEP] part of the passage [SEP].

A passage longer than a window is read in several, each `stride` pieces on. Windows are made once,
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
      seq_len: the most pieces of a window, special ones included.
      stride: pieces of the passage from the start of a window to that of the next.
      max_query: the most pieces of a question; what is longer is cut at its end.
    """

    seq_len: int = 384
    stride: int = 128
    max_query: int = 64

    def __post_init__(self) -> None:
        if self.max_query < 1:
            raise InputError(f"max_query={self.max_query} must be at least 1.")
        room = self.seq_len - self.max_query - 3
        if not 0 < self.stride <= room:
            raise InputError(
                f"stride={self.stride} must be at least 1 and at most seq_len - max_query - 3 = "
                f"{room}, else windows leave pieces out: change one of the three."
            )


@dataclasses.dataclass(frozen=True)
class Passage:
    """The pieces of a passage: ids int32 [n], and the characters int64 [n, 2] that each covers."""

    ids: np.ndarray
    spans: np.ndarray


@dataclasses.dataclass(frozen=True)
class Windows(Examples):
    """W windows of many questions, one question's one after the other.

    The prefix of each is what comes before the part of the passage: [CLS], the question, [SEP]. Its
    target, "span", is first and last piece of the answer within the window; 0, the place of [CLS],
    where the window does not hold the whole of it.

    Attributes:
      question: int64 [W], the number of its question.
      first: int64 [W], the number, in the passage, of its first piece of the passage.
      cut: questions that were longer than `max_query`.
    """

    question: np.ndarray
    first: np.ndarray
    cut: int

    @property
    def parts(self) -> np.ndarray:
        """int64 [W], pieces of the passage in each window."""
        return self.lengths - self.prefix - 1


class Passages(dict[str, Passage]):
    """Passages by their text, each tokenised when it is first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, text: str) -> Passage:
        ids, spans = self._tokenizer.encode_with_spans(text)
        passage = Passage(np.array(ids, np.int32), np.array(spans, np.int64).reshape(-1, 2))
        return self.setdefault(text, passage)


def make_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    options: WindowOptions,
    passages: Passages,
    answers: Sequence[Answer | None] | None = None,
) -> Windows:
    """The windows of questions, in their order.

    Args:
      answers: what each question's windows are to point at; None for no answer.
    """
    ids: list[np.ndarray] = []
    rows: list[tuple[int, ...]] = []
    cut = 0
    sep = np.array([tokenizer.sep_id], np.int32)
    for number, question in enumerate(questions):
        query = tokenizer.encode(question.text)
        cut += len(query) > options.max_query
        query = query[: options.max_query]
        head = np.array([tokenizer.cls_id, *query, tokenizer.sep_id], np.int32)
        passage = passages[question.passage]
        answer = answers[number] if answers else None
        target = _pieces_of(answer, passage.spans) if answer else None
        room = options.seq_len - len(head) - 1
        for first in window_starts(len(passage.ids), room, options.stride):
            part = passage.ids[first : first + room]
            ids += head, part, sep
            inside = (0, 0)
            if target and first <= target[0] and target[1] < first + len(part):
                inside = (target[0] - first + len(head), target[1] - first + len(head))
            rows.append((len(head) + len(part) + 1, len(head), number, first, *inside))
    table = np.array(rows, np.int64).reshape(-1, 6)
    lengths, prefix, question_of, firsts = (table[:, i].copy() for i in range(4))
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    targets = span_target(table[:, 4:].astype(np.int32))
    return Windows(flat, lengths, prefix, targets, question_of, firsts, cut)


def span_target(places: np.ndarray) -> dict[str, Target]:
    """The target of windows, from first and last piece of the answer in each, int32 [W, 2]."""
    return {"span": Target("places", places)}


def window_starts(pieces: int, room: int, stride: int) -> list[int]:
    """Where windows of `room` pieces begin, so that the last one reaches the end."""
    starts = [0]
    while starts[-1] + room < pieces:
        starts.append(starts[-1] + min(room, stride))
    return starts


def maximum_context(starts: Sequence[int], parts: Sequence[int], pieces: int) -> np.ndarray:
    """The window in which each piece of a passage has most pieces on its poorer side, int64 [n].

    The first one where several have; a longer window counts for a hundredth of a piece a piece.

    Args:
      starts, parts: first piece and number of pieces of each window.
    """
    best = np.full(pieces, -np.inf)
    window = np.zeros(pieces, np.int64)
    for number, (start, part) in enumerate(zip(starts, parts, strict=True)):
        left = np.arange(part)
        context = np.minimum(left, left[::-1]) + 0.01 * part
        better = context > best[start : start + part]
        best[start : start + part][better] = context[better]
        window[start : start + part][better] = number
    return window


def _pieces_of(answer: Answer, spans: np.ndarray) -> tuple[int, int] | None:
    """First and last piece that hold a character of the answer; None where there is none."""
    holds = (spans[:, 0] < answer.start + len(answer.text)) & (spans[:, 1] > answer.start)
    found = np.flatnonzero(holds)
    return (int(found[0]), int(found[-1])) if len(found) else None


def locate(question: Question) -> tuple[Answer | None, str | None]:
    """The answer of a question that training points at, and what is wrong with its place.

    It is the first one. One whose text is not at its offset is taken at the nearest place where
    its text is; one whose text is nowhere is no answer to point at.

    Returns:
      The answer, None where there is none to point at; and a phrase, None where all is well.
    """
    if not question.answers:
        return None, None
    answer = question.answers[0]
    found = place_answer(question.passage, answer)
    if found == answer:
        return answer, None
    said = (
        f"answer {answer.text!r} of question {question.id!r} is not at character {answer.start:,}"
    )
    if found is None:
        return None, f"{said} of its passage, nor anywhere in it"
    return found, f"{said} of its passage, but at {found.start:,}"


def place_answer(passage: str, answer: Answer) -> Answer | None:
    """The answer where its text is: at its offset, or else nearest by; None where it is nowhere."""
    text = answer.text
    if text and answer.start >= 0 and passage.startswith(text, answer.start):
        return answer
    places = [i for i in range(len(passage)) if text and passage.startswith(text, i)]
    nearest = min(places, key=lambda start: abs(start - answer.start), default=None)
    return None if nearest is None else Answer(text, nearest)
