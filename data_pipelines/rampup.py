"""Batches that grow: the first steps are small, while small batches already tell the direction."""

import bisect


class BatchSizeRampup:
    """The rows of each step of a run.

    From a `rampup`-th of `batch_size` they double until they are all of it, each size for as many
    steps as the others, or for one less.

    Args:
      growth: a power of 2 that `batch_size` is a multiple of; 1 for batches of one size.
      steps: of the run; only read where batches grow.

    Attributes:
      sizes: in rows, ascending.
    """

    def __init__(self, batch_size: int, rampup: int = 1, steps: int = 1) -> None:
        self.sizes = tuple((batch_size << i) // rampup for i in range(rampup.bit_length()))
        count = len(self.sizes)
        self._starts = [-(-steps * i // count) for i in range(count)]  # the first step of each

    def size(self, step: int) -> int:
        """Rows of the step that comes after `step` others."""
        return self.sizes[bisect.bisect(self._starts, step) - 1]

    def rows(self, step: int) -> int:
        """Rows of the first `step` steps."""
        ends = [*self._starts[1:], step]
        return sum(
            size * max(min(step, end) - start, 0)
            for size, start, end in zip(self.sizes, self._starts, ends, strict=True)
        )
