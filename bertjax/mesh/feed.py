"""Host-to-device feed: batches of a process become global arrays before a step needs them."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

Batch = dict[str, jax.Array]

_PREFETCH_BATCHES = 2  # batches on the devices that no step has taken yet
_POLL_SECONDS = 0.002  # interval of checks for idle devices while there is no batch


class Feed:
    """An iterator over batches as global arrays; a thread keeps the next ones on the devices.

    Args:
      batches: this process's sequences of each global batch: name -> array [sequences, ...].
      sharding: sharding of every array of a batch.

    Attributes:
      wait_seconds: seconds that idle devices have waited for data so far.
      in_flight: arrays that the devices are computing, set by the consumer; None at first.
    """

    def __init__(self, batches: Iterable[dict[str, np.ndarray]], sharding: NamedSharding) -> None:
        self.wait_seconds = 0.0
        self.in_flight: Any = None
        self._sharding = sharding
        self._queue: queue.Queue[Batch | Exception | None] = queue.Queue(_PREFETCH_BATCHES)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._prefetch, args=(batches,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self._next()
            if batch is None:
                return
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def _next(self) -> Batch | Exception | None:
        while not all(array.is_ready() for array in jax.tree.leaves(self.in_flight)):
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=_POLL_SECONDS)
        start = time.perf_counter()
        batch = self._queue.get()
        self.wait_seconds += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """Stop the thread and drop prefetched batches."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _prefetch(self, batches: Iterable[dict[str, np.ndarray]]) -> None:
        last: Exception | None = None
        try:
            for batch in batches:
                if self._closed.is_set():
                    return
                self._queue.put(to_global(batch, self._sharding))
        except Exception as error:
            last = error
        self._queue.put(last)


def to_global(batch: dict[str, np.ndarray], sharding: NamedSharding) -> Batch:
    """Return global arrays from the sequences of this process."""
    if jax.process_count() == 1:  # one call costs less than one for each array
        arrays: Batch = jax.device_put(batch, sharding)
        return arrays
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }


def to_devices(value: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
    """Return a global array from a value that every process has; each copies its own shards.

    `jax.device_put` would send the value from process 0 to the others to compare it.

    Args:
      value: array or number.
      target: shape, to which the value is broadcast, dtype and sharding of the result.
    """
    array = np.broadcast_to(np.asarray(value, target.dtype), target.shape)
    return jax.make_array_from_callback(target.shape, target.sharding, lambda index: array[index])


def fetch_to_host(trees: Iterable[Any]) -> Iterator[Any]:
    """Yield trees of device arrays as NumPy arrays, each after the next one was dispatched."""
    waiting: list[Any] = []
    for tree in trees:
        waiting.append(tree)
        if len(waiting) > 1:
            yield jax.device_get(waiting.pop(0))
    yield from map(jax.device_get, waiting)
