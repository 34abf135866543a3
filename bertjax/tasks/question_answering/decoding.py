"""Answers from the logits of windows (Devlin et al. 2019, sections 4.2 and 4.3).

The answer is the passage span with the highest sum of start and end logits over all windows of the
question. A start counts only in the window that shows the most context around it.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import softmax

from data_pipelines.finetuning.question_answering.squad import Question
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    PassageWindows,
    max_context_windows,
)

N_BEST_SIZE = 20  # starts and ends considered in a window, and answers kept
MAX_ANSWER_LENGTH = 30  # tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer, characters [start, end) of the passage; "" at 0 means no answer."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Sum of start and end logit."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answers of a model to one question.

    Attributes:
      question: the question.
      candidates: the best answers, best first, each text once; empty if no span qualifies.
      null: no answer, with its lowest score over the windows.
      has_null_regression: whether that score is a regression, 1 without answer and 0 with one.
    """

    question: Question
    candidates: list[Candidate]
    null: Candidate
    has_null_regression: bool = False

    @property
    def null_odds(self) -> float:
        """Score of no answer minus the best answer's; the largest float32 without candidates.

        The score of a regression is compared with its middle, 0.5.
        """
        if not self.candidates:
            return float(np.finfo(np.float32).max)
        if self.has_null_regression:
            return self.null.score - 0.5
        return self.null.score - self.candidates[0].score

    def answer(self, null_score_diff_threshold: float | None) -> Candidate:
        """Return the best answer; `null` without one or with odds above the threshold."""
        if not self.candidates or (
            null_score_diff_threshold is not None and self.null_odds > null_score_diff_threshold
        ):
            return self.null
        return self.candidates[0]

    def probabilities(self, with_null: bool) -> list[tuple[Candidate, float]]:
        """Return the candidates by probability, the softmax of the scores.

        Args:
          with_null: include no answer, which is always included without candidates. The score of
            a regression is its probability.
        """
        if self.has_null_regression and with_null and self.candidates:
            null = float(np.clip(self.null.score, 0, 1))
            answers = [(c, p * (1 - null)) for c, p in self.probabilities(with_null=False)]
            return sorted([*answers, (self.null, null)], key=lambda pair: -pair[1])
        listed = sorted(
            [*self.candidates, *([self.null] if with_null or not self.candidates else [])],
            key=lambda candidate: -candidate.score,
        )
        scores = np.array([candidate.score for candidate in listed])
        return list(zip(listed, softmax(scores).tolist(), strict=True))


def decode(
    questions: Sequence[Question],
    windows: PassageWindows,
    passages: PassageCache,
    logits: Sequence[np.ndarray],
) -> Iterator[Prediction]:
    """Yield the prediction for each question.

    Args:
      questions: the questions of `windows`.
      windows: the windows of all questions, in the order of the questions.
      passages: the tokens of the passages.
      logits: float32 [tokens, 2] of each window, for start and end.
    """
    bounds = np.searchsorted(windows.question_indices, np.arange(len(questions) + 1))
    for number, question in enumerate(questions):
        window_indices = range(bounds[number], bounds[number + 1])
        offsets = passages[question.passage].offsets
        starts = windows.passage_starts[window_indices]
        lengths = windows.passage_lengths[window_indices]
        best_window = max_context_windows(starts.tolist(), lengths.tolist(), len(offsets))
        spans, nulls = [], []
        for index, window in enumerate(window_indices):
            nulls.append(Candidate("", 0, 0, *logits[window][0].tolist()))
            prefix, first = int(windows.prefix_lengths[window]), int(windows.passage_starts[window])
            scores = logits[window][prefix : prefix + int(windows.passage_lengths[window])]
            start, end = _top_spans(scores, best_window[first : first + len(scores)] == index)
            characters = offsets[first + start, 0], offsets[first + end, 1]
            spans.append((*characters, scores[start, 0], scores[end, 1]))
        null = min(nulls, key=lambda null: null.score)
        yield Prediction(question, _nbest_answers(question.passage, spans), null)


def _top_spans(logits: np.ndarray, is_max_context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end tokens of the spans between a window's best starts and best ends.

    Args:
      logits: float32 [tokens, 2].
      is_max_context: bool [tokens], whether the window shows the most context around a token.
    """
    starts, ends = (np.argsort(-logits[:, i], kind="stable")[:N_BEST_SIZE] for i in (0, 1))
    start, end = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    is_valid = (end >= start) & (end - start < MAX_ANSWER_LENGTH) & is_max_context[start]
    return start[is_valid], end[is_valid]


def _nbest_answers(passage: str, spans: Sequence[tuple[np.ndarray, ...]]) -> list[Candidate]:
    """Return the best span of each text, best first.

    Args:
      passage: the text that spans are part of.
      spans: for each window, arrays over its spans: first character, end character, start logit,
        end logit.
    """
    begins, stops, starts, ends = map(np.concatenate, zip(*spans, strict=True))
    # In float64, as `Candidate.score` adds, so that both give the same order.
    order = np.argsort(-(starts.astype(np.float64) + ends), kind="stable")
    best: dict[str, Candidate] = {}
    for index in order.tolist():
        if len(best) == N_BEST_SIZE:
            break
        begin, stop = int(begins[index]), int(stops[index])
        text = passage[begin:stop]
        # Some SentencePiece tokens cover no character: a span of these is no answer.
        if text and text not in best:
            best[text] = Candidate(text, begin, stop, float(starts[index]), float(ends[index]))
    return list(best.values())
