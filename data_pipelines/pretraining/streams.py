"""Stateless order of training sequences: the data position is a step number.

A stream is an endless series of sequences drawn from its shards. Every epoch of a stream has the
same number of sequences. Each shard contributes a fixed number, and so does each chunk of a shard's
shuffled documents. Token counts determine these numbers before anything is drawn. Any sequence of
any epoch is therefore located by division and by searching cumulative sums; only its chunk is
computed.

Randomness is stateless too: each generator is a function of its key.
"""

import dataclasses
import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import numpy as np

Result = TypeVar("Result")


def generator(*key: int | str, skip: int = 0) -> np.random.Generator:
    """Return a generator that depends on `key` alone.

    This package uses only its method `random`: NumPy guarantees that these doubles do not change
    from release to release.

    Args:
      *key: integers and strings.
      skip: numbers to skip at the start, a multiple of 4 (Philox makes 4 at a time).
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    philox = np.random.Philox(key=int.from_bytes(digest, "little"), counter=skip // 4)
    return np.random.Generator(philox)


def permutation(count: int, *key: int | str) -> np.ndarray:
    """Return 0 .. count - 1 in an order that depends on `key` alone, int64 [count]."""
    return np.argsort(generator(*key).random(count), kind="stable")


@dataclasses.dataclass(frozen=True)
class SequenceIndex:
    """Items that contribute consecutive sequences: item i has ends[i-1] .. ends[i] - 1."""

    items: list[Any]
    ends: list[int]  # never decreasing

    def find(self, sequence: int) -> tuple[int, int, int]:
        """Return the index of the item that contains `sequence`, its first sequence and its end."""
        index = bisect_right(self.ends, sequence)
        return index, self.ends[index - 1] if index else 0, self.ends[index]


class ThreadSafeLRUCache(Generic[Result]):
    """A cache of the latest results of a slow pure function.

    Threads that request the same arguments at the same time share one call.

    Args:
      function: takes hashable arguments.
      size: number of results kept.
    """

    def __init__(self, function: Callable[..., Result], size: int) -> None:
        self._function = function
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Future[Result]] = OrderedDict()

    def __call__(self, *arguments: Hashable) -> Result:
        """Return the result for `arguments`, cached or computed."""
        with self._lock:
            cached = self._results.get(arguments)
            result = self._results[arguments] = cached or Future()
            self._results.move_to_end(arguments)
            if len(self._results) > self._size:
                self._results.popitem(last=False)
        if cached is None:
            try:
                result.set_result(self._function(*arguments))
            except BaseException as error:
                result.set_exception(error)
                with self._lock:
                    self._results.pop(arguments, None)
        return result.result()
