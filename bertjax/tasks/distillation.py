"""The objective of a train step with a teacher or with its stored logits, and checks of these."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.config.config import Config
from bertjax.formats.example_digests import num_slots
from bertjax.formats.stored_logits import StoredClasses, StoredLogits, teacher_key
from bertjax.mesh.feed import Batch
from bertjax.model.bert import init_params
from bertjax.model.bert_config import BertConfig
from bertjax.model.distillation_losses import merge_omitted
from bertjax.model.heads import HEADS
from bertjax.model.losses import Sums
from bertjax.steps.distillation import DistillationObjective, StudentObjective
from bertjax.steps.objective import Objective
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer


def make_logits_objective(
    config: Config,
    objective: Objective,
    parts: Iterable[str] | None = None,
    load_teacher: Callable[[], Any] | None = None,
) -> Objective:
    """Return the objective of the train step: one with the teacher or its logits, if configured.

    Args:
      config: the configuration.
      objective: the objective of the task.
      parts: modules that the teacher has; None for those that it needs.
      load_teacher: returns the teacher's parameters; None if shapes alone are needed, as by
        preflight.

    Raises:
      InputError: there is no such teacher or file, or the losses do not fit it.
    """
    if config.distill.logits:
        return StoredLogitsObjective(objective, config, _open_logits(config, objective.heads).heads)
    if not config.distill.teacher:
        return objective
    teacher = find_teacher_config(config)
    heads = objective.heads if config.distill.reads_logits else ()
    if parts is not None:  # a teacher may have the one or the other head of pre-training
        heads = tuple(head for head in heads if head in {*parts}) or heads

    def init() -> Any:
        return init_params(teacher, heads, jax.random.key(0))

    return DistillationObjective(objective, config, teacher, heads, load_teacher or init)


def find_teacher_config(config: Config) -> BertConfig:
    """Return the configuration of the teacher, as the train step computes it."""
    from bertjax.formats.loading import find_bert_config  # imports Orbax, which takes a second

    return dataclasses.replace(
        find_bert_config(config.distill.teacher),
        dtype=config.distill.teacher_dtype,
        scan_layers=config.model.scan_layers,
        remat=False,
        num_labels=config.model.num_labels,
    )


def open_logits(
    config: Config, objective: Objective, tokenizer: Tokenizer, labels: Sequence[str]
) -> StoredLogits:
    """Return the stored logits of `distill.logits`.

    Args:
      config: the configuration.
      objective: the objective of the task.
      tokenizer: tokenizer of the data.
      labels: label names of the data.

    Raises:
      InputError: there is no such file, or its teacher has another head, vocabulary or labels.
    """
    stored = _open_logits(config, objective.heads)
    if stored.vocabulary != tokenizer.fingerprint():
        raise InputError(
            f"distill.logits={stored.path}: its teacher {stored.teacher} has another vocabulary "
            "than the data. Use the teacher's."
        )
    if labels and stored.labels != tuple(labels):
        raise InputError(
            f"distill.logits={stored.path}: its teacher {stored.teacher} has the labels "
            f"{', '.join(stored.labels) or 'none'}, the data {', '.join(labels)}. Train the "
            "teacher on the same labels."
        )
    return stored


def _open_logits(config: Config, heads: Iterable[str]) -> StoredLogits:
    stored = StoredLogits(config.distill.logits)
    if not stored.heads.keys() <= {*heads}:
        raise InputError(
            f"distill.logits={stored.path}: has logits of {', '.join(stored.heads)}, and "
            f"task={config.task} learns {', '.join(heads)}. Use the logits of such a teacher."
        )
    return stored


class StoredLogitsObjective(StudentObjective):
    """The objective of a task whose batches have the logits of a teacher.

    Args:
      objective: the objective of the task.
      config: the configuration, with `distill.logits`.
      stored: classes of the heads whose logits the batches have.

    Raises:
      InputError: a loss needs all logits of a head, of which the largest are stored, or the inputs
        of training do not repeat.
    """

    def __init__(
        self, objective: Objective, config: Config, stored: Mapping[str, StoredClasses]
    ) -> None:
        super().__init__(objective, config, stored)
        objective.check_inputs_repeat()
        self._stored, shapes = stored, objective.batch_shapes(1)
        for head, classes in stored.items():
            if classes.top_k and not HEADS[head].has_softmax(shapes):
                raise InputError(
                    f"distill.logits={config.distill.logits}: has the {classes.top_k} largest "
                    f"logits of the {head} head, and this task's loss needs all. Write them "
                    "without --top-k."
                )

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of the task's arrays and of the stored logits, by their names."""
        shapes = dict(self.objective.batch_shapes(batch_size))
        for name, classes in self._stored.items():
            slots = batch_size, num_slots(HEADS[name], shapes)
            shape = jax.ShapeDtypeStruct((*slots, classes.width), jnp.float32)
            shapes[teacher_key(name, "logits")] = shape
            if classes.top_k:
                ids = jax.ShapeDtypeStruct((*slots, classes.top_k), jnp.int32)
                shapes[teacher_key(name, "ids")] = ids
        return shapes

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the task's sums with weighted losses, and the losses against stored logits.

        Raises:
          InputError: the student has another number of classes.
        """
        outputs = self.objective.apply(params, batch, key, constants)
        logits = {}
        for name, classes in self._stored.items():
            student, teacher = outputs[f"{name}_logits"], batch[teacher_key(name, "logits")]
            if student.shape[-1] != classes.num_classes:
                raise InputError(
                    f"distill.logits={self.config.distill.logits}: the {name} head of its teacher "
                    f"has {classes.num_classes} outputs, the student's {student.shape[-1]}. Use a "
                    "teacher of the same vocabulary and labels."
                )
            if classes.top_k:
                student = merge_omitted(student, batch[teacher_key(name, "ids")])
            logits[name] = student, teacher
        return self.weighted_sums(outputs, batch, logits, progress)
