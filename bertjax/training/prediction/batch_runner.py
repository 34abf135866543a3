"""Compiled prediction and generation for batches of any shape."""

import functools
import itertools
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from bertjax.mesh.device_mesh import num_batch_shards, split_batch
from bertjax.mesh.feed import fetch_to_host, to_global
from bertjax.mesh.finite import check_finite
from bertjax.model.decoder.options import Decoding
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import bucket_size

_MAX_GENERATE_PROGRAMS = 256  # more than a server compiles beforehand


class BatchRunner:
    """Programs of a model that compute batches of any shape; each shape compiles one.

    Several threads may call the methods.

    Args:
      step_functions: functions to compile. Several processes call the methods with the same
        batches; each feeds its own sequences.
    """

    def __init__(self, step_functions: StepFunctions) -> None:
        self._step_functions = step_functions
        self._compiled: dict[Any, jax.stages.Compiled] = {}
        self._lock = threading.Lock()  # of the programs

    def place(self, params: Any) -> Any:
        """Return parameters in the layout that `run` takes."""
        return self._step_functions.predict_layout.place(params)

    def run(
        self, params: Any, batches: Iterable[HostBatch], decoding: Decoding | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield, for each batch, what the objective's `apply` returns, or generated targets.

        One batch is computed ahead of its use. Batches are padded to a power of two of sequences,
        so there are few shapes; on CPUs some are split before, see `split_batch`.

        Args:
          params: parameters, as `place` returns them.
          batches: arrays that `apply` reads, or `bertjax.model.decoder.generation.generate`.
          decoding: generates targets, decoded this way.

        Raises:
          CommandError: logits or scores are not finite.
        """
        all_sizes: list[list[int]] = []  # of the parts of each batch

        def compute() -> Iterator[dict[str, jax.Array]]:
            for batch in batches:
                count = len(batch["source_lengths" if decoding else "input_ids"])
                all_sizes.append([count] if decoding else split_batch(count, self._multiple))
                start = 0
                for size in all_sizes[-1]:
                    part = {name: array[start : start + size] for name, array in batch.items()}
                    yield self._outputs(params, batch if decoding else part, decoding)
                    start += size

        fetched = fetch_to_host(compute())
        for first in fetched:
            sizes = all_sizes.pop(0)
            parts = [first, *itertools.islice(fetched, len(sizes) - 1)]
            outputs = {
                name: _join([part[name][:n] for part, n in zip(parts, sizes, strict=True)])
                for name in first
            }
            for name, array in outputs.items():
                # Other outputs have unused slots of any value.
                if name.endswith("_logits") or name == "target_scores":
                    check_finite(array, name)
            yield outputs

    def compile(self, batch: HostBatch, decoding: Decoding | None = None) -> None:
        """Compile the program for a batch of this shape; see `run`."""
        self._program(self._pad_batch(batch), decoding)

    @functools.cached_property
    def _constants(self) -> Any:
        return self._step_functions.constants()

    def _outputs(
        self, params: Any, batch: HostBatch, decoding: Decoding | None
    ) -> dict[str, jax.Array]:
        padded = self._pad_batch(batch)
        local = {name: _process_part(array) for name, array in padded.items()}
        arrays = to_global(local, self._step_functions.batch_sharding)
        constants = () if decoding else (self._constants,)
        program = self._program(padded, decoding)
        outputs: dict[str, jax.Array] = program(params, arrays, *constants)
        return outputs

    @property
    def _multiple(self) -> int:
        return math.lcm(num_batch_shards(self._step_functions.mesh), jax.process_count())

    def _pad_batch(self, batch: HostBatch) -> HostBatch:
        """Pad arrays to a power of two of sequences, and a multiple of devices and processes."""
        multiple = self._multiple

        def pad(array: np.ndarray) -> np.ndarray:
            size = math.ceil(bucket_size(len(array)) / multiple) * multiple
            if size == len(array):
                return array
            return np.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))

        return {name: pad(array) for name, array in batch.items()}

    def _program(self, padded: HostBatch, decoding: Decoding | None) -> jax.stages.Compiled:
        key = decoding, *((name, array.shape) for name, array in sorted(padded.items()))
        with self._lock:  # else threads compile one program several times
            if key not in self._compiled:
                shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in padded.items()}
                functions = self._step_functions
                self._compiled[key] = (
                    functions.compile_generate_step(shapes, decoding)
                    if decoding
                    else functions.compile_predict_step(shapes)
                )
            program = self._compiled[key]
            if decoding:
                self._forget_unused(key)
        return program

    def _forget_unused(self, key: Any) -> None:
        """Delete the programs of generation that were used longest ago, above a number.

        Requests choose numbers such as that of beams, of which each value has its own program.
        """
        self._compiled[key] = self._compiled.pop(key)  # the last one
        generating = [other for other in self._compiled if other[0] is not None]
        for other in generating[:-_MAX_GENERATE_PROGRAMS]:
            del self._compiled[other]


def _join(parts: list[np.ndarray]) -> np.ndarray:
    """Return the parts of an output as one array, which is not copied if it is the only one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _process_part(array: np.ndarray) -> np.ndarray:
    """Return the rows of an array of a batch that this process feeds to its devices."""
    size = len(array) // jax.process_count()
    return array[jax.process_index() * size :][:size]
