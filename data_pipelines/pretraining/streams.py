"""Which row comes when: the position in the data is a step number and nothing else.

A stream is an endless sequence of rows over its own shards. All its epochs have the same number of
rows: each shard gives a fixed number of them, and so does each chunk of a shard's shuffled
documents, settled by counting tokens before anything is drawn. Any row of any epoch is therefore
found by division and by searching cumulative sums, and only its chunk has to be made.

Randomness is stateless too: a generator is a function of what it is for.
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
    """A generator that depends on `key` alone.

    Of its methods only `random` is used in this package: those doubles are the part of NumPy's
    random numbers that stays the same from release to release.

    Args:
      skip: numbers to leave out at the start, a multiple of 4 (Philox makes 4 at a time).
    """
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    philox = np.random.Philox(key=int.from_bytes(digest, "little"), counter=skip // 4)
    return np.random.Generator(philox)


def permutation(count: int, *key: int | str) -> np.ndarray:
    """0 .. count - 1 in an order that depends on `key` alone, int64 [count]."""
    return np.argsort(generator(*key).random(count), kind="stable")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Items that have some rows each, in a row: item i has rows ends[i-1] .. ends[i] - 1."""

    items: list[Any]
    ends: list[int]  # never falling

    def find(self, row: int) -> tuple[int, int, int]:
        """The item that holds `row`, the first of that item's rows, and the end of them."""
        at = bisect_right(self.ends, row)
        return at, self.ends[at - 1] if at else 0, self.ends[at]


class ThreadSafeLRUCache(Generic[Result]):
    """Calls a slow pure function once for the same arguments, also when threads ask together.

    The `size` results asked for latest are kept.
    """

    def __init__(self, function: Callable[..., Result], size: int) -> None:
        self._function = function
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Future[Result]] = OrderedDict()

    def __call__(self, *arguments: Hashable) -> Result:
        with self._lock:
            known = self._results.get(arguments)
            result = self._results[arguments] = known or Future()
            self._results.move_to_end(arguments)
            if len(self._results) > self._size:
                self._results.popitem(last=False)
        if known is None:
            try:
                result.set_result(self._function(*arguments))
            except BaseException as error:
                result.set_exception(error)
                with self._lock:
                    self._results.pop(arguments, None)
        return result.result()
