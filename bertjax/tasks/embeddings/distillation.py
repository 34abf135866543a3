"""Embeddings of a teacher that a student learns: from the train step, or from a file."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from bertjax.config.config import Config
from bertjax.config.init_fields import WITHOUT_INIT
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.formats.tensors import PoolingConfig
from bertjax.mesh.feed import Batch
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.losses import Sums
from bertjax.steps.distillation import TeacherObjective
from bertjax.tasks.distillation import find_teacher_config
from bertjax.tasks.embeddings.data import find_loss
from bertjax.tasks.embeddings.losses import TEACHER_LOSS
from bertjax.tasks.embeddings.objective import (
    TEACHER,
    TrainedEmbeddingsObjective,
    check_distillation,
)
from bertjax.tasks.embeddings.stored_embeddings import StoredEmbeddings
from data_pipelines.errors import InputError


def make_teacher_objective(
    config: Config, batch_size_multiple: int = 1
) -> TrainedEmbeddingsObjective:
    """Return the forward pass of the teacher of `distill.teacher` on the batches of its student.

    Args:
      config: configuration of the student.
      batch_size_multiple: see `Objective`.

    Raises:
      InputError: the teacher does not pool, or reads texts otherwise than the student.
    """
    path, pooling = config.distill.teacher, find_teacher_pooling(config)
    # A text is a source, and no head reads its vectors.
    defaults = {name: getattr(BertConfig, name) for name in ("decoder", *LAYER_MIX_FIELDS)}
    model = dataclasses.replace(find_teacher_config(config), **defaults)
    length = min(pooling.max_seq_length or config.max_seq_length, model.max_position_embeddings)
    if config.max_seq_length > length:
        raise InputError(
            f"max_seq_length={config.max_seq_length}: the teacher {path} cuts texts at {length} "
            "tokens. Use no more."
        )
    if pooling.prompt or pooling.do_lower_case:
        problem = f"begins texts with {pooling.prompt!r}" if pooling.prompt else "lower-cases texts"
        raise InputError(
            f"distill.teacher={path}: the teacher {problem}, and the student does not. Write its "
            "embeddings with `bertjax embed`, and name the file in distill.embeddings."
        )
    data = {
        **config.data,
        "pooling": pooling.pooling,
        "normalize": pooling.normalize,
        "projection_size": pooling.projection_size,
        "loss": TEACHER_LOSS,
    }
    config = dataclasses.replace(config, model=model, data=data, **WITHOUT_INIT)
    return TrainedEmbeddingsObjective(config, batch_size_multiple)


def find_teacher_pooling(config: Config) -> PoolingConfig:
    """Return the settings of the teacher of `distill.teacher`.

    Raises:
      InputError: there is no such model, or it does not pool.
    """
    path = config.distill.teacher
    pooling = find_pooling_config(path)
    if pooling is None:
        raise InputError(
            f"distill.teacher={path}: has no pooling of texts. Give a directory of "
            "sentence-transformers or a run of task=embeddings, or write embeddings with `bertjax "
            "embed --pooling mean`, and name the file in distill.embeddings."
        )
    return pooling


def config_for_teacher(config: Config) -> Config:
    """Return the configuration of a student, with a projection to the size of its teacher.

    Raises:
      InputError: there is no such teacher, or the student cannot have its embeddings.
    """
    distill = config.distill
    if loss := find_loss(config):
        check_distillation(config, loss)
    if not distill.is_on:
        return config
    if distill.embeddings:
        field, source = "distill.embeddings", distill.embeddings
        stored = StoredEmbeddings(source)
        size, are_normalized = stored.size, stored.are_normalized
    else:
        field, source = "distill.teacher", distill.teacher
        objective = make_teacher_objective(config)
        size, are_normalized = objective.embedding_size, objective.config.data["normalize"]
    if config.data["normalize"] and not are_normalized:
        raise InputError(
            f"data.normalize=True: the embeddings of {field}={source} have other lengths than 1. "
            "Set data.normalize=False."
        )
    projection_size = config.data["projection_size"]
    if projection_size not in (0, size):
        raise InputError(
            f"data.projection_size={projection_size}: the embeddings of {field}={source} have "
            f"{size} components. Leave it out; of init, give an encoder without a module Dense."
        )
    if config.model.output_size != size:
        projection_size = size
    return dataclasses.replace(config, data={**config.data, "projection_size": projection_size})


class EmbeddingsDistillation(TeacherObjective):
    """Training of embeddings with a teacher in the train step.

    Args:
      objective: the objective of the student.
      config: the configuration, with `distill.teacher`.
      load_teacher: returns the teacher's parameters; None if shapes alone are needed.

    Raises:
      InputError: the teacher has another vocabulary or another size; see `make_teacher_objective`.
    """

    def __init__(
        self,
        objective: TrainedEmbeddingsObjective,
        config: Config,
        load_teacher: Callable[[], Any] | None,
    ) -> None:
        self._teacher_objective = teacher = make_teacher_objective(config)

        def init() -> Any:
            return teacher.init_params(jax.random.key(0))

        super().__init__(objective, config, (), teacher.config.model, load_teacher or init)
        if objective.embedding_size != teacher.embedding_size:
            raise InputError(
                f"data.projection_size={config.data['projection_size']}: the teacher "
                f"{config.distill.teacher} has embeddings of {teacher.embedding_size} components, "
                f"the model of {objective.embedding_size}. Set "
                f"data.projection_size={teacher.embedding_size}."
            )

    @property
    def teacher_shapes(self) -> Any:
        """The parameters of the teacher that the train step reads, as shapes."""
        return jax.eval_shape(self._teacher_objective.init_params, jax.random.key(0))

    def step_flops(self) -> float:
        """Return the model FLOPs of a train step, with the teacher's forward pass."""
        return super().step_flops() + self._teacher_objective.forward_flops(self.batch_size)

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the loss against the embeddings of the teacher, and its metrics."""
        teacher = self._teacher_objective.apply(constants["teacher"], batch, None, {})
        embeddings = jax.lax.stop_gradient(teacher["embeddings"])
        outputs = self.apply(params, batch, key, constants["task"])
        return self.sums(outputs, {**batch, TEACHER: embeddings})
