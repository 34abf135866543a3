"""Batches that grow: the first steps are small, while small batches already tell the direction."""


class Growth:
    """The rows of each step of a run.

    From a `growth`-th of `batch_size` they double until they are all of it, each size for as many
    steps as the others.

    Args:
      growth: a power of 2 that `batch_size` is a multiple of; 1 for batches of one size.
      steps: of the run; only read where batches grow.

    Attributes:
      sizes: in rows, ascending.
    """

    def __init__(self, batch_size: int, growth: int = 1, steps: int = 1) -> None:
        self.sizes = tuple((batch_size << i) // growth for i in range(growth.bit_length()))
        self._each = -(-steps // len(self.sizes))  # steps of a size

    def size(self, step: int) -> int:
        """Rows of the step that comes after `step` others."""
        return self.sizes[min(step // self._each, len(self.sizes) - 1)]

    def rows(self, step: int) -> int:
        """Rows of the first `step` steps."""
        found = 0
        for size in self.sizes[:-1]:
            found += size * min(step, self._each)
            step -= min(step, self._each)
        return found + self.sizes[-1] * step
