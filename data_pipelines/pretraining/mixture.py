"""Several corpora in one run: which row of a stream is from which corpus.

The shares are exact: of each `BLOCK` rows of a stream as many are from a corpus as its share says,
rounded to whole rows and at least one, in an order drawn anew for each block.
"""

from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.pretraining import streams

BLOCK = 1 << 12  # rows


def mixture_proportions(
    sizes: Sequence[int], sampling_alpha: float, weights: str = ""
) -> np.ndarray:
    """The share of each corpus, float64 [C], summing to 1.

    Args:
      sizes: rows of one pass over each corpus [C].
      smoothing: exponent of a corpus's part in them: 1 passes over all text equally often, 0 makes
        all corpora equal; BERT's multilingual models took 0.7.
      weights: C numbers with "+" between them, which alone count if they are given.

    Raises:
      InputError: values that cannot be so.
    """
    if not 0 <= sampling_alpha <= 1:
        raise InputError(
            f"smoothing={sampling_alpha} is no exponent; give one from 0 (equal) to 1 (natural)."
        )
    if len(sizes) > BLOCK // 4:
        raise InputError(f"{len(sizes)} corpora are too many; join them to {BLOCK // 4} or fewer.")
    parts = (np.asarray(sizes, np.float64) / sum(sizes)) ** sampling_alpha
    if weights:
        try:
            parts = np.array([float(weight) for weight in weights.split("+")])
        except ValueError:
            raise InputError(f"weights={weights} are no numbers; write them as 3+1.") from None
        if len(parts) != len(sizes):
            raise InputError(
                f"weights={weights} are {len(parts)} for {len(sizes)} corpora; give one for each."
            )
        if not (np.isfinite(parts).all() and (parts > 0).all()):
            raise InputError(f"weights={weights} are not all above 0; mend them.")
    return parts / parts.sum()


class Mixture:
    """Which corpus each row of a stream is from.

    Args:
      shares: of the corpora [C], summing to 1.
      seed: of the order.

    Attributes:
      rows: of each corpus in a block, int64 [C], at least 1.
    """

    def __init__(self, mixture_proportions: np.ndarray, seed: int, max_streams: int) -> None:
        exact = mixture_proportions * BLOCK
        self.rows = np.maximum(1, np.floor(exact)).astype(np.int64)
        while (missing := BLOCK - self.rows.sum()) != 0:
            # Largest remainders first; what was raised to 1 is made up for by the largest.
            gaps = exact - self.rows
            at = (
                np.argmax(gaps)
                if missing > 0
                else np.argmax(np.where(self.rows > 1, -gaps, -BLOCK))
            )
            self.rows[at] += np.sign(missing)
        self._seed = seed
        self._block = streams.ThreadSafeLRUCache(self._make_block, 2 * max_streams)

    def count(self, stream: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """How many rows are from each corpus, before row `start` of a stream and in `count` on."""
        if len(self.rows) == 1:
            return np.array([start]), np.array([count])
        before = np.zeros(len(self.rows), np.int64)
        within = before.copy()
        block, row = divmod(start, BLOCK)
        before += block * self.rows + self._count_in_block(stream, block, 0, row)
        while count:
            size = min(count, BLOCK - row)
            within += self._count_in_block(stream, block, row, row + size)
            block, row, count = block + 1, 0, count - size
        return before, within

    def _count_in_block(self, stream: int, block: int, start: int, stop: int) -> np.ndarray:
        return np.bincount(self._block(stream, block)[start:stop], minlength=len(self.rows))

    def _make_block(self, stream: int, block: int) -> np.ndarray:
        order = streams.permutation(BLOCK, "mixture", self._seed, stream, block)
        return np.repeat(np.arange(len(self.rows)), self.rows)[order]
