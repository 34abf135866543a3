"""Batch size ramp-up: smaller batches at first, doubling until the full batch size."""

import bisect


class BatchSizeRampup:
    """The batch size of each step of a run, in sequences; in fine-tuning in examples.

    The first batch size is `batch_size / rampup`. It doubles until it is `batch_size`. Every batch
    size lasts for the same number of steps, give or take one.

    Args:
      batch_size: sequences of a full batch.
      rampup: ratio of the full batch size to the first, a power of 2 that divides `batch_size`; 1
        for a constant batch size.
      steps: steps of the run; not used for a constant batch size.

    Attributes:
      batch_sizes: all batch sizes, ascending.
    """

    def __init__(self, batch_size: int, rampup: int = 1, steps: int = 1) -> None:
        self.batch_sizes = tuple((batch_size << i) // rampup for i in range(rampup.bit_length()))
        count = len(self.batch_sizes)
        # First step of each batch size.
        self._first_steps = [-(-steps * i // count) for i in range(count)]

    def batch_size_at(self, step: int) -> int:
        """Return the batch size of `step`, counted from 0."""
        return self.batch_sizes[bisect.bisect(self._first_steps, step) - 1]

    def sequences_before(self, step: int) -> int:
        """Return the number of sequences, in fine-tuning of examples, in the first `step` steps."""
        ends = [*self._first_steps[1:], step]
        return sum(
            size * max(min(step, end) - first, 0)
            for size, first, end in zip(self.batch_sizes, self._first_steps, ends, strict=True)
        )
