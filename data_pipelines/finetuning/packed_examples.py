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

from data_pipelines.pretraining.packing import SequenceLimits, pack
from data_pipelines.ranges import concatenate_ranges


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

    level: Literal["example", "pieces", "position"]
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


class PackedShape(NamedTuple):
    """What one row holds at most: `tokens` (T) and `examples` (K, 1 without packing)."""

    tokens: int
    examples: int


@dataclasses.dataclass(frozen=True)
class PackedLayout:
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
        """PackedLayout in use."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def place(examples: Examples, numbers: np.ndarray, shape: PackedShape) -> PackedLayout:
    """Packs some examples, int64 [N], or groups of them, into as few rows as best fit finds."""
    sizes = examples.group_sizes
    counts = np.ones(len(numbers), np.int64) if sizes is None else sizes[numbers]
    most = SequenceLimits(shape.tokens, shape.examples, shape.examples)
    row = pack(examples.sizes[numbers], counts, most)
    order = np.argsort(row, kind="stable")
    numbers, row = numbers[order], row[order]
    if sizes is not None:
        row = np.repeat(row, counts[order])
        numbers = concatenate_ranges(examples.group_starts[numbers], sizes[numbers])
    lengths = examples.lengths[numbers]
    first = np.searchsorted(row, row)
    before = np.cumsum(lengths) - lengths
    return PackedLayout(numbers, row, before - before[first], np.arange(len(row)) - first)


def build_batch(
    examples: Examples, rows: PackedLayout, count: int, shape: PackedShape
) -> dict[str, np.ndarray]:
    """The batch of rows placed by `place`, filled up to `count` rows; see `empty`."""
    batch = empty(count, shape, examples.targets, examples.group_sizes is not None)
    numbers, slots = rows.numbers, (rows.row, rows.slot)
    lengths = examples.lengths[numbers]
    sources = concatenate_ranges(examples.starts[numbers], lengths)
    positions = concatenate_ranges(np.zeros_like(lengths), lengths)
    cells = np.repeat(rows.row, lengths), np.repeat(rows.column, lengths) + positions
    batch["input_ids"][cells] = examples.ids[sources]
    batch["token_type_ids"][cells] = positions >= np.repeat(examples.prefix[numbers], lengths)
    batch["example_ids"][cells] = np.repeat(rows.slot + 1, lengths)
    batch["position_ids"][cells] = positions
    if "cls_positions" in batch:
        batch["cls_positions"][slots] = rows.column
    if examples.group_sizes is not None:
        # Numbers within a row, as those of what is in it. A row may have one group twice.
        first = np.searchsorted(rows.row, rows.row)
        of_batch = np.cumsum(np.isin(numbers, examples.group_starts))
        batch["group_ids"][slots] = of_batch - of_batch[first] + 1
    for name, target in examples.targets.items():
        at, found = (cells, sources) if target.level == "pieces" else (slots, numbers)
        values = target.values[found]
        if target.level == "position":
            values = values + rows.column[:, None]
        batch[name][at] = values
        batch[f"{name}_weights"][at] = 1 if target.weights is None else target.weights[found]
    return batch


def empty(
    rows: int, shape: PackedShape, targets: Mapping[str, Target], grouped: bool = False
) -> dict[str, np.ndarray]:
    """R rows without examples, of T pieces and K slots for examples each.

    `input_ids`, `token_type_ids`, `example_ids` and `positions` are int32 [R, T], as in pre-training. A
    target adds NAME, of the type of its values, and NAME`_weights`, float32, 0 where
    there is nothing to say: of examples [R, K] or [R, K, C] and [R, K], of pieces [R, T] both, of
    places [R, K, n], which are columns of the row, and [R, K]. Where one is of examples,
    `cls_positions` int32 [R, K] are the columns of their first pieces. Where examples are
    `grouped`, `group_ids` int32 [R, K] number the groups of a row from 1; 0 is an empty slot.
    """
    tokens = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    batch = {name: np.zeros((rows, shape.tokens), np.int32) for name in tokens}
    if any(target.level == "example" for target in targets.values()):
        batch["cls_positions"] = np.zeros((rows, shape.examples), np.int32)
    if grouped:
        batch["group_ids"] = np.zeros((rows, shape.examples), np.int32)
    for name, target in targets.items():
        slots = shape.tokens if target.level == "pieces" else shape.examples
        _, *each = target.values.shape
        batch[name] = np.zeros((rows, slots, *each), target.values.dtype)
        batch[f"{name}_weights"] = np.zeros((rows, slots), np.float32)
    return batch


class TrainingBatches:
    """Endless batches of shuffled examples.

    Args:
      batch_size: examples of a step.
      steps: those of the run, which decide how many rows are enough.
      multiple: the number of rows is one of it, so that devices can share them.

    Attributes:
      num_sequences: sequences of each batch.
    """

    def __init__(
        self,
        examples: Examples,
        seed: int,
        batch_size: int,
        shape: PackedShape,
        steps: int,
        pad_to_multiple_of: int,
    ) -> None:
        self._examples, self._seed = examples, seed
        self._batch_size, self._shape = batch_size, shape
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        most = max(self._layout(step).count for step in range(steps))
        self.num_sequences = -(-most // pad_to_multiple_of) * pad_to_multiple_of

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """All rows of a step."""
        return build_batch(self._examples, self._layout(step), self.num_sequences, self._shape)

    def _layout(self, step: int) -> PackedLayout:
        start = step * self._batch_size
        return place(
            self._examples, self._example_indices(start, start + self._batch_size), self._shape
        )

    def _example_indices(self, start: int, stop: int) -> np.ndarray:
        """Those of the examples read at some places of the endless order."""
        total, found = len(self._examples), []
        while start < stop:
            epoch, first = divmod(start, total)
            last = min(total, first + stop - start)
            found.append(self._epoch_order(epoch)[first:last])
            start += last - first
        return np.concatenate(found)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            steps = -(-len(self._examples) // self._batch_size)
            self._order = epoch, _shuffle_by_length(self._examples.sizes, steps, random)
        return self._order[1]


def _shuffle_by_length(lengths: np.ndarray, steps: int, random: np.random.Generator) -> np.ndarray:
    """A random order in which examples of like length, `steps` of them, lie evenly spread."""
    by_length = np.lexsort((random.random(len(lengths)), lengths))
    place = np.empty(len(lengths))
    for first in range(0, len(lengths), steps):
        alike = by_length[first : first + steps]
        place[alike] = (random.permutation(len(alike)) + random.random()) / len(alike)
    return np.argsort(place, kind="stable")


def pack_eval_batches(examples: Examples, shape: PackedShape, rows: int) -> list[PackedLayout]:
    """Every example once, in batches of at most `rows` rows."""
    placed = place(examples, np.arange(len(examples)), shape)
    bounds = np.searchsorted(placed.row, np.arange(0, placed.count + rows, rows))
    return [
        PackedLayout(
            placed.numbers[first:last],
            placed.row[first:last] - batch * rows,
            placed.column[first:last],
            placed.slot[first:last],
        )
        for batch, (first, last) in enumerate(itertools.pairwise(bounds))
        if last > first
    ]


def process_batch(
    batch: dict[str, np.ndarray], num_processes: int, host: int
) -> dict[str, np.ndarray]:
    """The rows of one host."""
    rows = len(batch["input_ids"]) // num_processes
    return {name: array[host * rows : (host + 1) * rows] for name, array in batch.items()}


def split(
    examples: Examples,
    batches: Sequence[PackedLayout],
    outputs: Sequence[np.ndarray],
    level: Literal["example", "pieces"],
) -> list[np.ndarray]:
    """For each example its part of the outputs of all batches.

    Args:
      batches: from `pack_eval_batches`.
      outputs: of each batch, of "pieces" [R, T, ...] or of the "example" in each slot [R, K, ...].
    Returns:
      Of pieces arrays [length, ...], of examples [...].
    """
    found: list[np.ndarray] = [np.zeros(0)] * len(examples.lengths)
    for rows, values in zip(batches, outputs, strict=True):
        for number, row, column, slot in zip(
            rows.numbers, rows.row, rows.column, rows.slot, strict=True
        ):
            cells = slice(column, column + examples.lengths[number]) if level == "pieces" else slot
            found[number] = values[row, cells, ...]  # an array, even of one number
    return found
