"""Tokenized examples and their targets, as every fine-tuning task produces them."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class Target:
    """Target values of E examples that have P tokens in all.

    With E = P = 0 it declares only the shapes and dtypes of batches.

    Attributes:
      level: what has a value: the whole "example", each "token", or "position": the values are
        token positions within the example.
      values: for "example" class ids int32 [E], numbers float32 [E] or label sets float32 [E, C];
        for "token" class ids int32 [P]; for "position" int32 [E, n], such as the first and the
        last token of a span.
      weights: float32 [E], or [P] for "token"; 0 where no value is known. None means 1 everywhere.
    """

    level: Literal["example", "token", "position"]
    values: np.ndarray
    weights: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Examples:
    """E tokenized examples with P tokens in all.

    Attributes:
      ids: int32 [P], the token ids of all examples, one example after the other.
      lengths: int64 [E], tokens of each example.
      prefix_lengths: int64 [E], tokens of type 0, which come first; the others have type 1.
      targets: targets by name; empty for data without labels.
      group_sizes: int64 [G], sizes of groups of consecutive examples. A group shares one sequence,
        such as the choices of a question. None for examples without groups.
    """

    ids: np.ndarray
    lengths: np.ndarray
    prefix_lengths: np.ndarray
    targets: Mapping[str, Target]
    group_sizes: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    @staticmethod
    def from_rows(
        rows: Sequence[Sequence[int]],
        prefix_lengths: Sequence[int],
        targets: Mapping[str, Target],
        group_sizes: np.ndarray | None = None,
    ) -> "Examples":
        """Return the examples whose token ids are `rows`."""
        ids = np.array([token for row in rows for token in row], np.int32)
        lengths = np.array([len(row) for row in rows], np.int64)
        prefixes = np.array(prefix_lengths, np.int64)
        return Examples(ids, lengths, prefixes, targets, group_sizes=group_sizes)

    def __len__(self) -> int:
        """Return the number of groups, or of examples if there are no groups."""
        return len(self.lengths if self.group_sizes is None else self.group_sizes)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Index of each example's first token in `ids`, int64 [E]."""
        return np.cumsum(self.lengths) - self.lengths

    @functools.cached_property
    def group_starts(self) -> np.ndarray:
        """Index of each group's first example, int64 [G]."""
        assert self.group_sizes is not None
        return np.cumsum(self.group_sizes) - self.group_sizes

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Tokens of each group, int64 [G], or of each example, int64 [E]."""
        if self.group_sizes is None:
            return self.lengths
        return np.add.reduceat(self.lengths, self.group_starts)

    def without_labels(self) -> "Examples":
        """Return the examples with weight 0 for every target."""
        targets = {
            name: dataclasses.replace(target, weights=np.zeros(len(target.values), np.float32))
            for name, target in self.targets.items()
        }
        return dataclasses.replace(self, targets=targets)

    def concatenate(self, other: "Examples") -> "Examples":
        """Return these examples and then others with the same targets; both or none have groups."""
        targets, group_sizes = {}, None
        if self.group_sizes is not None and other.group_sizes is not None:
            group_sizes = np.concatenate([self.group_sizes, other.group_sizes])
        for name, target in self.targets.items():
            pair = target, other.targets[name]
            weights = [
                np.ones(len(part.values), np.float32) if part.weights is None else part.weights
                for part in pair
            ]
            values = np.concatenate([part.values for part in pair])
            targets[name] = Target(target.level, values, np.concatenate(weights))
        ids, lengths, prefix_lengths = (
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("ids", "lengths", "prefix_lengths")
        )
        return Examples(ids, lengths, prefix_lengths, targets, group_sizes=group_sizes)

    def digest(self) -> str:
        """Return the SHA-256 hex digest of all arrays that training reads."""
        digest = hashlib.sha256()
        target_arrays = [(target.values, target.weights) for target in self.targets.values()]
        arrays = (self.ids, self.lengths, self.prefix_lengths, *itertools.chain(*target_arrays))
        for array in (*arrays, self.group_sizes):
            if array is not None:
                digest.update(array.tobytes())
        return digest.hexdigest()
