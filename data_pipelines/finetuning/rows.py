"""Windows to batches of span prediction, with a data position that is one integer.

Windows of questions and passages lie several to a row, as pairs do in pre-training, so that short
ones do not cost a whole row. Each step has `batch_size` windows, in rows of which there are as many
as the fullest step needs. An epoch is shuffled so that each step has its share of every length, and
the fullest step is hardly fuller than the others. Neither hosts nor devices change a byte of it.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from data_pipelines.finetuning.windows import Windows
from data_pipelines.pretraining.packing import RowShape, pack

WINDOWS = 8  # to a row, at the most


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where windows lie.

    Attributes:
      windows: int64 [W], their numbers.
      row: int64 [W], never falling.
      column: int64 [W], of the first piece.
      slot: int64 [W], place among the windows of the row.
    """

    windows: np.ndarray
    row: np.ndarray
    column: np.ndarray
    slot: np.ndarray

    @property
    def count(self) -> int:
        """Rows in use."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def place(windows: Windows, numbers: np.ndarray, seq_len: int) -> Rows:
    """Packs windows into as few rows as best fit finds."""
    lengths = windows.lengths[numbers]
    shape = RowShape(seq_len, WINDOWS, WINDOWS)
    row = pack(lengths, np.ones(len(numbers), np.int64), shape)
    order = np.argsort(row, kind="stable")
    numbers, row, lengths = numbers[order], row[order], lengths[order]
    first = np.searchsorted(row, row)
    before = np.cumsum(lengths) - lengths
    return Rows(numbers, row, before - before[first], np.arange(len(row)) - first)


def fill(windows: Windows, rows: Rows, count: int, seq_len: int) -> dict[str, np.ndarray]:
    """The batch of rows placed by `place`, filled up to `count` rows."""
    batch = empty(count, seq_len)
    ends = np.cumsum(windows.lengths)
    for number, row, column, slot in zip(
        rows.windows, rows.row, rows.column, rows.slot, strict=True
    ):
        length, prefix = windows.lengths[number], windows.prefix[number]
        cells = slice(column, column + length)
        batch["token_ids"][row, cells] = windows.ids[ends[number] - length : ends[number]]
        batch["type_ids"][row, column + prefix : column + length] = 1
        batch["pack_ids"][row, cells] = slot + 1
        batch["positions"][row, cells] = np.arange(length)
        batch["span_targets"][row, slot] = windows.targets[number] + column
        batch["span_weights"][row, slot] = 1
    return batch


def empty(rows: int, seq_len: int) -> dict[str, np.ndarray]:
    """Rows without windows.

    `span_targets` int32 [R, K, 2] are the columns of first and last piece of an answer, or twice
    that of the window's [CLS]; `span_weights` float32 [R, K] are 0 for an empty slot. The rest is
    as in pre-training.
    """
    pieces = ("token_ids", "type_ids", "pack_ids", "positions")
    return {name: np.zeros((rows, seq_len), np.int32) for name in pieces} | {
        "span_targets": np.zeros((rows, WINDOWS, 2), np.int32),
        "span_weights": np.zeros((rows, WINDOWS), np.float32),
    }


class TrainingBatches:
    """Endless batches of shuffled windows.

    Args:
      multiple: the number of rows is one of it, so that devices can share them.

    Attributes:
      rows: of each batch.
    """

    def __init__(
        self, windows: Windows, seed: int, batch_size: int, seq_len: int, steps: int, multiple: int
    ) -> None:
        self._windows, self._seed = windows, seed
        self._batch_size, self._seq_len = batch_size, seq_len
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        most = max(self._place(step).count for step in range(steps))
        self.rows = -(-most // multiple) * multiple

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """All rows of a step."""
        return fill(self._windows, self._place(step), self.rows, self._seq_len)

    def _place(self, step: int) -> Rows:
        start = step * self._batch_size
        return place(self._windows, self._numbers(start, start + self._batch_size), self._seq_len)

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        """Those of the windows read at some places of the endless order."""
        total, found = len(self._windows), []
        while start < stop:
            epoch, first = divmod(start, total)
            last = min(total, first + stop - start)
            found.append(self._epoch(epoch)[first:last])
            start += last - first
        return np.concatenate(found)

    def _epoch(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            steps = -(-len(self._windows) // self._batch_size)
            self._order = epoch, _shuffle(self._windows.lengths, steps, random)
        return self._order[1]


def _shuffle(lengths: np.ndarray, steps: int, random: np.random.Generator) -> np.ndarray:
    """A random order in which windows of like length, `steps` of them, lie evenly spread."""
    by_length = np.lexsort((random.random(len(lengths)), lengths))
    place = np.empty(len(lengths))
    for first in range(0, len(lengths), steps):
        alike = by_length[first : first + steps]
        place[alike] = (random.permutation(len(alike)) + random.random()) / len(alike)
    return np.argsort(place, kind="stable")


def evaluation_rows(windows: Windows, seq_len: int, rows: int) -> list[Rows]:
    """Every window once, in batches of at most `rows` rows."""
    placed = place(windows, np.arange(len(windows)), seq_len)
    bounds = np.searchsorted(placed.row, np.arange(0, placed.count + rows, rows))
    return [
        Rows(
            placed.windows[first:last],
            placed.row[first:last] - batch * rows,
            placed.column[first:last],
            placed.slot[first:last],
        )
        for batch, (first, last) in enumerate(itertools.pairwise(bounds))
        if last > first
    ]


def own_rows(batch: dict[str, np.ndarray], hosts: int, host: int) -> dict[str, np.ndarray]:
    """The rows of one host."""
    rows = len(batch["token_ids"]) // hosts
    return {name: array[host * rows : (host + 1) * rows] for name, array in batch.items()}


def split_logits(
    windows: Windows, batches: Sequence[Rows], logits: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """For each window its logits [pieces, 2], from those of all batches [R, T, 2]."""
    found: list[np.ndarray] = [np.zeros((0, 2))] * len(windows)
    for rows, values in zip(batches, logits, strict=True):
        for number, row, column in zip(rows.windows, rows.row, rows.column, strict=True):
            found[number] = values[row, column : column + windows.lengths[number]]
    return found
