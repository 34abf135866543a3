"""The objective of a train step with a teacher, from the configuration alone."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax

from bertjax.config.config import Config
from bertjax.formats.loading import find_bert_config
from bertjax.model.bert import init_params
from bertjax.model.bert_config import BertConfig
from bertjax.steps.distillation import DistillationObjective
from bertjax.steps.objective import Objective


def make_train_objective(
    config: Config,
    objective: Objective,
    parts: Iterable[str] | None = None,
    load_teacher: Callable[[], Any] | None = None,
) -> Objective:
    """Return the objective of the train step: with `distill.teacher`, one that has the teacher.

    Args:
      config: the configuration.
      objective: the objective of the task.
      parts: modules that the teacher has; None for those that it needs.
      load_teacher: returns the teacher's parameters; None if shapes alone are needed, as by
        preflight.

    Raises:
      InputError: there is no such teacher, or the losses do not fit it.
    """
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
    return dataclasses.replace(
        find_bert_config(config.distill.teacher),
        dtype=config.distill.teacher_dtype,
        scan_layers=config.model.scan_layers,
        remat=False,
        num_labels=config.model.num_labels,
    )
