"""Passages and their answers as windows of tokens, without questions: [CLS] part of it [SEP].

A passage has the distinct gold answers of all its questions. A span begins with the first token of
a word, ends with the last token of one, and has at most `MAX_ANSWER_LENGTH` tokens.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.question_answering.squad import Answer, Question
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    TokenizedPassage,
    answer_token_span,
    nearest_answer,
    window_starts,
)
from data_pipelines.vocabulary.basic_tokenization import basic_tokenize
from data_pipelines.vocabulary.tokenization import Tokenizer

MAX_ANSWER_LENGTH = 10  # tokens
STARTS_WORD, ENDS_WORD = 1, 2  # bits of "span_boundaries"
_NUM_SPECIAL_TOKENS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """A passage and its distinct gold answers, in the order of their questions."""

    text: str
    answers: tuple[Answer, ...] = ()


@dataclasses.dataclass(frozen=True)
class SpanWindows(Examples):
    """W windows; the windows of a passage are consecutive.

    The targets have a value for each token. "span_boundaries" has the bits `STARTS_WORD` and
    `ENDS_WORD`, none for [CLS] and [SEP]. Bit n - 1 of "answer_lengths" means that n tokens from
    this one are a gold answer.

    Attributes:
      passage_indices: int64 [W], index of the window's passage.
      passage_starts: int64 [W], index in the passage of the window's first passage token.
      num_long: gold answers of more than `MAX_ANSWER_LENGTH` tokens, which have no bit.
    """

    passage_indices: np.ndarray
    passage_starts: np.ndarray
    num_long: int

    @property
    def passage_lengths(self) -> np.ndarray:
        """Passage tokens of each window, int64 [W]."""
        return self.lengths - _NUM_SPECIAL_TOKENS

    def boundaries_of(self, window: int) -> np.ndarray:
        """Return the "span_boundaries" of a window's passage tokens, int32 [n]."""
        first = int(self.starts[window]) + 1
        count = int(self.passage_lengths[window])
        return self.targets["span_boundaries"].values[first : first + count]

    def with_answers(self) -> "SpanWindows":
        """Return the windows that contain an answer."""
        has_bits = self.targets["answer_lengths"].values > 0
        owners = np.repeat(np.arange(len(self.lengths)), self.lengths)
        kept = np.bincount(owners[has_bits], minlength=len(self.lengths)) > 0
        is_kept = np.repeat(kept, self.lengths)
        return dataclasses.replace(
            self,
            ids=self.ids[is_kept],
            lengths=self.lengths[kept],
            prefix_lengths=self.prefix_lengths[kept],
            targets={
                name: Target("token", target.values[is_kept])
                for name, target in self.targets.items()
            },
            passage_indices=self.passage_indices[kept],
            passage_starts=self.passage_starts[kept],
        )


def group_answers(questions: Sequence[Question]) -> tuple[list[Passage], int]:
    """Return the distinct passages with their answers, and how many answers a passage lacks.

    An answer at a wrong offset is moved to the nearest occurrence of its text. Questions that are
    marked as unanswerable have no answer.
    """
    passages: dict[str, dict[Answer, None]] = {}
    num_missing = 0
    for question in questions:
        answers = passages.setdefault(question.passage, {})
        for answer in () if question.is_impossible else question.answers:
            nearest = nearest_answer(question.passage, answer)
            num_missing += nearest is None
            if nearest is not None:
                answers[nearest] = None
    return [Passage(text, tuple(answers)) for text, answers in passages.items()], num_missing


def check_doc_stride(max_seq_length: int, doc_stride: int) -> None:
    """Raise InputError if windows of passages with this stride would skip tokens."""
    num_tokens = max_seq_length - _NUM_SPECIAL_TOKENS
    if not 0 < doc_stride <= num_tokens:
        raise InputError(
            f"doc_stride={doc_stride}: windows would skip tokens. It must be at least 1 and at "
            f"most max_seq_length - {_NUM_SPECIAL_TOKENS} = {num_tokens}. Change one of them."
        )


