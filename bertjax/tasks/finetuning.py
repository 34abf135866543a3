"""What the tasks have in common that learn from examples, and not from running text."""

import abc
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from bertjax.config.config import Config, MeshConfig
from bertjax.model import flops
from bertjax.steps import objective
from bertjax.tasks import task
from bertjax.tasks.task import HostBatch, bucket
from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import (
    Examples,
    Shape,
    Target,
    TrainingBatches,
    empty,
    evaluation_rows,
    fill,
    own_rows,
    split,
)
from data_pipelines.vocabulary.tokenization import Tokenizer

_EVAL_ROWS = 4  # that a device has at least: fewer leave an accelerator waiting for its memory
_ANSWERED_ROWS = 16  # of a batch, at most, where inputs are answered
_SHORTEST = 64  # pieces of a row, at least


class Objective(objective.Objective):
    """The encoder with a head on examples, several of which share a row.

    Class attributes:
      GROUPED: whether several examples are one question.
    """

    UNREAD = frozenset({"eval_batches", "batch_growth"})
    GROUPED: ClassVar[bool] = False

    def __init__(self, config: Config, multiple: int = 1) -> None:
        super().__init__(config, multiple)
        # As if no two examples shared a row; data tell better.
        self.rows = self.rounded(config.batch_size, config.accumulation)

    def trainable(self, name: str) -> bool:
        return not (self.config.model.feature_layers and name.startswith("encoder/"))

    @property
    @abc.abstractmethod
    def row(self) -> Shape:
        """What one row holds at most."""

    @abc.abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """What is learned, of no examples: names, kinds and types."""

    @property
    def eval_rows(self) -> int:
        usual = max(self.config.batch_size, _EVAL_ROWS * self.multiple)
        return self.config.eval_batch_size or self.rounded(usual)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in empty(1, self.row, self.targets(), self.GROUPED).items()
        }

    def forward_flops(self, rows: int) -> float:
        model, length = self.config.model, self.config.seq_len
        return flops.forward_flops(model, rows, length, read=self.read_slots)


def check_labels(config: Config) -> None:
    """Raises InputError where neither data nor the configuration say how many labels there are."""
    if not config.model.num_labels:
        raise InputError(
            "model.num_labels=0 says not how many classes there are, and no data do: set "
            "--config.model.num_labels."
        )


class Task(task.Task):
    """A task whose training data are `Examples`, which a subclass has as `examples`."""

    objective: Objective

    def __init__(
        self, config: Config, hosts: int, host: int, objective: Callable[..., Objective]
    ) -> None:
        # Rows are shared by devices, and where a run is only looked at, by hosts that it will have.
        alone = config.mesh == MeshConfig(1, 1, 1)
        self.objective = objective(config, hosts if alone else math.lcm(jax.device_count(), hosts))
        self.config, self.hosts, self.host = config, hosts, host

    @property
    @abc.abstractmethod
    def examples(self) -> Examples:
        """The training data, which no evaluation reads."""

    def reseeded(self, config: Config) -> "Task":
        self.examples  # noqa: B018 (made once, for all)
        other = copy.copy(self)
        other.config, other.objective = config, copy.copy(self.objective)
        return other

    def prepare(self, steps: int | None) -> None:
        config = self.config
        if steps is None:
            raise InputError(
                f"steps={config.steps!r} is a time and task={config.task} learns from examples, "
                "which it must count: give steps or epochs."
            )
        self._batches = TrainingBatches(
            self.examples,
            config.order_seed,
            config.batch_size,
            self.objective.row,
            steps,
            multiple=self.objective.multiple * config.accumulation,
        )
        self.objective.rows = self._batches.rows

    @property
    def examples_per_epoch(self) -> int:
        return len(self.examples)

    @property
    def told(self) -> str:
        data, pieces = self.config.data, int(self.examples.sizes.sum())
        name = data["dir"] or data["train"]
        return f"{name} ({len(self.examples):,} examples, {pieces:,} pieces)"

    @property
    def data_fingerprint(self) -> str:
        return self.examples.digest()

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        for step in itertools.count(start) if stop is None else range(start, stop):
            yield own_rows(self._batches.batch(step), self.hosts, self.host)


class Laid:
    """Examples laid in batches, each once, and their outputs taken apart again.

    Args:
      row: what one row holds at most.
      rows: of each batch, over all hosts; 0 for as many as there are, up to some, and no longer
        than they need be.
      hosts, host: how many share them, and which of them this is.
    """

    def __init__(
        self, examples: Examples, row: Shape, rows: int = 0, hosts: int = 1, host: int = 0
    ) -> None:
        if not rows:  # nothing is compiled for them yet
            longest = max(_SHORTEST, bucket(int(examples.sizes.max(initial=1))))
            row = row._replace(pieces=min(row.pieces, longest))
        self._examples, self._row, self._rows = examples, row, rows
        self._hosts, self._host = hosts, host
        self._placed = evaluation_rows(examples, row, rows or _ANSWERED_ROWS)

    def batches(self) -> Iterator[HostBatch]:
        """This host's rows of each batch."""
        for placed in self._placed:
            batch = fill(self._examples, placed, self._rows or placed.count, self._row)
            yield own_rows(batch, self._hosts, self._host)

    def split(
        self, outputs: Sequence[np.ndarray], of: Literal["example", "pieces"]
    ) -> list[np.ndarray]:
        """The part of each example of the outputs of all batches; see `rows.split`."""
        return split(self._examples, self._placed, outputs, of)


def show_examples(batch: HostBatch, row: int, tokenizer: Tokenizer, said: Sequence[Any]) -> str:
    """The examples of a row, one a line, what is to be said of each before it."""
    lines = []
    for slot, label in enumerate(said):
        own = batch["token_ids"][row][batch["pack_ids"][row] == slot + 1]
        if len(own):
            lines.append(f"{label}: {tokenizer.decode(own.tolist())}")
    return "\n".join(lines)
