"""Host batches become global arrays on the devices, ahead of the step that needs them."""

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

_PREFETCH_BATCHES = 2  # batches on the devices before they are asked for
_POLL_SECONDS = 0.002  # between looks at whether the devices are idle, where there is no batch


class Feed:
    """Iterates over batches as global arrays; a thread keeps the next ones on the devices.

    Args:
      batches: this host's rows of each global batch: name -> array [rows, ...].
      sharding: how rows lie over the mesh.

    Attributes:
      waited: seconds that the devices have waited for data so far: that the consumer has, less
        those in which they were still at work.
      working: arrays that the devices are at, for the consumer to set; none at first.
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
        began = time.perf_counter()
        batch = self._queue.get()
        self.wait_seconds += time.perf_counter() - began
        return batch

    def close(self) -> None:
        """Stops the thread; batches that were prepared are dropped."""
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
    """Global arrays from this host's rows."""
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }


def fetch_to_host(arrays: Iterable[Any]) -> Iterator[Any]:
    """Arrays of devices as NumPy's, each fetched when the one after it has been started."""
    waiting: list[Any] = []
    for each in arrays:
        waiting.append(each)
        if len(waiting) > 1:
            yield jax.device_get(waiting.pop(0))
    yield from map(jax.device_get, waiting)
