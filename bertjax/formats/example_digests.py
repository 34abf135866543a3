"""The examples in a batch of packed sequences, and digests of the model's input for each.

A digest covers token ids, token types, positions, and the positions of masked tokens. It does not
depend on the other examples of a sequence, whose attention is separate.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bertjax.model.heads import HEADS, Head
from data_pipelines.finetuning.examples import Examples
from data_pipelines.ranges import concatenate_ranges

DIGEST_BYTES = 16

Arrays = Mapping[str, np.ndarray]


def num_slots(head: Head, batch: Mapping[str, Any]) -> int:
    """Return the slots of a sequence for which a head has logits, from a batch or its shapes."""
    key = "cls_positions" if head.pooled else head.positions_key or "input_ids"
    return int(batch[key].shape[1])


@dataclasses.dataclass(frozen=True)
class ExampleInputs:
    """The model's input of N examples among P tokens.

    Attributes:
      tokens: int32 [3, P], token ids, token types and positions.
      starts: int64 [N], the first token of each example.
      lengths: int64 [N].
      owners: int64 [S], the example of each prediction of heads at given positions, ascending.
      predicted: int64 [S], index of its token.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    owners: np.ndarray
    predicted: np.ndarray

    @staticmethod
    def of_examples(examples: Examples, predicts_targets: bool = False) -> "ExampleInputs":
        """Return the inputs of examples.

        Args:
          examples: the examples.
          predicts_targets: whether each token of type 1 is predicted from the one before it; else
            there are no predictions at given positions.
        """
        positions = concatenate_ranges(np.zeros_like(examples.lengths), examples.lengths)
        types = positions >= np.repeat(examples.prefix_lengths, examples.lengths)
        tokens = np.stack([examples.ids, types, positions]).astype(np.int32)
        targets = np.flatnonzero(types) if predicts_targets else np.zeros(0, np.int64)
        owners = np.repeat(np.arange(len(examples.lengths)), examples.lengths)[targets]
        return ExampleInputs(tokens, examples.starts, examples.lengths, owners, targets - 1)

    def input_ids(self, index: int) -> list[int]:
        """Return the token ids of an example."""
        ids: list[int] = self.tokens[0, self.starts[index] :][: self.lengths[index]].tolist()
        return ids

    @functools.cached_property
    def digests(self) -> np.ndarray:
        """Digest of each example's input, uint8 [N, 16]."""
        relative = (self.predicted - self.starts[self.owners]).astype(np.int32)
        bounds = np.searchsorted(self.owners, np.arange(len(self.starts) + 1))
        digests = np.zeros((len(self.starts), DIGEST_BYTES), np.uint8)
        for i, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            content = b"%d:" % length + self.tokens[:, start : start + length].tobytes()
            content += relative[bounds[i] : bounds[i + 1]].tobytes()
            digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
            digests[i] = np.frombuffer(digest, np.uint8)
        return digests


class BatchExamples:
    """The examples in a batch of packed sequences, in order.

    Args:
      batch: arrays of a batch.
      heads: heads whose slots are used.

    Attributes:
      inputs: the model's input of each example.
      slots: for each head the indices of the slots in its flattened axes [B, slots], int64 [S],
        those of an example after those of the one before.
      counts: for each head the slots of each example, int64 [N].
    """

    def __init__(self, batch: Arrays, heads: Iterable[str]) -> None:
        example_ids = batch["example_ids"]
        ids, length = example_ids.reshape(-1), example_ids.shape[1]
        is_first = np.append(True, ids[1:] != ids[:-1])
        is_first[::length] = True
        firsts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(firsts, len(ids)))
        starts, lengths = firsts[ids[firsts] > 0], lengths[ids[firsts] > 0]
        owner_of_token = np.full(len(ids), -1)
        indices = np.repeat(np.arange(len(starts)), lengths)
        owner_of_token[concatenate_ranges(starts, lengths)] = indices
        self.slots: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}
        owners, predicted = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for name in heads:
            head = HEADS[name]
            if head.pooled:
                columns = ids[starts] - 1
                self.slots[name] = starts // length * num_slots(head, batch) + columns
                self.counts[name] = np.ones_like(lengths)
            elif head.positions_key:
                positions = batch[head.positions_key]
                weights = batch[head.positions_key.removesuffix("positions") + "weights"]
                filled = np.flatnonzero(weights.reshape(-1))
                tokens = filled // positions.shape[1] * length + positions.reshape(-1)[filled]
                order = np.argsort(owner_of_token[tokens], kind="stable")
                self.slots[name] = filled[order]
                owners.append(owner_of_token[tokens[order]])
                predicted.append(tokens[order])
                self.counts[name] = np.bincount(owners[-1], minlength=len(starts))
            else:
                self.slots[name] = concatenate_ranges(starts, lengths)
                self.counts[name] = lengths
        names = ("input_ids", "token_type_ids", "position_ids")
        all_tokens = np.stack([batch[name].reshape(-1) for name in names])
        all_owners = np.concatenate(owners)
        by_owner = np.argsort(all_owners, kind="stable")
        self.inputs = ExampleInputs(
            all_tokens, starts, lengths, all_owners[by_owner], np.concatenate(predicted)[by_owner]
        )
