"""Masked language modeling: selection of tokens to predict, and their replacement.

Selection and replacement are separate functions, so every masking unit shares one replacement.
Both are deterministic functions of uniform random numbers (`draws`) that the caller supplies. They
are vectorized over the candidates of many pairs: all tokens except the special ones, flat and in
order, C in total. A candidate's segment is 2 * pair for sentence A and 2 * pair + 1 for B. No word,
span or entity crosses a segment boundary: an entity that a boundary cuts is one in each segment.
"""

import numpy as np

from data_pipelines.ranges import concatenate_ranges

MASKING_UNITS = ("token", "whole_word", "span", "entity")
MAX_SPAN_LENGTH = 10  # words
SPAN_GEOMETRIC_P = 0.2  # a span ends after each word with this probability (SpanBERT, section 3.1)


def prediction_counts(
    lengths: np.ndarray,
    num_candidates: np.ndarray,
    mlm_probability: float,
    max_predictions_per_seq: int,
) -> np.ndarray:
    """Return the number of tokens to predict in each pair, int64 [P].

    It is min(max_predictions_per_seq, max(1, round(mlm_probability * length))), at most the number
    of candidates. Halves round to even, as in google-research/bert.

    Args:
      lengths: int [P], tokens of each pair, including special tokens.
      num_candidates: int [P], tokens of each pair without special tokens.
      mlm_probability: fraction of the tokens to predict.
      max_predictions_per_seq: upper bound.
    """
    rounded = np.rint(mlm_probability * lengths).astype(np.int64)
    return np.minimum(np.clip(rounded, 1, max_predictions_per_seq), num_candidates)


def word_starts(
    input_ids: np.ndarray, segments: np.ndarray, is_continuation: np.ndarray
) -> np.ndarray:
    """Return True for candidates that start a word, bool [C].

    The first token of a segment always starts a word.

    Args:
      input_ids: int [C].
      segments: int [C], never decreasing.
      is_continuation: bool [V], vocabulary tokens that continue the preceding word.
    """
    return ~is_continuation[input_ids] | (np.diff(segments, prepend=-1) > 0)


