"""Shared parts of the tasks that learn from labeled examples."""

import abc
import copy
import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jax import Array

from bertjax.config.config import Config, MeshConfig
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.device_mesh import max_predict_sequences
from bertjax.mesh.feed import Batch
from bertjax.model import flops, losses
from bertjax.model.heads import HEADS
from bertjax.model.losses import Sums
from bertjax.steps.objective import MAX_EVAL_TOKENS, Objective
from bertjax.tasks.finetuning_data import load_task_tokenizer
from bertjax.tasks.pipeline import HostBatch, Outputs
from bertjax.tasks.task import EvalSet, Task, packed_sequence_length, shapes_of_batch
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import (
    PackedLayout,
    PackedShape,
    build_batch,
    empty_batch,
    pack_eval_batches,
    unpack_outputs,
)
from data_pipelines.finetuning.training_batches import StepBatches, TrainingBatches, process_batch
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_MIN_EVAL_SEQUENCES = 4  # of a device; with fewer an accelerator waits for its memory
_PREDICT_SEQUENCES = 16  # of a batch, on each CPU device


class FinetuningObjective(Objective):
    """Encoder with a head on examples, several of which are packed into a sequence.

    A subclass sets `heads`, `eval_outputs` and `targets`.

    Class attributes:
      GROUPED: whether several examples are the choices of one question.
      MIN_TOKENS_PER_EXAMPLE: limits the examples of a packed sequence to its length over this.
    """

    UNUSED_FIELDS = frozenset({"eval_batches", "batch_size_rampup"})
    GROUPED: ClassVar[bool] = False
    MIN_TOKENS_PER_EXAMPLE: ClassVar[int] = 8
    batch_unit = "examples"

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        if count := config.model.sampled_softmax:
            raise InputError(
                f"model.sampled_softmax={count}: task={config.task} does not read it. Set 0."
            )
        for name in self.heads if (counts := config.model.label_counts) else ():
            if HEADS[name].has_label_names and not config.model.num_labels_of(name):
                raise InputError(f"model.label_counts={counts!r}: lacks the head {name}. Add it.")
        self._label_smoothing = smoothing = config.data.get("label_smoothing", 0.0)
        if not 0 <= smoothing < 1:
            raise InputError(f"data.label_smoothing={smoothing}: not in [0, 1). Use 0 or 0.1.")
        if smoothing and (config.distill.teacher or config.distill.logits):
            raise InputError(
                f"data.label_smoothing={smoothing}: the teacher of section distill smooths the "
                "labels already. Set 0."
            )
        if smoothing and config.loss:
            raise InputError(
                f"data.label_smoothing={smoothing}: loss={config.loss} replaces the smoothed loss. "
                "Set 0."
            )
        # One example in each sequence; `FinetuningTask.prepare` lowers it where the data allow.
        self.batch_size = self.round_up_batch_size(
            config.batch_size, config.gradient_accumulation_steps
        )

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the sums of a training batch; see `Objective.train_sums`. Its labels are smoothed.

        Evaluations are not, so that their losses compare.
        """
        outputs = self.apply(params, batch, key, constants)
        sums = self.sums(outputs, batch)
        if self._label_smoothing:
            loss = functools.partial(losses.cross_entropy, label_smoothing=self._label_smoothing)
            sums |= self.replaced_loss(loss, outputs, batch)
        return self.weigh_losses(sums)

    @property
    def sequence_shape(self) -> PackedShape:
        """Tokens and examples that a sequence holds at most."""
        length = self.config.max_seq_length
        num_examples = max(1, length // self.MIN_TOKENS_PER_EXAMPLE) if self.config.packing else 1
        return PackedShape(length, num_examples)

    @abc.abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples, which give their names, levels and dtypes."""

    @property
    def eval_batch_size(self) -> int:
        """Sequences of an eval batch over all processes.

        By default the training batch size, or `MAX_EVAL_TOKENS` if that is less, but at least
        four sequences for each device.
        """
        smallest = _MIN_EVAL_SEQUENCES * self.batch_size_multiple
        largest = max(smallest, MAX_EVAL_TOKENS // self.config.max_seq_length)
        default = min(max(self.config.batch_size, smallest), largest)
        return self.config.eval_batch_size or self.round_up_batch_size(default)

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return name -> shape of the arrays of a batch."""
        arrays = empty_batch(1, self.sequence_shape, self.targets(), self.GROUPED)
        return shapes_of_batch(arrays, batch_size)

    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of a forward pass."""
        return flops.forward_flops(
            self.config.model,
            batch_size,
            self.config.max_seq_length,
            self.sequence_shape.predictions,
            last_block_positions=self.num_last_block_positions,
        )


def check_num_labels(config: Config) -> None:
    """Raise InputError if neither data nor configuration give the number of labels."""
    if not config.model.num_labels:
        raise InputError(
            "model.num_labels=0: there are no data to count the labels of. Set "
            "--config.model.num_labels, and model.label_counts of heads with a label set each."
        )


class FinetuningTask(Task):
    """Task that trains on packed `Examples`.

    A subclass reads data sets of a type of its own, encodes them and makes eval sets of them.
    """

    objective_class: ClassVar[type[FinetuningObjective]]
    INFERENCE_FIELDS: ClassVar[tuple[str, ...]] = ("max_seq_length",)
    objective: FinetuningObjective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config, self.num_processes, self.process_id = config, num_processes, process_id
        labels = self.find_labels()
        if labels is not None:
            by_head: Mapping[str, Sequence[str]] = labels if isinstance(labels, Mapping) else {}
            self.labels = tuple(itertools.chain(*by_head.values()) if by_head else labels)
            counts = ",".join(f"{head}={len(names)}" for head, names in by_head.items())
            found: dict[str, Any] = {"num_labels": len(self.labels) or 1, "label_counts": counts}
            for name, count in found.items():
                if (given := getattr(config.model, name)) and given != count:
                    raise InputError(
                        f"model.{name}={given}: the data have {count or 'none'}. Leave it out."
                    )
            model = dataclasses.replace(config.model, **found)
            self.config = config = dataclasses.replace(config, model=model)
        elif count := config.model.num_labels:
            raise InputError(
                f"model.num_labels={count}: task={config.task} has no named labels. Leave it out."
            )
        # Devices share the sequences of a batch. Inspection of one device plans for its processes.
        is_single = config.mesh == MeshConfig(1, 1, 1)
        multiple = num_processes if is_single else math.lcm(jax.device_count(), num_processes)
        self.objective = objective = self.objective_class(config, multiple)
        self.tokenizer = load_task_tokenizer(config)
        sets = list(self.read_sets(config, "eval"))
        warn_of_coverage_loss(self.tokenizer, {name: self.texts_of(data) for name, data in sets})
        packing = objective.eval_batch_size, num_processes, process_id
        self._eval_sets = [self.make_eval_set(name, data, *packing) for name, data in sets]

    @staticmethod
    @abc.abstractmethod
    def read_sets(config: Config, split: str) -> Iterable[tuple[str, Any]]:
        """Return name and content of each data set of a split, "train" or "eval".

        Raises:
          InputError: a file is missing or invalid.
        """

    @staticmethod
    def read_unlabeled(config: Config) -> Any:
        """Return the data set without labels of `distill.unlabeled`.

        Raises:
          InputError: the file is missing or invalid, or the task reads no such data.
        """
        raise InputError(
            f"distill.unlabeled={config.distill.unlabeled!r}: task={config.task} learns from "
            "labeled examples alone. Remove it."
        )

    @staticmethod
    def texts_of(data: Any) -> Sequence[str]:
        """Return the texts of a data set, to check that the vocabulary covers them."""
        texts: Sequence[str] = data.all_texts
        return texts

    def find_labels(self) -> Sequence[str] | Mapping[str, Sequence[str]] | None:
        """Return the labels, none for a regression; None if `model.num_labels` has no meaning.

        A task whose heads have a label set each returns head -> labels.
        """
        return None

    @property
    def label_sets(self) -> Mapping[str, tuple[str, ...]]:
        """Labels of each head, of a task whose heads have a label set each."""
        return self.config.model.split_labels(self.labels)

    @abc.abstractmethod
    def encode(self, name: str, data: Any) -> Examples:
        """Return the examples of a data set with their targets."""

    @abc.abstractmethod
    def make_eval_set(self, name: str, data: Any, *packing: Any) -> EvalSet:
        """Return an eval set; `packing` are the last arguments of `PackedEvalSet`."""

    @functools.cached_property
    def train_data(self) -> Any:
        """Training data until they are encoded."""
        ((_, data),) = self.read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> Examples:
        """Encoded training data; an evaluation does not encode them."""
        warn_of_coverage_loss(self.tokenizer, {"train": self.texts_of(self.train_data)})
        examples = self.encode("train", self.train_data)
        if path := self.config.distill.unlabeled:
            unlabeled = self.encode(path, self.read_unlabeled(self.config)).without_labels()
            _log.info("%s: %s examples without labels.", path, f"{len(unlabeled):,}")
            examples = examples.concatenate(unlabeled)
        del self.train_data
        return examples

    def eval_sets(self) -> Sequence[EvalSet]:
        """Return the eval sets."""
        return self._eval_sets

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with the heads of this task."""
        if not {*cls.objective_class.heads} <= model.params.keys():
            return None
        return {"max_seq_length": model.max_text_length}

    def with_config(self, config: Config) -> "FinetuningTask":
        """Return a copy that shares the encoded examples."""
        self.examples  # noqa: B018 (encodes the data once for all copies)
        self.open_logits()
        other = copy.copy(self)
        other.config, other.objective = config, copy.copy(self.objective)
        return other

    def prepare(self, steps: int | None) -> None:
        """Pack the training examples of all steps."""
        config = self.config
        if steps is None:
            raise InputError(
                f"steps={config.steps!r}: task={config.task} packs the examples of a known number "
                "of steps. Give steps or epochs instead of a time."
            )
        self._batches = self.make_batches(
            self.examples,
            config.data_order_seed,
            config.batch_size,
            self.objective.sequence_shape,
            steps,
            pad_to_multiple_of=self.objective.batch_size_multiple
            * config.gradient_accumulation_steps,
        )
        self.objective.batch_size = self._batches.num_sequences
        super().prepare(steps)
        if self.stored_logits:
            predicts_targets = self.objective.sequence_shape.predictions > 0
            self.stored_logits.check_examples(self.examples, self.tokenizer, predicts_targets)

    def make_batches(self, *args: Any, **kwargs: Any) -> StepBatches:
        """Return the training batches; the arguments are those of `TrainingBatches`."""
        return TrainingBatches(*args, **kwargs)

    @property
    def examples_per_epoch(self) -> int:
        """Number of training examples."""
        return len(self.examples)

    @property
    def data_summary(self) -> str:
        """Name and size of the training data."""
        data, num_tokens = self.config.data, int(self.examples.sizes.sum())
        name = data["dir"] or data["train_file"]
        return f"{name} ({len(self.examples):,} examples, {num_tokens:,} tokens)"

    @property
    def data_fingerprint(self) -> str:
        """Hex digest of the training examples."""
        return self.examples.digest()

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        """Return packed batches in the order of the seed."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        batches = (
            process_batch(self.train_batch(step), self.num_processes, self.process_id)
            for step in steps
        )
        return self.with_logits(batches)

    def train_batch(self, step: int) -> HostBatch:
        """Return the batch of a step for all processes; override it to change batches."""
        return self._batches.batch(step)


