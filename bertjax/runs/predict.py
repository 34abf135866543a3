"""A checkpoint that is opened once and then answers as many inputs as there are."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import row_parts
from bertjax.runs.description import read_calibration, read_labels
from bertjax.tasks import registry
from bertjax.tasks.contract import HostBatch, bucket
from bertjax.training.checkpoint import check_params, find_checkpoint, load_params
from bertjax.training.config import MeshConfig, read_config
from bertjax.training.programs import Programs, fetched
from data_pipelines.vocabulary.tokenization import load_tokenizer


class Predictor:
    """A checkpoint on all devices of this process, ready to answer.

    Args:
      checkpoint: a checkpoint, or a workdir; see `bertjax.training.checkpoint.find_checkpoint`.

    Attributes:
      path: of the checkpoint.
      config: of the run that made it.
      tokenizer, labels, calibration: kept with it; see `bertjax.tasks.contract`.

    Raises:
      InputError: there is none, or it has not the head of its task.
    """

    def __init__(self, checkpoint: epath.PathLike) -> None:
        self.path = find_checkpoint(checkpoint)
        config = read_config(self.path / "config.json", registry.data_fields())
        self.config = config
        # The mesh of the run need not suit the devices that are here.
        config = dataclasses.replace(config, mesh=MeshConfig())
        self.tokenizer = load_tokenizer(self.path)
        self.labels, self.calibration = read_labels(self.path), read_calibration(self.path)
        objective = registry.objective(config, jax.device_count())
        self._programs = Programs(config, objective)
        check_params(self.path, self._programs.params)
        self._params = load_params(self.path, self._programs.params)
        self._constants = self._programs.constants()
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def answers(self, lines: Iterable[str], together: int) -> Iterator[dict[str, Any]]:
        """An answer to each line of input; see `bertjax.tasks.contract.Task.predict`."""
        return registry.find(self.config.task).predict(self, lines, together)

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]:
        """What the objective's `apply` gives for each batch; one is computed ahead of its use.

        Batches may have any rows and lengths; a program is compiled for each shape, of which there
        are few if rows are filled up to a power of two, as they are here.
        """
        counts: list[int] = []

        def compute() -> Iterator[dict[str, jax.Array]]:
            for batch in batches:
                counts.append(len(next(iter(batch.values()))))
                yield self._outputs(batch, counts[-1])

        for outputs in fetched(compute()):
            rows = counts.pop(0)
            yield {name: array[:rows] for name, array in outputs.items()}

    def _outputs(self, batch: HostBatch, count: int) -> dict[str, jax.Array]:
        parts = row_parts(self._programs.mesh)
        rows = math.ceil(bucket(count) / parts) * parts
        filled = {
            name: np.pad(array, [(0, rows - count)] + [(0, 0)] * (array.ndim - 1))
            for name, array in batch.items()
        }
        key = tuple((name, array.shape) for name, array in sorted(filled.items()))
        if key not in self._compiled:
            shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in filled.items()}
            self._compiled[key] = self._programs.predict(shapes)
        outputs: dict[str, jax.Array] = self._compiled[key](
            self._params, to_global(filled, self._programs.rows), self._constants
        )
        return outputs