def entity_numbers(token_indices: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return the entity of each candidate, int64 [C]; -1 outside of entities.

    Args:
      token_indices: int64 [C], indices into the tokens of a shard.
      spans: int64 [E, 2], first token and end of each entity of the shard, ascending.
    """
    if not len(spans):
        return np.full(len(token_indices), -1)
    entity = np.searchsorted(spans[:, 0], token_indices, "right") - 1
    # Before the first entity the index is -1 as well.
    return np.where(token_indices < spans[entity, 1], entity, -1)


def entity_starts(starts: np.ndarray, entities: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Return True for candidates that start an entity, or a word outside of entities, bool [C].

    Args:
      starts: bool [C], candidates that start a word.
      entities: int64 [C], see `entity_numbers`.
      segments: int64 [C], never decreasing.
    """
    changes = (np.diff(entities, prepend=-1) != 0) | (np.diff(segments, prepend=-1) > 0)
    return np.where(entities >= 0, changes, starts)


def choose_masked_tokens(
    masking: str,
    counts: np.ndarray,
    segments: np.ndarray,
    starts: np.ndarray,
    draws: np.ndarray,
    entities: np.ndarray | None = None,
) -> np.ndarray:
    """Return True for candidates to predict, bool [C]; each pair has exactly `counts` of them.

    With "entity" a pair has fewer, where too few tokens are outside of entities.

    Args:
      masking: one of `MASKING_UNITS`. "token" selects tokens uniformly without replacement.
        "whole_word" visits words in random order and takes each that still fits; tokens of other
        words complete the count. "entity" does the same with entities and the words outside; tokens
        outside complete the count, and an entity of more tokens than `counts` is never taken.
        "span" takes runs of words and truncates the last one.
      counts: int64 [P], at most the number of candidates of each pair.
      segments: int64 [C], 2 * pair + (0 for A, 1 for B), never decreasing.
      starts: bool [C], candidates that start a word (see `word_starts`).
      draws: float64 [C], uniform in [0, 1).
      entities: int64 [C], see `entity_numbers`; only "entity" reads them.
    """
    if masking == "entity":
        assert entities is not None
        starts = entity_starts(starts, entities, segments)
    if masking == "span":
        return _choose_spans(counts, segments, starts, draws)
    chosen = _choose_words(counts, segments, starts | (masking == "token"), draws)
    if masking in ("whole_word", "entity"):
        # google-research/bert stops here, far below the count where words are long.
        remaining = counts - np.bincount(segments[chosen] // 2, minlength=len(counts))
        is_free = ~chosen & (remaining[segments // 2] > 0)
        free = np.flatnonzero(is_free if entities is None else is_free & (entities < 0))
        tokens = np.ones(len(free), bool)
        chosen[free] = _choose_words(remaining, segments[free], tokens, draws[free])
    return chosen


def _choose_words(
    counts: np.ndarray, segments: np.ndarray, starts: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    first = np.flatnonzero(starts)
    size = np.diff(first, append=len(segments))
    pair = segments[first] // 2
    taken = np.zeros(len(first), bool)
    remaining = counts.copy()
    # The draws order the words of a pair; integer keys keep the pairs apart.
    shuffled = np.argsort((pair << 32) + (draws[first] * 2.0**32).astype(np.int64), kind="stable")
    while True:
        # The remaining count never grows: a word that exceeds it now never fits later.
        shuffled = shuffled[size[shuffled] <= remaining[pair[shuffled]]]
        if not len(shuffled):
            return np.repeat(taken, size)
        owner, sizes = pair[shuffled], size[shuffled]
        before = np.cumsum(sizes) - sizes
        new_pair = np.diff(owner, prepend=-1) > 0
        before -= np.maximum.accumulate(np.where(new_pair, before, 0))
        fits = before + sizes <= remaining[owner]
        taken[shuffled[fits]] = True
        remaining -= np.bincount(owner[fits], sizes[fits], len(remaining)).astype(np.int64)
        shuffled = shuffled[~fits]


def _choose_spans(
    counts: np.ndarray, segments: np.ndarray, starts: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    """Select SpanBERT's geometric spans; each round adds one span to every unfinished pair.

    A span starts at a uniform word among those not taken. Its length in words is geometric up to
    `MAX_SPAN_LENGTH`; it ends at the end of its segment. Tokens taken before do not count again.
    Round k of a pair uses the draw of its k-th candidate: there are at most `counts` rounds.
    """
    first = np.flatnonzero(starts)
    bounds = np.append(first, len(segments))
    segment = segments[first]
    pair = segment // 2
    segment_end = np.searchsorted(segment, segment, side="right")
    draw_of_pair = np.searchsorted(segments, 2 * np.arange(len(counts)))
    survival = np.cumsum((1 - SPAN_GEOMETRIC_P) ** np.arange(MAX_SPAN_LENGTH))
    taken = np.zeros(len(first), bool)
    chosen = np.zeros(len(segments), bool)
    remaining = counts.copy()
    while len(active := np.flatnonzero(remaining)):
        free = np.flatnonzero(~taken)
        begin, end = (np.searchsorted(pair[free], active, side=side) for side in ("left", "right"))
        # One draw gives both: the integer part selects the word, the fraction the length.
        fraction, index = np.modf(draws[draw_of_pair[active]] * (end - begin))
        word = free[begin + index.astype(np.int64)]
        span_length = 1 + np.searchsorted(survival[:-1], fraction * survival[-1], side="right")
        stop = np.minimum(word + span_length, segment_end[word])
        taken[concatenate_ranges(word, stop - word)] = True
        size = bounds[stop] - bounds[word]
        tokens = concatenate_ranges(bounds[word], size)
        new = ~chosen[tokens]
        before = np.cumsum(new) - new
        before -= np.repeat(before[np.cumsum(size) - size], size)
        new &= before < np.repeat(remaining[active], size)
        chosen[tokens[new]] = True
        remaining[active] -= np.add.reduceat(new, np.cumsum(size) - size, dtype=np.int64)
        draw_of_pair += 1
    return chosen


def replace_masked_tokens(
    token_ids: np.ndarray,
    mask_replace_prob: float,
    random_replace_prob: float,
    mask_id: int,
    random_ids: np.ndarray,
    draws: np.ndarray,
) -> np.ndarray:
    """Return the encoder's inputs in place of the selected tokens, int [N], one draw each.

    Args:
      token_ids: int [N], the selected tokens.
      mask_replace_prob: probability of `[MASK]`.
      random_replace_prob: probability of a random token; otherwise the token is kept.
      mask_id: id of `[MASK]`.
      random_ids: tokens from which a random one is drawn uniformly.
      draws: float64 [2, N], uniform in [0, 1). The first row selects mask, kept or random; the
        second row selects the random token.
    """
    random = random_ids[(draws[1] * len(random_ids)).astype(np.int64)]
    kept_or_random = np.where(draws[0] < 1 - random_replace_prob, token_ids, random)
    return np.where(draws[0] < mask_replace_prob, mask_id, kept_or_random).astype(token_ids.dtype)
