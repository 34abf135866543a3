"""Mixtures of corpora: the corpus of each training sequence.

Each block of `BLOCK` consecutive sequences of a stream has the same number from each corpus: its
proportion, rounded to whole sequences, at least one. Each block has its own order.
"""

from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.pretraining import streams

BLOCK = 1 << 12  # sequences


def mixture_proportions(
    sizes: Sequence[int], sampling_alpha: float, mixture_weights: str = ""
) -> np.ndarray:
    """Return the proportion of each corpus, float64 [C], with sum 1.

    Args:
      sizes: sequences of one pass over each corpus [C].
      sampling_alpha: a corpus with natural proportion p gets p^sampling_alpha, normalized. 1 is
        natural, 0 is uniform; BERT's multilingual models used 0.7.
      mixture_weights: C numbers joined by "+", the unnormalized proportions; with them, sizes and
        `sampling_alpha` have no effect.

    Raises:
      InputError: a value is out of range, or the number of weights is not C.
    """
    if not 0 <= sampling_alpha <= 1:
        raise InputError(
            f"sampling_alpha={sampling_alpha}: not in [0, 1]. Use 1 for natural proportions, 0 for "
            "uniform ones, or a value between."
        )
    if len(sizes) > BLOCK // 4:
        raise InputError(f"{len(sizes)} corpora: too many. Merge them to {BLOCK // 4} or fewer.")
    weights = (np.asarray(sizes, np.float64) / sum(sizes)) ** sampling_alpha
    if mixture_weights:
        prefix = f"mixture_weights={mixture_weights}"
        try:
            weights = np.array([float(weight) for weight in mixture_weights.split("+")])
        except ValueError:
            raise InputError(f"{prefix}: not numbers. Write them as 3+1.") from None
        if len(weights) != len(sizes):
            raise InputError(
                f"{prefix}: {len(weights)} weights for {len(sizes)} corpora. Give one per corpus."
            )
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise InputError(f"{prefix}: not all positive and finite. Give positive numbers.")
    return weights / weights.sum()


class Mixture:
    """The corpus of each sequence of a stream.

    Args:
      proportions: float64 [C], with sum 1.
      seed: seed of the order.
      max_streams: number of streams whose blocks are cached.

    Attributes:
      sequences_per_block: sequences of each corpus in a block, int64 [C], at least 1.
    """

    def __init__(self, proportions: np.ndarray, seed: int, max_streams: int) -> None:
        exact = proportions * BLOCK
        counts = np.maximum(1, np.floor(exact)).astype(np.int64)
        while (missing := BLOCK - counts.sum()) != 0:
            # Add where a count is furthest below its exact value. If counts raised to 1 made the
            # sum too large, subtract where a count above 1 is furthest above its exact value.
            gaps = exact - counts
            index = (
                np.argmax(gaps) if missing > 0 else np.argmax(np.where(counts > 1, -gaps, -BLOCK))
            )
            counts[index] += np.sign(missing)
        self.sequences_per_block = counts
        self._seed = seed
        self._block = streams.ThreadSafeLRUCache(self._make_block, 2 * max_streams)

    def count_by_corpus(self, stream: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Count sequences by corpus, before `start` and in the next `count`; both int64 [C]."""
        per_block = self.sequences_per_block
        if len(per_block) == 1:
            return np.array([start]), np.array([count])
        block, sequence = divmod(start, BLOCK)
        before = block * per_block + self._count_in_block(stream, block, 0, sequence)
        within = np.zeros_like(before)
        while count:
            size = min(count, BLOCK - sequence)
            within += self._count_in_block(stream, block, sequence, sequence + size)
            block, sequence, count = block + 1, 0, count - size
        return before, within

    def _count_in_block(self, stream: int, block: int, start: int, stop: int) -> np.ndarray:
        corpora = self._block(stream, block)[start:stop]
        return np.bincount(corpora, minlength=len(self.sequences_per_block))

    def _make_block(self, stream: int, block: int) -> np.ndarray:
        """Return the corpus of each sequence of a block, int64 [BLOCK]."""
        order = streams.permutation(BLOCK, "mixture", self._seed, stream, block)
        corpora = np.arange(len(self.sequences_per_block))
        return np.repeat(corpora, self.sequences_per_block)[order]
