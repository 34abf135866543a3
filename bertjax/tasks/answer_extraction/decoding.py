"""The most probable answers of a passage from the span logits of its windows."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import log_softmax

from data_pipelines.finetuning.question_answering.answer_spans import (
    ENDS_WORD,
    MAX_ANSWER_LENGTH,
    STARTS_WORD,
    Passage,
    SpanWindows,
)
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    max_context_windows,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A span, characters [start, end) of the passage, and its log-probability in its window."""

    text: str
    start: int
    end: int
    score: float


def best_spans(
    passages: Sequence[Passage],
    windows: SpanWindows,
    cache: PassageCache,
    logits: Sequence[np.ndarray],
    counts: Sequence[int],
) -> Iterator[list[ScoredSpan]]:
    """Yield the best spans of each passage, best first, each text once.

    Spans may overlap. As in question answering, a start counts only in the window that shows the
    most context around it.

    Args:
      passages: the passages of `windows`.
      windows: the windows of all passages, in the order of the passages.
      cache: the tokens of the passages.
      logits: float32 [tokens, L] of each window, with [CLS] and [SEP].
      counts: maximal number of spans of each passage.
    """
    bounds = np.searchsorted(windows.passage_indices, np.arange(len(passages) + 1))
    for number, (passage, count) in enumerate(zip(passages, counts, strict=True)):
        window_indices = range(bounds[number], bounds[number + 1])
        offsets = cache[passage.text].offsets
        starts = windows.passage_starts[window_indices]
        lengths = windows.passage_lengths[window_indices]
        best_window = max_context_windows(starts.tolist(), lengths.tolist(), len(offsets))
        tables = []
        for index, window in enumerate(window_indices):
            log_probs = _log_probabilities(logits[window][1:-1], windows.boundaries_of(window))
            first, last = starts[index], starts[index] + lengths[index]
            log_probs[best_window[first:last] != index] = -np.inf
            start, extent = np.nonzero(log_probs > -np.inf)
            scores = log_probs[start, extent]
            tables.append(np.stack([first + start, first + start + extent, scores]))
        yield _distinct_texts(passage.text, np.concatenate(tables, axis=1), offsets, count)


def _log_probabilities(logits: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """Return the log-probability of each span of a window, float64 [n, L], -inf if it is invalid.

    Args:
      logits: float32 [n, L].
      boundaries: int32 [n], the "span_boundaries" of the tokens.
    """
    ends = np.pad(boundaries & ENDS_WORD, (0, MAX_ANSWER_LENGTH))
    last = np.arange(len(boundaries))[:, None] + np.arange(MAX_ANSWER_LENGTH)
    is_valid = (boundaries & STARTS_WORD > 0)[:, None] & (ends[last] > 0)
    scores = np.where(is_valid, logits.astype(np.float64), -np.inf)
    return log_softmax(scores) if is_valid.any() else scores


def _distinct_texts(
    text: str, spans: np.ndarray, offsets: np.ndarray, count: int
) -> list[ScoredSpan]:
    """Return the best spans with different texts.

    Args:
      text: the passage.
      spans: float64 [3, n], first token, last token and score of each span.
      offsets: start and end character of each token.
      count: maximal number of spans.
    """
    best: dict[str, ScoredSpan] = {}
    for index in np.argsort(-spans[2], kind="stable").tolist():
        if len(best) == count:
            break
        first, last = spans[:2, index].astype(np.int64)
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        if (answer := text[start:end]) not in best:
            best[answer] = ScoredSpan(answer, start, end, float(spans[2, index]))
    return list(best.values())