def make_span_windows(
    passages: Sequence[Passage],
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
    cache: PassageCache,
) -> SpanWindows:
    """Return the windows of all passages, in order.

    Args:
      passages: the passages.
      tokenizer: the model's tokenizer.
      max_seq_length: maximal tokens of a window.
      doc_stride: passage tokens from the start of a window to the start of the next one.
      cache: the tokenized passages.

    Raises:
      InputError: windows would skip tokens.
    """
    check_doc_stride(max_seq_length, doc_stride)
    num_tokens = max_seq_length - _NUM_SPECIAL_TOKENS
    parts: list[np.ndarray] = []  # int32 [3, tokens]: ids, boundaries, answer lengths
    rows: list[tuple[int, int, int]] = []
    num_long = 0
    cls, sep = (
        np.array([[token], [0], [0]], np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id)
    )
    for number, passage in enumerate(passages):
        tokenized = cache[passage.text]
        boundaries = word_boundaries(passage.text, tokenized, tokenizer.is_continuation)
        spans = {_word_span(answer, tokenized, boundaries) for answer in passage.answers}
        short = [span for span in spans if span and span[1] - span[0] < MAX_ANSWER_LENGTH]
        num_long += len(spans - {None}) - len(short)
        for first in window_starts(len(tokenized.ids), num_tokens, doc_stride):
            last = min(first + num_tokens, len(tokenized.ids))
            answer_lengths = np.zeros(last - first, np.int32)
            for start, end in short:
                if first <= start and end < last:
                    answer_lengths[start - first] |= 1 << (end - start)
            part = np.stack([tokenized.ids[first:last], boundaries[first:last], answer_lengths])
            parts += cls, part, sep
            rows.append((part.shape[1] + _NUM_SPECIAL_TOKENS, number, first))
    tokens = np.concatenate([np.zeros((3, 0), np.int32), *parts], axis=1)
    table = np.array(rows, np.int64).reshape(-1, 3)
    lengths, passage_indices, starts = (table[:, i].copy() for i in range(3))
    return SpanWindows(
        tokens[0],
        lengths,
        lengths,  # all tokens have type 0
        span_targets(tokens[1], tokens[2]),
        passage_indices,
        starts,
        num_long,
    )


def span_targets(boundaries: np.ndarray, answer_lengths: np.ndarray) -> dict[str, Target]:
    """Return the targets of `SpanWindows` from their values, int32 [P] both."""
    return {
        "span_boundaries": Target("token", boundaries),
        "answer_lengths": Target("token", answer_lengths),
    }


def word_boundaries(
    text: str, passage: TokenizedPassage, is_continuation: np.ndarray
) -> np.ndarray:
    """Return the bits `STARTS_WORD` and `ENDS_WORD` of each token, int32 [n].

    Words end where the tokenizer begins another one, and at a punctuation or CJK character, which
    SentencePiece may join with its neighbors. Tokens without a character have no bit.

    Args:
      text: the passage.
      passage: its n tokens.
      is_continuation: bool [V], tokens that continue the word of the preceding token.
    """
    bits = np.zeros(len(passage.ids), np.int32)
    tokens = np.flatnonzero(passage.offsets[:, 1] > passage.offsets[:, 0])
    if not len(tokens):
        return bits
    begun = np.cumsum(~is_continuation[passage.ids])[tokens]  # words begun up to each token
    offsets = passage.offsets[tokens]
    is_apart = np.array([_separates_words(text[start]) for start in offsets[:, 0].tolist()])
    is_apart_after = np.array([_separates_words(text[end - 1]) for end in offsets[:, 1].tolist()])
    splits = (np.diff(begun) > 0) | is_apart_after[:-1] | is_apart[1:]
    bits[tokens] = STARTS_WORD * np.append(True, splits) + ENDS_WORD * np.append(splits, True)
    return bits


@functools.lru_cache(maxsize=1 << 16)
def _separates_words(char: str) -> bool:
    """Return whether letters on both sides of a character are in different words."""
    return len(basic_tokenize(f"x{char}x", cased=True, strip_accents=False)) > 1


def _word_span(
    answer: Answer, passage: TokenizedPassage, boundaries: np.ndarray
) -> tuple[int, int] | None:
    """Return the first and last token of the words that overlap an answer; None without a token."""
    span = answer_token_span(answer, passage.offsets)
    if span is None:
        return None
    starts = np.flatnonzero(boundaries[: span[0] + 1] & STARTS_WORD)
    ends = np.flatnonzero(boundaries[span[1] :] & ENDS_WORD)
    return (int(starts[-1]), span[1] + int(ends[0])) if len(starts) and len(ends) else None
