"""Host batches become global arrays on the devices, ahead of the step that needs them."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator

import jax
import numpy as np
from jax.sharding import NamedSharding

Batch = dict[str, jax.Array]

_AHEAD = 2  # batches on the devices before they are asked for


class Feed:
    """Iterates over batches as global arrays; a thread keeps the next ones on the devices.

    Args:
      batches: this host's rows of each global batch: name -> array [rows, ...].
      sharding: how rows lie over the mesh.

    Attributes:
      waited: seconds that the consumer has waited for data so far.
    """

    def __init__(self, batches: Iterable[dict[str, np.ndarray]], sharding: NamedSharding) -> None:
        self.waited = 0.0
        self._sharding = sharding
        self._queue: queue.Queue[Batch | Exception | None] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(batches,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            began = time.perf_counter()
            batch = self._queue.get()
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def close(self) -> None:
        """Stops the thread; batches that were prepared are dropped."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _fill(self, batches: Iterable[dict[str, np.ndarray]]) -> None:
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
