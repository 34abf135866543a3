"""Training batches of tuples of texts, in which no text occurs twice.

Another example of the same text would be a negative that is none. Each epoch is planned for itself
from the seed and its number, so batches depend neither on processes nor on interruptions.
"""

import collections
import dataclasses
import logging

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import (
    PackedLayout,
    PackedShape,
    build_batch,
    pack_examples,
)
from data_pipelines.finetuning.training_batches import shuffle_by_length

_MAX_UNREAD = 0.02  # of an epoch's examples, without a warning
_log = logging.getLogger("data_pipelines")

SLOTS = "text_slots"  # target: the index of a text among those of its batch


class TupleBatches:
    """Endless batches of shuffled examples of C texts each.

    A batch has the texts of `batch_size` examples. Its text j belongs to example j // C, whatever
    sequence it is packed into. The examples that an epoch has left over are left out of it.

    Args:
      distinct: whether the texts of a batch must differ.
      examples: tokenized texts with the target `SLOTS`, a group for each example.
      seed: seed of the shuffling.
      batch_size: examples of a step.
      shape: capacity of a sequence.
      steps: steps of the run; the fullest step decides the number of sequences.
      pad_to_multiple_of: a divisor of the number of sequences, so that devices share them evenly.

    Attributes:
      num_sequences: sequences of each batch.

    Raises:
      InputError: an epoch has not enough examples, or not enough different texts, for a batch.
    """

    def __init__(
        self,
        distinct: bool,
        examples: Examples,
        seed: int,
        batch_size: int,
        shape: PackedShape,
        steps: int,
        pad_to_multiple_of: int,
    ) -> None:
        assert examples.group_sizes is not None
        self._texts = dataclasses.replace(examples, group_sizes=None)
        self._sizes, self._num_texts = examples.sizes, int(examples.group_sizes[0])
        self._seed, self._batch_size, self._shape = seed, batch_size, shape
        self._text_ids = find_text_ids(examples).reshape(len(examples), -1) if distinct else None
        self._plan: tuple[int, np.ndarray] = (-1, np.zeros((0, batch_size), np.int64))
        if batch_size > len(examples):
            raise InputError(
                f"batch_size={batch_size}: more than the {len(examples)} training examples. Use at "
                "most as many."
            )
        # Of each epoch the first step; epochs may have different numbers of steps.
        self._first_steps = [0]
        most = 0
        while self._first_steps[-1] < steps:
            plan = self._epoch(len(self._first_steps) - 1)
            if len(self._first_steps) == 1:
                self._warn_of_unread(plan)
            for rows in plan[: steps - self._first_steps[-1]]:
                most = max(most, self._layout(rows).num_sequences)
            self._first_steps.append(self._first_steps[-1] + len(plan))
        self.num_sequences = -(-most // pad_to_multiple_of) * pad_to_multiple_of

    def _warn_of_unread(self, plan: np.ndarray) -> None:
        """Warn if texts that repeat keep many examples out of the batches of an epoch."""
        unread, num_examples = len(self._sizes) - plan.size, len(self._sizes)
        if unread >= self._batch_size and unread > _MAX_UNREAD * num_examples:
            _log.warning(
                "batch_size=%d: an epoch leaves out %d of %d examples, as their texts repeat and "
                "no text may be in a batch twice. A smaller batch leaves out fewer.",
                self._batch_size,
                unread,
                num_examples,
            )

    def rows(self, step: int) -> np.ndarray:
        """Return the examples of a step, int64 [batch_size]."""
        while self._first_steps[-1] <= step:
            plan = self._epoch(len(self._first_steps) - 1)
            self._first_steps.append(self._first_steps[-1] + len(plan))
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        rows: np.ndarray = self._epoch(epoch)[step - self._first_steps[epoch]]
        return rows

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Return the whole batch of a step; see `empty_batch`."""
        rows = self.rows(step)
        layout = self._layout(rows)
        batch = build_batch(self._texts, layout, self.num_sequences, self._shape)
        order = np.argsort(rows)
        examples, columns = np.divmod(layout.indices, self._num_texts)
        numbers = order[np.searchsorted(rows, examples, sorter=order)]
        batch[SLOTS][layout.sequence, layout.slot] = numbers * self._num_texts + columns
        return batch

    def _layout(self, rows: np.ndarray) -> PackedLayout:
        texts = rows[:, None] * self._num_texts + np.arange(self._num_texts)
        return pack_examples(self._texts, texts.reshape(-1), self._shape)

    def _epoch(self, epoch: int) -> np.ndarray:
        """Return the examples of each step of an epoch, int64 [steps, batch_size]."""
        if self._plan[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            steps = -(-len(self._sizes) // self._batch_size)
            order = shuffle_by_length(self._sizes, steps, random)
            if self._text_ids is None:
                steps = len(order) // self._batch_size
                plan = order[: steps * self._batch_size].reshape(steps, -1)
            else:
                plan = plan_distinct_batches(self._text_ids, order, self._batch_size)
            self._plan = epoch, plan
        return self._plan[1]


def plan_distinct_batches(text_ids: np.ndarray, order: np.ndarray, batch_size: int) -> np.ndarray:
    """Return batches of examples without a common text, int64 [steps, batch_size].

    Examples are taken in their order. One that has a text of the batch waits for the next batch.

    Args:
      text_ids: int64 [E, C], numbers of the texts of each example.
      order: int64 [E], the order of the examples.
      batch_size: examples of a batch.

    Raises:
      InputError: no batch is full.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    present = set[int]()  # texts of the batch
    # By a text that is in their way, so that a batch does not look at all that wait.
    waiting = collections.defaultdict[int, collections.deque[int]](collections.deque)
    texts_of = [frozenset(row) for row in text_ids.tolist()]

    def add(example: int) -> None:
        texts = texts_of[example]
        if obstacle := next((text for text in texts if text in present), None):
            waiting[obstacle].append(example)
        else:
            batch.append(example)
            present.update(texts)

    fullest, remaining = 0, iter(order.tolist())
    while True:
        for text in [*waiting]:
            while len(batch) < batch_size and text not in present and waiting[text]:
                add(waiting[text].popleft())
            if not waiting[text]:
                del waiting[text]
        while len(batch) < batch_size and (example := next(remaining, None)) is not None:
            add(example)
        fullest = max(fullest, len(batch))
        if len(batch) < batch_size:
            break
        batches.append(batch)
        batch, present = [], set()
    if not batches:
        raise InputError(
            f"batch_size={batch_size}: only {fullest} of the {len(order)} training examples have "
            f"no text in common, and no text may be in a batch twice. Use at most {fullest}."
        )
    return np.array(batches, np.int64)


def find_text_ids(examples: Examples) -> np.ndarray:
    """Return a number for each text, int64 [E]; texts of the same tokens have the same, from 1."""
    numbers = dict[bytes, int]()
    rows = np.split(examples.ids, examples.starts[1:])
    return np.array([numbers.setdefault(row.tobytes(), len(numbers) + 1) for row in rows], np.int64)
