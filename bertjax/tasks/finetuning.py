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
from bertjax.tasks.task import HostBatch, next_power_of_two
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import (
    PackedShape,
    build_batch,
    empty_batch,
    pack_eval_batches,
    unpack_outputs,
)
from data_pipelines.finetuning.training_batches import TrainingBatches, process_batch
from data_pipelines.vocabulary.tokenization import Tokenizer

_MIN_EVAL_SEQUENCES = (
    4  # that a device has at least: fewer leave an accelerator waiting for its memory
)
_MAX_PREDICT_SEQUENCES = 16  # of a batch, at most, where inputs are answered
_MIN_SEQ_LENGTH = 64  # pieces of a row, at least


class Objective(objective.Objective):
    """The encoder with a head on examples, several of which share a row.

    Class attributes:
      GROUPED: whether several examples are one question.
    """

    UNUSED_FIELDS = frozenset({"eval_batches", "batch_size_rampup"})
    GROUPED: ClassVar[bool] = False

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        # As if no two examples shared a row; data tell better.
        self.batch_size = self.round_up_batch_size(
            config.batch_size, config.gradient_accumulation_steps
        )

    def trainable(self, name: str) -> bool:
        return not (self.config.model.feature_layers and name.startswith("encoder/"))

    @property
    @abc.abstractmethod
    def row(self) -> PackedShape:
        """What one row holds at most."""

    @abc.abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """What is learned, of no examples: names, kinds and types."""

    @property
    def eval_batch_size(self) -> int:
        usual = max(self.config.batch_size, _MIN_EVAL_SEQUENCES * self.batch_size_multiple)
        return self.config.eval_batch_size or self.round_up_batch_size(usual)

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), array.dtype)
            for name, array in empty_batch(1, self.row, self.targets(), self.GROUPED).items()
        }

    def forward_flops(self, batch_size: int) -> float:
        model, length = self.config.model, self.config.max_seq_length
        return flops.forward_flops(
            model, batch_size, length, last_block_positions=self.num_last_block_positions
        )


def check_num_labels(config: Config) -> None:
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
        self,
        config: Config,
        num_processes: int,
        process_id: int,
        objective: Callable[..., Objective],
    ) -> None:
        # Rows are shared by devices, and where a run is only looked at, by hosts that it will have.
        alone = config.mesh == MeshConfig(1, 1, 1)
        self.objective = objective(
            config, num_processes if alone else math.lcm(jax.device_count(), num_processes)
        )
        self.config, self.num_processes, self.process_id = config, num_processes, process_id

    @property
    @abc.abstractmethod
    def examples(self) -> Examples:
        """The training data, which no evaluation reads."""

    def with_config(self, config: Config) -> "Task":
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
            config.data_order_seed,
            config.batch_size,
            self.objective.row,
            steps,
            pad_to_multiple_of=self.objective.batch_size_multiple
            * config.gradient_accumulation_steps,
        )
        self.objective.batch_size = self._batches.num_sequences

    @property
    def examples_per_epoch(self) -> int:
        return len(self.examples)

    @property
    def told(self) -> str:
        data, tokens = self.config.data, int(self.examples.sizes.sum())
        name = data["dir"] or data["train_file"]
        return f"{name} ({len(self.examples):,} examples, {tokens:,} pieces)"

    @property
    def data_fingerprint(self) -> str:
        return self.examples.digest()

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        for step in itertools.count(start) if stop is None else range(start, stop):
            yield process_batch(self._batches.batch(step), self.num_processes, self.process_id)


class PackedEvalSet:
    """Examples laid in batches, each once, and their outputs taken apart again.

    Args:
      row: what one row holds at most.
      rows: of each batch, over all hosts; 0 for as many as there are, up to some, and no longer
        than they need be.
      hosts, host: how many share them, and which of them this is.
    """

    def __init__(
        self,
        examples: Examples,
        row: PackedShape,
        num_sequences: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
    ) -> None:
        if not num_sequences:  # nothing is compiled for them yet
            longest = max(_MIN_SEQ_LENGTH, next_power_of_two(int(examples.sizes.max(initial=1))))
            row = row._replace(tokens=min(row.tokens, longest))
        self._examples, self._row, self._rows = examples, row, num_sequences
        self._hosts, self._host = num_processes, process_id
        self._layout = pack_eval_batches(examples, row, num_sequences or _MAX_PREDICT_SEQUENCES)

    def batches(self) -> Iterator[HostBatch]:
        """This host's rows of each batch."""
        for placed in self._layout:
            batch = build_batch(
                self._examples, placed, self._rows or placed.num_sequences, self._row
            )
            yield process_batch(batch, self._hosts, self._host)

    def unpack_outputs(
        self, outputs: Sequence[np.ndarray], level: Literal["example", "token"]
    ) -> list[np.ndarray]:
        """The part of each example of the outputs of all batches; see `rows.split`."""
        return unpack_outputs(self._examples, self._layout, outputs, level)


def show_examples(batch: HostBatch, row: int, tokenizer: Tokenizer, labels: Sequence[Any]) -> str:
    """The examples of a row, one a line, what is to be said of each before it."""
    lines = []
    for slot, label in enumerate(labels):
        own = batch["input_ids"][row][batch["example_ids"][row] == slot + 1]
        if len(own):
            lines.append(f"{label}: {tokenizer.decode(own.tolist())}")
    return "\n".join(lines)
