"""Shuffled training batches of packed examples; the data position is one integer, the step.

Each step has `batch_size` examples. All steps have the number of sequences that the fullest step
needs. An epoch is shuffled so that every step gets its share of every length, which keeps the
fullest step hardly fuller than the others. Batches depend neither on processes nor on devices.
"""

from typing import Protocol

import numpy as np

from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import (
    PackedLayout,
    PackedShape,
    build_batch,
    pack_examples,
)


class StepBatches(Protocol):
    """Training batches by step, of `num_sequences` sequences each."""

    num_sequences: int

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Return the whole batch of a step; see `empty_batch`."""


class TrainingBatches:
    """Endless batches of shuffled examples.

    Args:
      examples: the training data.
      seed: seed of the shuffling.
      batch_size: examples (or groups, where there are any) of a step.
      shape: capacity of a sequence.
      steps: steps of the run; the fullest step decides the number of sequences.
      pad_to_multiple_of: a divisor of the number of sequences, so that devices share them evenly.

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
        needed = max(self._layout(step).num_sequences for step in range(steps))
        self.num_sequences = -(-needed // pad_to_multiple_of) * pad_to_multiple_of

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Return the whole batch of a step; see `empty_batch`."""
        return build_batch(self._examples, self._layout(step), self.num_sequences, self._shape)

    def _layout(self, step: int) -> PackedLayout:
        start = step * self._batch_size
        indices = self._example_indices(start, start + self._batch_size)
        return pack_examples(self._examples, indices, self._shape)

    def _example_indices(self, start: int, stop: int) -> np.ndarray:
        """Return the examples at positions [start, stop) of the concatenated epochs."""
        total, parts = len(self._examples), []
        while start < stop:
            epoch, first = divmod(start, total)
            last = min(total, first + stop - start)
            parts.append(self._epoch_order(epoch)[first:last])
            start += last - first
        return np.concatenate(parts)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            steps = -(-len(self._examples) // self._batch_size)
            self._order = epoch, shuffle_by_length(self._examples.sizes, steps, random)
        return self._order[1]


def process_batch(
    batch: dict[str, np.ndarray], num_processes: int, process_id: int
) -> dict[str, np.ndarray]:
    """Return the sequences of a batch that one process feeds to its devices."""
    size = len(batch["input_ids"]) // num_processes
    return {
        name: array[process_id * size : (process_id + 1) * size] for name, array in batch.items()
    }


def shuffle_by_length(lengths: np.ndarray, steps: int, random: np.random.Generator) -> np.ndarray:
    """Return a random order in which every run of `steps` similar lengths is evenly spread."""
    by_length = np.lexsort((random.random(len(lengths)), lengths))
    sort_keys = np.empty(len(lengths))
    for first in range(0, len(lengths), steps):
        similar = by_length[first : first + steps]
        sort_keys[similar] = (random.permutation(len(similar)) + random.random()) / len(similar)
    return np.argsort(sort_keys, kind="stable")