class PackedEvalSet:
    """Examples packed into batches, each once, whose outputs are unpacked again.

    Args:
      examples: the examples.
      sequence_shape: tokens and examples that a sequence holds at most.
      batch_size: sequences of a batch over all processes; 0 fits batches to the examples.
      max_batch_size: maximal number of sequences of a batch that is fitted; 0 by the devices.
      num_processes: processes that share the sequences of a batch.
      process_id: index of this process.
    """

    def __init__(
        self,
        examples: Examples,
        sequence_shape: PackedShape,
        batch_size: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
        max_batch_size: int = 0,
    ) -> None:
        if not batch_size:  # prediction compiles the shapes that it needs
            longest, total = int(examples.sizes.max(initial=1)), int(examples.lengths.sum())
            length = packed_sequence_length(longest, total, sequence_shape.tokens)
            sequence_shape = sequence_shape._replace(tokens=length)
            max_batch_size = max_batch_size or max_predict_sequences(
                length, jax.device_count(), _PREDICT_SEQUENCES
            )
        self._examples, self._shape, self._batch_size = examples, sequence_shape, batch_size
        self._num_processes, self._process_id = num_processes, process_id
        self._layout = pack_eval_batches(examples, sequence_shape, batch_size or max_batch_size)

    def batches(self) -> Iterator[HostBatch]:
        """Yield this process's sequences of each batch."""
        for layout in self._layout:
            yield process_batch(self.build_batch(layout), self._num_processes, self._process_id)

    def build_batch(self, layout: PackedLayout) -> HostBatch:
        """Return the batch of a layout for all processes; override it to change batches."""
        size = self._batch_size or layout.num_sequences
        return build_batch(self._examples, layout, size, self._shape)

    def unpack_outputs(
        self, outputs: Iterable[Outputs], name: str, level: Literal["example", "token"]
    ) -> list[np.ndarray]:
        """Return the part of each example in the named array of the outputs of all batches."""
        arrays = [batch[name] for batch in outputs]
        return unpack_outputs(self._examples, self._layout, arrays, level)


def format_examples(
    batch: HostBatch, index: int, tokenizer: Tokenizer, labels: Sequence[Any]
) -> str:
    """Return the examples of a sequence as text, one a line after its label.

    Args:
      batch: arrays of the batch.
      index: the sequence.
      tokenizer: decodes it.
      labels: label of each example.
    """
    lines = []
    for slot, label in enumerate(labels):
        ids = batch["input_ids"][index][batch["example_ids"][index] == slot + 1]
        if len(ids):
            lines.append(f"{label}: {tokenizer.decode(ids.tolist())}")
    return "\n".join(lines)
