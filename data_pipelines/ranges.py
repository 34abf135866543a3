"""Index arithmetic on runs of consecutive integers."""

import numpy as np


def concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return `starts[i], starts[i] + 1, ...`, `lengths[i]` integers for each i, as one array.

    Args:
      starts: integers [n].
      lengths: integers [n], none negative.

    Returns:
      integers [sum of lengths].
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
