"""Masked language model: which pieces are predicted, and what the encoder sees in their place.

Choosing and replacing are apart, so that all ways to choose share one way to replace. Both are
deterministic functions of uniform draws that the caller brings, and are vectorised over the
candidates of many pairs: all pieces but the special ones, flat and in order, C in all. A
candidate's run is the segment that it stands in, numbered 2 * pair for A and 2 * pair + 1 for B;
no word and no span reaches across runs.
"""

import numpy as np

from data_pipelines.ranges import concatenate_ranges

MASKING_UNITS = ("token", "word", "span")
MAX_SPAN_LENGTH = 10  # words
SPAN_GEOMETRIC_P = 0.2  # a span ends after each word with this probability (SpanBERT, section 3.1)


def prediction_counts(
    lengths: np.ndarray,
    candidates: np.ndarray,
    mlm_probability: float,
    max_predictions_per_seq: int,
) -> np.ndarray:
    """Pieces to choose in each pair, int64 [P]: min(max_predictions_per_seq, max(1, round(prob * length))).

    Rounds half to even, as the original does. Never more than there are candidates.

    Args:
      lengths: pieces of each pair, the special ones included [P].
      candidates: pieces of each pair without the special ones [P].
    """
    rounded = np.rint(mlm_probability * lengths).astype(np.int64)
    return np.minimum(np.clip(rounded, 1, max_predictions_per_seq), candidates)


def word_starts(
    input_ids: np.ndarray, segments: np.ndarray, is_continuation: np.ndarray
) -> np.ndarray:
    """Whether each candidate begins a word, bool [C]; the first piece of a run always does.

    Args:
      input_ids: int [C].
      runs: int [C], never falling.
      continues: bool [V], the pieces that continue the word before them.
    """
    return ~is_continuation[input_ids] | (np.diff(segments, prepend=-1) > 0)


def choose(
    masking: str,
    counts: np.ndarray,
    segments: np.ndarray,
    starts: np.ndarray,
    draws: np.ndarray,
    exact: bool = True,
) -> np.ndarray:
    """The candidates to predict, bool [C].

    Args:
      masking: "piece" takes `counts` pieces of each pair, uniformly without replacement; "word"
        goes through the words in random order, takes all that still fit, and makes up the count
        with pieces of those that do not; "span" takes runs of words, the last one cut where the
        count is met.
      counts: int64 [P], at most the candidates of each pair.
      runs: int64 [C], 2 * pair + segment, never falling.
      starts: bool [C], the candidates that begin a word (see `word_starts`).
      draws: float64 [C], uniform in [0, 1).
      exact: False leaves a pair below its count where no word fits any more, as the original does:
        far below, and without a mask, where words are long.
    """
    if masking == "span":
        return _choose_spans(counts, segments, starts, draws)
    chosen = _choose_words(counts, segments, starts | (masking == "token"), draws)
    if exact and masking == "word":
        left = counts - np.bincount(segments[chosen] // 2, minlength=len(counts))
        free = np.flatnonzero(~chosen & (left[segments // 2] > 0))
        tokens = np.ones(len(free), bool)
        chosen[free] = _choose_words(left, segments[free], tokens, draws[free])
    return chosen


def _choose_words(
    counts: np.ndarray, segments: np.ndarray, starts: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    first = np.flatnonzero(starts)
    size = np.diff(first, append=len(segments))
    pair = segments[first] // 2
    taken = np.zeros(len(first), bool)
    left = counts.copy()
    # The order of a pair's words is that of their draws; integer keys keep the pairs apart.
    shuffled = np.argsort((pair << 32) + (draws[first] * 2.0**32).astype(np.int64), kind="stable")
    while True:
        # What is left never grows: a word that exceeds it now is passed over for good.
        shuffled = shuffled[size[shuffled] <= left[pair[shuffled]]]
        if not len(shuffled):
            return np.repeat(taken, size)
        owner, sizes = pair[shuffled], size[shuffled]
        before = np.cumsum(sizes) - sizes
        new_pair = np.diff(owner, prepend=-1) > 0
        before -= np.maximum.accumulate(np.where(new_pair, before, 0))
        fits = before + sizes <= left[owner]
        taken[shuffled[fits]] = True
        left -= np.bincount(owner[fits], sizes[fits], len(left)).astype(np.int64)
        shuffled = shuffled[~fits]


def _choose_spans(
    counts: np.ndarray, segments: np.ndarray, starts: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    """SpanBERT's geometric spans: each round gives every unfinished pair one more.

    A span begins at a uniform word among those not taken, its length in words is geometric up to
    `MAX_SPAN_LENGTH`, and it ends with its run at the latest. Pieces taken before do not count again.
    Round k of a pair uses the draw of its k-th candidate: rounds are at most `counts`.
    """
    first = np.flatnonzero(starts)
    bounds = np.append(first, len(segments))
    run = segments[first]
    pair = run // 2
    run_end = np.searchsorted(run, run, side="right")
    draw_of = np.searchsorted(segments, 2 * np.arange(len(counts)))
    longer = np.cumsum((1 - SPAN_GEOMETRIC_P) ** np.arange(MAX_SPAN_LENGTH))
    taken = np.zeros(len(first), bool)
    chosen = np.zeros(len(segments), bool)
    left = counts.copy()
    while len(active := np.flatnonzero(left)):
        free = np.flatnonzero(~taken)
        begin, end = (np.searchsorted(pair[free], active, side=side) for side in ("left", "right"))
        # One draw gives both: its whole part the word, the fraction that remains the length.
        fraction, place = np.modf(draws[draw_of[active]] * (end - begin))
        word = free[begin + place.astype(np.int64)]
        words = 1 + np.searchsorted(longer[:-1], fraction * longer[-1], side="right")
        stop = np.minimum(word + words, run_end[word])
        taken[concatenate_ranges(word, stop - word)] = True
        size = bounds[stop] - bounds[word]
        tokens = concatenate_ranges(bounds[word], size)
        new = ~chosen[tokens]
        before = np.cumsum(new) - new
        before -= np.repeat(before[np.cumsum(size) - size], size)
        new &= before < np.repeat(left[active], size)
        chosen[tokens[new]] = True
        left[active] -= np.add.reduceat(new, np.cumsum(size) - size, dtype=np.int64)
        draw_of += 1
    return chosen


def replace_masked_tokens(
    targets: np.ndarray,
    replace_probs: tuple[float, float, float],
    mask_id: int,
    random_ids: np.ndarray,
    draws: np.ndarray,
) -> np.ndarray:
    """What the encoder sees in the place of the chosen pieces `targets` (int [N]), each by itself.

    Args:
      shares: probabilities of `[MASK]`, of the piece itself and of a random piece.
      random_ids: the pieces that a random one is drawn from, uniformly.
      draws: float64 [2, N], uniform in [0, 1): the first decides which of the three.
    """
    edges = np.cumsum(replace_probs)
    masked, masked_or_kept, _ = edges / edges[-1]
    random = random_ids[(draws[1] * len(random_ids)).astype(np.int64)]
    seen = np.where(draws[0] < masked_or_kept, targets, random)
    return np.where(draws[0] < masked, mask_id, seen).astype(targets.dtype)
