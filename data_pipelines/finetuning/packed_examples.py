"""Packing of examples into sequences, batches of packed sequences, and unpacking of outputs.

A packed sequence holds several examples, as in pre-training, so that short examples do not each
cost a whole sequence.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.pretraining.packing import SequenceLimits, pack
from data_pipelines.ranges import concatenate_ranges

_PREDICTED = ("masked_lm_positions", "masked_lm_ids")


class PackedShape(NamedTuple):
    """Capacity of a sequence: `tokens` (T), `examples` (K, 1 without packing), `predictions` (M).

    With M > 0 the tokens of type 1 are to be predicted, each from the token before it.
    """

    tokens: int
    examples: int
    predictions: int = 0


@dataclasses.dataclass(frozen=True)
class PackedLayout:
    """Positions of N examples in packed sequences.

    Attributes:
      indices: int64 [N], indices of the examples.
      sequence: int64 [N], index of the example's sequence, ascending.
      token_offset: int64 [N], position of the example's first token in its sequence.
      slot: int64 [N], index of the example among the examples of its sequence.
    """

    indices: np.ndarray
    sequence: np.ndarray
    token_offset: np.ndarray
    slot: np.ndarray

    @property
    def num_sequences(self) -> int:
        """Number of sequences that hold an example."""
        return int(self.sequence[-1]) + 1 if len(self.sequence) else 0


def pack_examples(examples: Examples, indices: np.ndarray, shape: PackedShape) -> PackedLayout:
    """Pack examples, or groups of examples, into sequences by best fit.

    Args:
      examples: all examples.
      indices: int64 [n], the examples (or groups, where there are any) to pack.
      shape: capacity of a sequence.
    """
    group_sizes = examples.group_sizes
    counts = np.ones(len(indices), np.int64) if group_sizes is None else group_sizes[indices]
    limits, needs = SequenceLimits(shape.tokens, shape.examples, shape.examples), counts
    if shape.predictions:
        assert group_sizes is None
        limits = dataclasses.replace(limits, predictions=shape.predictions)
        needs = (examples.lengths - examples.prefix_lengths)[indices]
    sequence = pack(examples.sizes[indices], needs, limits)
    order = np.argsort(sequence, kind="stable")
    indices, sequence = indices[order], sequence[order]
    if group_sizes is not None:
        sequence = np.repeat(sequence, counts[order])
        indices = concatenate_ranges(examples.group_starts[indices], group_sizes[indices])
    lengths = examples.lengths[indices]
    first = np.searchsorted(sequence, sequence)
    before = np.cumsum(lengths) - lengths
    return PackedLayout(indices, sequence, before - before[first], np.arange(len(sequence)) - first)


def build_batch(
    examples: Examples, layout: PackedLayout, num_sequences: int, shape: PackedShape
) -> dict[str, np.ndarray]:
    """Build the batch of a layout, padded to `num_sequences` sequences; see `empty_batch`."""
    batch = empty_batch(num_sequences, shape, examples.targets, examples.group_sizes is not None)
    indices, slots = layout.indices, (layout.sequence, layout.slot)
    lengths = examples.lengths[indices]
    sources = concatenate_ranges(examples.starts[indices], lengths)
    position_ids = concatenate_ranges(np.zeros_like(lengths), lengths)
    columns = np.repeat(layout.token_offset, lengths) + position_ids
    cells = np.repeat(layout.sequence, lengths), columns
    prefix_lengths = np.repeat(examples.prefix_lengths[indices], lengths)
    batch["input_ids"][cells] = examples.ids[sources]
    batch["token_type_ids"][cells] = position_ids >= prefix_lengths
    batch["example_ids"][cells] = np.repeat(layout.slot + 1, lengths)
    batch["position_ids"][cells] = position_ids
    if shape.predictions:
        rows, targets = np.nonzero(batch["token_type_ids"])
        predictions = rows, np.arange(len(rows)) - np.searchsorted(rows, rows)
        batch["masked_lm_positions"][predictions] = targets - 1
        batch["masked_lm_ids"][predictions] = batch["input_ids"][rows, targets]
        batch["masked_lm_weights"][predictions] = 1
    if "cls_positions" in batch:
        batch["cls_positions"][slots] = layout.token_offset
    if examples.group_sizes is not None:
        # Numbered by position, not by group: a sequence may hold the same group twice.
        first = np.searchsorted(layout.sequence, layout.sequence)
        group_numbers = np.cumsum(np.isin(indices, examples.group_starts))
        batch["group_ids"][slots] = group_numbers - group_numbers[first] + 1
    for name, target in examples.targets.items():
        at, value_indices = (cells, sources) if target.level == "token" else (slots, indices)
        values = target.values[value_indices]
        if target.level == "position":
            values = values + layout.token_offset[:, None]
        batch[name][at] = values
        batch[f"{name}_weights"][at] = (
            1 if target.weights is None else target.weights[value_indices]
        )
    return batch


def empty_batch(
    num_sequences: int, shape: PackedShape, targets: Mapping[str, Target], grouped: bool = False
) -> dict[str, np.ndarray]:
    """Return a batch of B empty sequences of T tokens and K example slots.

    Returns:
      - `input_ids`, `token_type_ids`, `example_ids` and `position_ids`: int32 [B, T], as in
        pre-training.
      - For each target NAME, with the dtype of its values, and NAME`_weights`, float32,
        0 where no value is known. Level "example": [B, K] or [B, K, C], and [B, K]. Level "token":
        [B, T] both. Level "position": [B, K, n], positions in the sequence, and [B, K].
      - With predictions `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` [B, M], as
        in pre-training.
      - With a target of level "example", `cls_positions`: int32 [B, K], positions of the examples'
        first tokens.
      - With `grouped`, `group_ids`: int32 [B, K], the groups of a sequence numbered from 1, 0 for
        an empty slot.
    """
    tokens = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    batch = {name: np.zeros((num_sequences, shape.tokens), np.int32) for name in tokens}
    if shape.predictions:
        slot_shape = (num_sequences, shape.predictions)
        batch |= {name: np.zeros(slot_shape, np.int32) for name in _PREDICTED}
        batch["masked_lm_weights"] = np.zeros(slot_shape, np.float32)
    if any(target.level == "example" for target in targets.values()):
        batch["cls_positions"] = np.zeros((num_sequences, shape.examples), np.int32)
    if grouped:
        batch["group_ids"] = np.zeros((num_sequences, shape.examples), np.int32)
    for name, target in targets.items():
        slots = shape.tokens if target.level == "token" else shape.examples
        _, *value_shape = target.values.shape
        batch[name] = np.zeros((num_sequences, slots, *value_shape), target.values.dtype)
        batch[f"{name}_weights"] = np.zeros((num_sequences, slots), np.float32)
    return batch


def pack_eval_batches(
    examples: Examples, shape: PackedShape, num_sequences: int
) -> list[PackedLayout]:
    """Return the layouts of batches of at most `num_sequences` sequences, each example once."""
    layout = pack_examples(examples, np.arange(len(examples)), shape)
    bounds = np.searchsorted(
        layout.sequence, np.arange(0, layout.num_sequences + num_sequences, num_sequences)
    )
    return [
        PackedLayout(
            layout.indices[first:last],
            layout.sequence[first:last] - batch * num_sequences,
            layout.token_offset[first:last],
            layout.slot[first:last],
        )
        for batch, (first, last) in enumerate(itertools.pairwise(bounds))
        if last > first
    ]


def unpack_outputs(
    examples: Examples,
    layouts: Sequence[PackedLayout],
    outputs: Sequence[np.ndarray],
    level: Literal["example", "token"],
) -> list[np.ndarray]:
    """Return each example's part of a model's outputs.

    Args:
      examples: all examples.
      layouts: the layout of each batch, from `pack_eval_batches`.
      outputs: the outputs of each batch: [B, T, ...] for level "token", [B, K, ...] for "example".
      level: what the outputs belong to.

    Returns:
      For each example an array, [length, ...] for level "token", [...] for "example".
    """
    unpacked: list[np.ndarray] = [np.zeros(0)] * len(examples.lengths)
    for layout, values in zip(layouts, outputs, strict=True):
        for index, sequence, offset, slot in zip(
            layout.indices, layout.sequence, layout.token_offset, layout.slot, strict=True
        ):
            tokens = slice(offset, offset + examples.lengths[index])
            at = tokens if level == "token" else slot
            unpacked[index] = values[sequence, at, ...]  # the ellipsis keeps scalars as arrays
    return unpacked
