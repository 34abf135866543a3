"""Examples to rows and batches, for every task, with a data position that is one integer.

Examples lie several to a row, as pairs do in pre-training, so that short ones do not cost a whole
row. Each step has `batch_size` examples, in rows of which there are as many as the fullest step
needs. An epoch is shuffled so that each step has its share of every length, and the fullest step is
hardly fuller than the others. Neither hosts nor devices change a byte of it.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_pipelines.pretraining.packing import RowShape, pack
from data_pipelines.pretraining.pairs import ranges


@dataclasses.dataclass(frozen=True)
class Target:
    """What a model is to say of E examples of P pieces in all; of none, it gives but the shapes.

    Attributes:
      of: what has a value: the "example", each of its "pieces", or "places" within it.
      values: of examples a class int32 [E], a number float32 [E] or a set of labels float32 [E, C];
        of pieces a tag int32 [P]; of places n positions within the example int32 [E, n], such as
        the first and the last piece of a span.
      weights: float32 [E], of pieces [P]: 0 where there is nothing to say; None for 1 everywhere.
    """

    of: Literal["example", "pieces", "places"]
    values: np.ndarray
    weights: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Examples:
    """E examples.

    Attributes:
      ids: int32 [P], the pieces of all examples, one after the other.
      lengths: int64 [E], pieces of each.
      prefix: int64 [E], pieces of type 0, which come first; the others are of type 1.
      targets: by name; empty where nothing is known.
      group_sizes: int64 [G], how many follow one another that lie in one row and are told apart,
        such as the choices of a question; None where each is for itself.
    """

    ids: np.ndarray
    lengths: np.ndarray
    prefix: np.ndarray
    targets: Mapping[str, Target]
    group_sizes: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    def __len__(self) -> int:
        """What is shuffled and counted: groups, or examples that are for themselves."""
        return len(self.lengths if self.group_sizes is None else self.group_sizes)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """int64 [E], the first piece of each among those of all."""
        return np.cumsum(self.lengths) - self.lengths

    @functools.cached_property
    def group_starts(self) -> np.ndarray:
        """int64 [G], the first example of each group."""
        assert self.group_sizes is not None
        return np.cumsum(self.group_sizes) - self.group_sizes

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """int64, pieces of each of what is shuffled."""
        if self.group_sizes is None:
            return self.lengths
        return np.add.reduceat(self.lengths, self.group_starts)

    def digest(self) -> str:
        """A hex digest of all that training reads."""
        digest = hashlib.sha256()
        learned = [(target.values, target.weights) for target in self.targets.values()]
        arrays = (self.ids, self.lengths, self.prefix, *itertools.chain(*learned))
        for array in (*arrays, self.group_sizes):
            if array is not None:
                digest.update(array.tobytes())
        return digest.hexdigest()


class Shape(NamedTuple):
    """What one row holds at most: `pieces` (T) and `examples` (K, 1 without packing)."""

    pieces: int
    examples: int


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where N examples lie.

    Attributes:
      numbers: int64 [N], those of the examples.
      row: int64 [N], never falling.
      column: int64 [N], of the first piece.
      slot: int64 [N], place among the examples of the row.
    """

    numbers: np.ndarray
    row: np.ndarray
    column: np.ndarray
    slot: np.ndarray

    @property
    def count(self) -> int:
        """Rows in use."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def place(examples: Examples, numbers: np.ndarray, shape: Shape) -> Rows:
    """Packs some examples, int64 [N], or groups of them, into as few rows as best fit finds."""
    sizes = examples.group_sizes
    counts = np.ones(len(numbers), np.int64) if sizes is None else sizes[numbers]
    most = RowShape(shape.pieces, shape.examples, shape.examples)
    row = pack(examples.sizes[numbers], counts, most)
    order = np.argsort(row, kind="stable")
    numbers, row = numbers[order], row[order]
    if sizes is not None:
        row = np.repeat(row, counts[order])
        numbers = ranges(examples.group_starts[numbers], sizes[numbers])
    lengths = examples.lengths[numbers]
    first = np.searchsorted(row, row)
    before = np.cumsum(lengths) - lengths
    return Rows(numbers, row, before - before[first], np.arange(len(row)) - first)


def fill(examples: Examples, rows: Rows, count: int, shape: Shape) -> dict[str, np.ndarray]:
    """The batch of rows placed by `place`, filled up to `count` rows; see `empty`."""
    batch = empty(count, shape, examples.targets, examples.group_sizes is not None)
    numbers, slots = rows.numbers, (rows.row, rows.slot)
    lengths = examples.lengths[numbers]
    sources = ranges(examples.starts[numbers], lengths)
    positions = ranges(np.zeros_like(lengths), lengths)
    cells = np.repeat(rows.row, lengths), np.repeat(rows.column, lengths) + positions
    batch["token_ids"][cells] = examples.ids[sources]
    batch["type_ids"][cells] = positions >= np.repeat(examples.prefix[numbers], lengths)
    batch["pack_ids"][cells] = np.repeat(rows.slot + 1, lengths)
    batch["positions"][cells] = positions
    if "cls_positions" in batch:
        batch["cls_positions"][slots] = rows.column
    if examples.group_sizes is not None:
        # Numbers within a row, as those of what is in it. A row may have one group twice.
        first = np.searchsorted(rows.row, rows.row)
        of_batch = np.cumsum(np.isin(numbers, examples.group_starts))
        batch["groups"][slots] = of_batch - of_batch[first] + 1
    for name, target in examples.targets.items():
        at, found = (cells, sources) if target.of == "pieces" else (slots, numbers)
        values = target.values[found]
        if target.of == "places":
            values = values + rows.column[:, None]
        batch[f"{name}_targets"][at] = values
        batch[f"{name}_weights"][at] = 1 if target.weights is None else target.weights[found]
    return batch


def empty(
    rows: int, shape: Shape, targets: Mapping[str, Target], grouped: bool = False
) -> dict[str, np.ndarray]:
    """R rows without examples, of T pieces and K slots for examples each.

    `token_ids`, `type_ids`, `pack_ids` and `positions` are int32 [R, T], as in pre-training. A
    target adds NAME`_targets`, of the type of its values, and NAME`_weights`, float32, 0 where
    there is nothing to say: of examples [R, K] or [R, K, C] and [R, K], of pieces [R, T] both, of
    places [R, K, n], which are columns of the row, and [R, K]. Where one is of examples,
    `cls_positions` int32 [R, K] are the columns of their first pieces. Where examples are
    `grouped`, `groups` int32 [R, K] number the groups of a row from 1; 0 is an empty slot.
    """
    pieces = ("token_ids", "type_ids", "pack_ids", "positions")
    batch = {name: np.zeros((rows, shape.pieces), np.int32) for name in pieces}
    if any(target.of == "example" for target in targets.values()):
        batch["cls_positions"] = np.zeros((rows, shape.examples), np.int32)
    if grouped:
        batch["groups"] = np.zeros((rows, shape.examples), np.int32)
    for name, target in targets.items():
        slots = shape.pieces if target.of == "pieces" else shape.examples
        _, *each = target.values.shape
        batch[f"{name}_targets"] = np.zeros((rows, slots, *each), target.values.dtype)
        batch[f"{name}_weights"] = np.zeros((rows, slots), np.float32)
    return batch


class TrainingBatches:
    """Endless batches of shuffled examples.

    Args:
      batch_size: examples of a step.
      steps: those of the run, which decide how many rows are enough.
      multiple: the number of rows is one of it, so that devices can share them.

    Attributes:
      rows: of each batch.
    """

    def __init__(
        self,
        examples: Examples,
        seed: int,
        batch_size: int,
        shape: Shape,
        steps: int,
        multiple: int,
    ) -> None:
        self._examples, self._seed = examples, seed
        self._batch_size, self._shape = batch_size, shape
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        most = max(self._place(step).count for step in range(steps))
        self.rows = -(-most // multiple) * multiple

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """All rows of a step."""
        return fill(self._examples, self._place(step), self.rows, self._shape)

    def _place(self, step: int) -> Rows:
        start = step * self._batch_size
        return place(self._examples, self._numbers(start, start + self._batch_size), self._shape)

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        """Those of the examples read at some places of the endless order."""
        total, found = len(self._examples), []
        while start < stop:
            epoch, first = divmod(start, total)
            last = min(total, first + stop - start)
            found.append(self._epoch(epoch)[first:last])
            start += last - first
        return np.concatenate(found)

    def _epoch(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            steps = -(-len(self._examples) // self._batch_size)
            self._order = epoch, _shuffle(self._examples.sizes, steps, random)
        return self._order[1]


def _shuffle(lengths: np.ndarray, steps: int, random: np.random.Generator) -> np.ndarray:
    """A random order in which examples of like length, `steps` of them, lie evenly spread."""
    by_length = np.lexsort((random.random(len(lengths)), lengths))
    place = np.empty(len(lengths))
    for first in range(0, len(lengths), steps):
        alike = by_length[first : first + steps]
        place[alike] = (random.permutation(len(alike)) + random.random()) / len(alike)
    return np.argsort(place, kind="stable")


def evaluation_rows(examples: Examples, shape: Shape, rows: int) -> list[Rows]:
    """Every example once, in batches of at most `rows` rows."""
    placed = place(examples, np.arange(len(examples)), shape)
    bounds = np.searchsorted(placed.row, np.arange(0, placed.count + rows, rows))
    return [
        Rows(
            placed.numbers[first:last],
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


def split(
    examples: Examples,
    batches: Sequence[Rows],
    outputs: Sequence[np.ndarray],
    of: Literal["example", "pieces"],
) -> list[np.ndarray]:
    """For each example its part of the outputs of all batches.

    Args:
      batches: from `evaluation_rows`.
      outputs: of each batch, of "pieces" [R, T, ...] or of the "example" in each slot [R, K, ...].
    Returns:
      Of pieces arrays [length, ...], of examples [...].
    """
    found: list[np.ndarray] = [np.zeros(0)] * len(examples.lengths)
    for rows, values in zip(batches, outputs, strict=True):
        for number, row, column, slot in zip(
            rows.numbers, rows.row, rows.column, rows.slot, strict=True
        ):
            cells = slice(column, column + examples.lengths[number]) if of == "pieces" else slot
            found[number] = values[row, cells, ...]  # an array, even of one number
    return found
