"""From the logits of windows to answers (Devlin et al. 2019, sections 4.2 and 4.3).

A question's answer is the span of most start plus end logits over all its windows, taken as it
stands in the passage. Each piece is judged in the window that shows most of its surroundings.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from data_pipelines.finetuning.squad import Question
from data_pipelines.finetuning.windows import PassageCache, PassageWindows, max_context_windows

N_BEST_SIZE = 20  # starts, ends and answers that are looked at
MAX_ANSWER_LENGTH = 30  # pieces of an answer


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: characters [start, end) of the passage; "" at 0 stands for none."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a model says to a question.

    Attributes:
      candidates: the best answers, best first, each text once; empty where no span qualifies.
      null: no answer, at the least score that it has in a window.
    """

    question: Question
    candidates: list[Candidate]
    null: Candidate

    @property
    def null_odds(self) -> float:
        """By how much no answer scores above the best one; all but infinite without one."""
        if not self.candidates:
            return float(np.finfo(np.float32).max)
        return self.null.score - self.candidates[0].score

    def answer(self, null_score_diff_threshold: float | None) -> Candidate:
        """The best answer; none where there is none, or where its odds are above the threshold."""
        if not self.candidates or (
            null_score_diff_threshold is not None and self.null_odds > null_score_diff_threshold
        ):
            return self.null
        return self.candidates[0]

    def probabilities(self, with_null: bool) -> list[tuple[Candidate, float]]:
        """The candidates, with none among them if asked, and the softmax of their scores."""
        listed = sorted(
            [*self.candidates, *([self.null] if with_null or not self.candidates else [])],
            key=lambda candidate: -candidate.score,
        )
        scores = np.array([candidate.score for candidate in listed])
        powers = np.exp(scores - scores.max())
        return list(zip(listed, (powers / powers.sum()).tolist(), strict=True))


def decode(
    questions: Sequence[Question],
    windows: PassageWindows,
    passages: PassageCache,
    logits: Sequence[np.ndarray],
) -> Iterator[Prediction]:
    """The prediction for each question, in turn.

    Args:
      logits: for each window float32 [pieces, 2], of start and end.
    """
    bounds = np.searchsorted(windows.question_indices, np.arange(len(questions) + 1))
    for number, question in enumerate(questions):
        own = range(bounds[number], bounds[number + 1])
        spans = passages[question.passage].offsets
        firsts, parts = windows.passage_starts[own], windows.passage_lengths[own]
        context = max_context_windows(firsts.tolist(), parts.tolist(), len(spans))
        found = []
        nulls = []
        for place, window in enumerate(own):
            nulls.append(Candidate("", 0, 0, *logits[window][0].tolist()))
            prefix, first = int(windows.prefix_lengths[window]), int(windows.passage_starts[window])
            inside = logits[window][prefix : prefix + int(windows.passage_lengths[window])]
            start, end = _top_spans(inside, context[first : first + len(inside)] == place)
            places = spans[first + start, 0], spans[first + end, 1]
            found.append((*places, inside[start, 0], inside[end, 1]))
        null = min(nulls, key=lambda null: null.score)
        yield Prediction(question, _nbest_answers(question.passage, found), null)


def _top_spans(logits: np.ndarray, is_max_context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans between the best starts, among those judged here, and the best ends of a window."""
    starts, ends = (np.argsort(-logits[:, i], kind="stable")[:N_BEST_SIZE] for i in (0, 1))
    start, end = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    fits = (end >= start) & (end - start < MAX_ANSWER_LENGTH) & is_max_context[start]
    return start[fits], end[fits]


def _nbest_answers(passage: str, found: Sequence[tuple[np.ndarray, ...]]) -> list[Candidate]:
    """The best of each text, best first.

    Args:
      found: for each window, of each span: first and last character, start and end logit.
    """
    begins, stops, starts, ends = map(np.concatenate, zip(*found, strict=True))
    # In float64, as candidates add them, so that both orders are one.
    order = np.argsort(-(starts.astype(np.float64) + ends), kind="stable")
    best: dict[str, Candidate] = {}
    for at in order.tolist():
        if len(best) == N_BEST_SIZE:
            break
        begin, stop = int(begins[at]), int(stops[at])
        text = passage[begin:stop]
        # Some pieces of SentencePiece stand for no character: a span of them is no answer.
        if text and text not in best:
            best[text] = Candidate(text, begin, stop, float(starts[at]), float(ends[at]))
    return list(best.values())
