"""Packing: assignment of pairs to sequences, and the batch arrays of packed pairs."""

import dataclasses
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.ranges import concatenate_ranges

_Open = tuple[int, int]  # free tokens and number of a sequence that takes more pairs
# Open sequences with too few free predictions that a pair passes. Targets of short sources fill the
# predictions first: longer scans would take five seconds for 10,000 of them.
_MAX_SCAN = 16


@dataclasses.dataclass(frozen=True)
class SequenceLimits:
    """Limits of one sequence: `tokens` (T), `predictions` (M) and `examples` (K)."""

    tokens: int
    predictions: int
    examples: int


def pack(lengths: np.ndarray, predictions: np.ndarray, limits: SequenceLimits) -> np.ndarray:
    """Assign pairs to sequences by best fit, longest pair first.

    A pair goes into the sequence with the least remaining room that still fits it, else into a new
    sequence.

    Args:
      lengths: int [P], tokens of each pair, at most `limits.tokens`.
      predictions: int [P], tokens to predict in each pair, 1 to `limits.predictions`.
      limits: limits of a sequence.

    Returns:
      The sequence of each pair, int64 [P]. Sequences are numbered from the fullest to the emptiest
      and have at least one pair each.
    """
    sequence_of_pair = [0] * len(lengths)
    rooms: list[int] = []  # by sequence
    free_predictions: list[int] = []
    free_examples: list[int] = []
    open_sequences: list[_Open] = []  # ascending
    by_free: list[list[_Open]] = []  # the same by their free predictions, after a long scan
    needs = predictions.tolist()
    sizes = lengths.tolist()
    for pair in np.argsort(-lengths, kind="stable").tolist():
        size, need = sizes[pair], needs[pair]
        best: _Open | None = None
        if not by_free:
            index = bisect_left(open_sequences, (size, 0))
            stop = min(len(open_sequences), index + _MAX_SCAN)
            while index < stop and free_predictions[open_sequences[index][1]] < need:
                index += 1
            if index < stop:
                best = open_sequences.pop(index)
            elif stop < len(open_sequences):
                by_free = [[] for _ in range(limits.predictions + 1)]
                for entry in open_sequences:
                    by_free[free_predictions[entry[1]]].append(entry)
        if by_free:
            best = _pop_fullest(by_free, size, need)
        if best:
            room, sequence = best
        else:
            room, sequence = limits.tokens, len(rooms)
            rooms.append(room)
            free_predictions.append(limits.predictions)
            free_examples.append(limits.examples)
        sequence_of_pair[pair] = sequence
        rooms[sequence] = room = room - size
        free_predictions[sequence] -= need
        free_examples[sequence] -= 1
        if room and free_predictions[sequence] and free_examples[sequence]:
            entries = by_free[free_predictions[sequence]] if by_free else open_sequences
            insort(entries, (room, sequence))
    rank = np.empty(len(rooms), np.int64)
    rank[np.argsort(rooms, kind="stable")] = np.arange(len(rooms))
    return rank[sequence_of_pair]


def _pop_fullest(by_free: Sequence[list[_Open]], size: int, need: int) -> _Open | None:
    """Remove the fullest sequence that takes `size` tokens and `need` predictions; None without."""
    least: tuple[_Open, list[_Open]] | None = None
    for entries in by_free[need:]:
        if entries and entries[-1][0] >= size:
            entry = entries[bisect_left(entries, (size, 0))]
            if least is None or entry < least[0]:
                least = entry, entries
    if least is None:
        return None
    entry, entries = least
    del entries[bisect_left(entries, entry)]
    return entry


def write_pairs(
    text: np.ndarray,
    pairs: Pairs,
    sequence: np.ndarray,
    batch: dict[str, np.ndarray],
    cls_id: int,
    sep_id: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Write pairs into the zeroed arrays of a batch, except the `masked_lm_` arrays.

    Args:
      text: int [C], tokens of all pairs without special tokens: A, B, A, B, ...
      pairs: P pairs.
      sequence: int64 [P], the sequence of each pair, never decreasing.
      batch: the arrays of `options.BATCH_ARRAYS`.
      cls_id: id of `[CLS]`.
      sep_id: id of `[SEP]`.

    Returns:
      The index of each token of `text` in the flattened [B, T] arrays, int64 [C], ascending.

      The segment of each token, 2 * pair + (0 for A, 1 for B), int64 [C].
    """
    lengths = pairs.lengths
    first_of_sequence = np.searchsorted(sequence, sequence)
    before = np.cumsum(lengths) - lengths
    column = before - before[first_of_sequence]
    slot = np.arange(len(pairs)) - first_of_sequence

    start = sequence * batch["input_ids"].shape[1] + column
    middle = start + pairs.a_length + 1
    end = start + lengths
    cells = concatenate_ranges(np.stack([start, middle], 1).ravel() + 1, pairs.text_lengths)
    occupied = concatenate_ranges(start, lengths)

    input_ids, token_type_ids, example_ids, position_ids = (
        batch[name].reshape(-1)
        for name in ("input_ids", "token_type_ids", "example_ids", "position_ids")
    )
    input_ids[cells] = text
    input_ids[start] = cls_id
    input_ids[middle] = input_ids[end - 1] = sep_id
    token_type_ids[concatenate_ranges(middle + 1, end - middle - 1)] = 1
    example_ids[occupied] = np.repeat(slot + 1, lengths)
    position_ids[occupied] = occupied - np.repeat(start, lengths)
    batch["cls_positions"][sequence, slot] = column
    batch["next_sentence_labels"][sequence, slot] = pairs.is_random
    batch["next_sentence_weights"][sequence, slot] = pairs.b_length > 0
    return cells, np.repeat(np.arange(2 * len(pairs)), pairs.text_lengths)
