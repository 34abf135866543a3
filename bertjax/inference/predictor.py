"""A model that is opened once and then answers as many inputs as there are."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.config.config import MeshConfig
from bertjax.formats.loading import find_tokenizer
from bertjax.mesh.feed import fetch_to_host, to_global
from bertjax.mesh.sharding import num_batch_shards
from bertjax.steps.objective import Objective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.task import HostBatch, Input, Task, next_power_of_two
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError


class Runner:
    """A model on all devices of this process, that computes batches as they come.

    Args:
      objective: which says what is computed.

    Raises:
      InputError: the model lacks what that needs.
    """

    def __init__(self, start: PretrainedModel, objective: Objective) -> None:
        # The mesh of the run need not suit the devices that are here.
        config = dataclasses.replace(objective.config, mesh=MeshConfig())
        self._step_functions = StepFunctions(config, objective)
        start.check_complete(config.model, self._step_functions.param_shapes)
        self._params = self._step_functions.predict_layout.place(
            start.load(self._step_functions.param_shapes)
        )
        self._constants = self._step_functions.constants()
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]:
        """What the objective's `apply` gives for each batch; one is computed ahead of its use.

        Batches may have any rows and lengths; a program is compiled for each shape, of which there
        are few if rows are filled up to a power of two, as they are here.
        """
        counts: list[int] = []

        def compute() -> Iterator[dict[str, jax.Array]]:
            for batch in batches:
                counts.append(_rows(batch))
                yield self._outputs(batch)

        for outputs in fetch_to_host(compute()):
            rows = counts.pop(0)
            yield {name: array[:rows] for name, array in outputs.items()}

    def compile(self, batch: HostBatch) -> None:
        """Makes ready what is needed to run a batch of these shapes."""
        self._program(self._pad_batch(batch))

    def _outputs(self, batch: HostBatch) -> dict[str, jax.Array]:
        filled = self._pad_batch(batch)
        outputs: dict[str, jax.Array] = self._program(filled)(
            self._params, to_global(filled, self._step_functions.batch_sharding), self._constants
        )
        return outputs

    def _pad_batch(self, batch: HostBatch) -> HostBatch:
        """A batch filled up to rows that are a power of two, and as many for each device."""
        count, parts = _rows(batch), num_batch_shards(self._step_functions.mesh)
        rows = math.ceil(next_power_of_two(count) / parts) * parts
        return {
            name: np.pad(array, [(0, rows - count)] + [(0, 0)] * (array.ndim - 1))
            for name, array in batch.items()
        }

    def _program(self, filled: HostBatch) -> jax.stages.Compiled:
        key = tuple((name, array.shape) for name, array in sorted(filled.items()))
        if key not in self._compiled:
            shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in filled.items()}
            self._compiled[key] = self._step_functions.compile_predict_step(shapes)
        return self._compiled[key]


def _rows(batch: HostBatch) -> int:
    return len(next(iter(batch.values())))


class Predictor(Runner):
    """A model of a task, ready to answer.

    Args:
      checkpoint: a checkpoint, a workdir, of which it is that of
        `bertjax.checkpointing.lookup.find_checkpoint`, or a model of Hugging Face or TF1; or
        one that is open already.

    Attributes:
      path: of the model.
      config: of the run that made it, or that could have.
      tokenizer, labels, calibration: kept with it; see `bertjax.tasks.task`.

    Raises:
      InputError: there is none, or it has not the head of its task.
    """

    def __init__(self, checkpoint: epath.PathLike | PretrainedModel) -> None:
        start = (
            checkpoint if isinstance(checkpoint, PretrainedModel) else PretrainedModel(checkpoint)
        )
        self.path, self.config = start.path, start.config()
        self.labels, self.calibration = start.labels, start.calibration
        self.tokenizer = start.tokenizer or find_tokenizer(self.path)
        super().__init__(start, registry.objective(self.config, jax.device_count()))

    @property
    def task(self) -> type[Task]:
        """Of which it is a model."""
        return registry.find(self.config.task)

    @property
    def description(self) -> str:
        """What it does, as in "it tags words"."""
        return self.task.describe_model(self.config)

    def answers(
        self, inputs: Iterable[Input], together: int = 1, return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """An answer to each input; see `bertjax.tasks.task.Task.predict`.

        Args:
          together: inputs that may be waited for before the first of them is answered; those of a
            list need not be.
        """
        most = self.task.together
        size = most if isinstance(inputs, Sequence) else min(together, most)
        rest = iter(inputs)
        while some := list(itertools.islice(rest, size)):
            yield from self.task.predict(self, some, return_all_scores)


def make_inputs(data: Any) -> tuple[list[Input], bool]:
    """What Python or JSON gives to be answered, and whether it is one input alone, not a list.

    Raises:
      InputError: one is no text and no dictionary.
    """
    alone = isinstance(data, str | Mapping)
    asked = [Input(f"input {i}", each) for i, each in enumerate([data] if alone else data)]
    for location, each in asked:
        if not isinstance(each, str | Mapping):
            raise InputError(f"{location} is {each!r}: give a text, or a dictionary of texts.")
    return asked, alone
