"""Several pairs to a row: which pairs share one, and the arrays that a row of pairs becomes."""

import dataclasses
from bisect import bisect_left, insort

import numpy as np

from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.ranges import concatenate_ranges


@dataclasses.dataclass(frozen=True)
class SequenceLimits:
    """What one row holds at most: `tokens` (T), masked `slots` (M) and `pairs` (K)."""

    tokens: int
    slots: int
    pairs: int


def pack(lengths: np.ndarray, predictions: np.ndarray, shape: SequenceLimits) -> np.ndarray:
    """The row of each pair, int64 [P], by best fit from the longest pair to the shortest.

    A pair goes into the row with the least room that still takes it, else into a new row. Rows are
    numbered from the fullest to the emptiest; every row has at least one pair.

    Args:
      lengths: pieces of each pair, at most `shape.pieces` [P].
      predictions: masked slots that each pair needs, 1 to `shape.slots` [P].
    """
    row_of = [0] * len(lengths)
    rooms: list[int] = []  # by row
    slots: list[int] = []
    pairs: list[int] = []
    open_rows: list[tuple[int, int]] = []  # (room, row), ascending
    needs = predictions.tolist()
    sizes = lengths.tolist()
    for pair in np.argsort(-lengths, kind="stable").tolist():
        size, need = sizes[pair], needs[pair]
        at = bisect_left(open_rows, (size, 0))
        while at < len(open_rows) and slots[open_rows[at][1]] < need:
            at += 1
        if at < len(open_rows):
            room, row = open_rows.pop(at)
        else:
            room, row = shape.tokens, len(rooms)
            rooms.append(room)
            slots.append(shape.slots)
            pairs.append(shape.pairs)
        row_of[pair] = row
        rooms[row] = room = room - size
        slots[row] -= need
        pairs[row] -= 1
        if room and slots[row] and pairs[row]:
            insort(open_rows, (room, row))
    rank = np.empty(len(rooms), np.int64)
    rank[np.argsort(rooms, kind="stable")] = np.arange(len(rooms))
    return rank[row_of]


def write_pairs(
    text: np.ndarray,
    pairs: Pairs,
    row: np.ndarray,
    batch: dict[str, np.ndarray],
    cls_id: int,
    sep_id: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Writes pairs into the zeroed arrays of a batch (`options.BATCH`), all but the `mlm_` ones.

    Args:
      text: int [C], the pieces of all pairs without special ones: A, B, A, B, ...
      row: int64 [P], the row of each pair, never falling.
      cls, sep: ids of `[CLS]` and `[SEP]`.

    Returns:
      Of each piece of `text`: its cell, the index into the flattened [R, T], int64 [C] ascending;
      and its run, 2 * pair + segment, int64 [C].
    """
    lengths = pairs.lengths
    first_of_row = np.searchsorted(row, row)
    before = np.cumsum(lengths) - lengths
    column = before - before[first_of_row]
    slot = np.arange(len(pairs)) - first_of_row

    start = row * batch["input_ids"].shape[1] + column
    middle = start + pairs.a_length + 1
    end = start + lengths
    cells = concatenate_ranges(np.stack([start, middle], 1).ravel() + 1, pairs.text_lengths)
    occupied = concatenate_ranges(start, lengths)

    input_ids, token_type_ids, example_ids, positions = (
        batch[name].reshape(-1)
        for name in ("input_ids", "token_type_ids", "example_ids", "position_ids")
    )
    input_ids[cells] = text
    input_ids[start] = cls_id
    input_ids[middle] = input_ids[end - 1] = sep_id
    token_type_ids[concatenate_ranges(middle + 1, end - middle - 1)] = 1
    example_ids[occupied] = np.repeat(slot + 1, lengths)
    positions[occupied] = occupied - np.repeat(start, lengths)
    batch["cls_positions"][row, slot] = column
    batch["next_sentence_labels"][row, slot] = pairs.is_random
    batch["next_sentence_weights"][row, slot] = pairs.b_length > 0
    return cells, np.repeat(np.arange(2 * len(pairs)), pairs.text_lengths)
