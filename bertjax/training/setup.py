"""The trainer of one run, from its configuration."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from bertjax.checkpointing.lookup import has_checkpoint
from bertjax.config.config import Config
from bertjax.formats.stored_logits import StoredLogits
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.distillation import TeacherObjective
from bertjax.steps.objective import Objective
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import Sums, means
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, HostBatch, Task
from bertjax.training.evaluator import check_tokenizer, embed_eval_texts, make_evaluator
from bertjax.training.initialization import PretrainedModel, open_recorded
from bertjax.training.trackers import Tracker
from bertjax.training.trainer import Trainer
from bertjax.workdir.model_records import share_commits
from bertjax.workdir.workdir import check_processes
from data_pipelines.errors import InputError
from data_pipelines.paths import as_path


def make_trainer(
    config: Config,
    workdir: epath.PathLike,
    trackers: Sequence[Tracker] = (),
    start_time: float | None = None,
) -> Trainer:
    """Return the trainer of a run, after everything that can be checked before compilation.

    Args:
      config: configuration, not yet resolved.
      workdir: a new directory, or that of a run to resume.
      trackers: further receivers of the metrics.
      start_time: Unix time at which the command started; now by default.

    Raises:
      InputError: configuration, data, `init` and workdir do not fit each other.
    """
    workdir = as_path(workdir)
    start_time = start_time or time.time()
    # A checkpoint holds everything that came from `init`, which may be gone by now.
    source = dataclasses.replace(config, init=str(workdir)) if has_checkpoint(workdir) else config
    share_commits(source.init, config.distill.teacher)
    task = registry.find_task(config.task)(source, jax.process_count(), jax.process_index())
    check_processes(task.config, task)
    config = dataclasses.replace(task.config, init=config.init).resolve(task.examples_per_epoch)
    task.prepare(config.total_steps)
    teacher = open_teacher(config, task, epath.Path(workdir))
    step_functions = StepFunctions(config, add_teacher(config, task.objective, teacher))
    check_batch_sizes(config, task.objective, step_functions.mesh, train=True)
    run = SingleRun(config, task, step_functions)
    return Trainer(
        config,
        workdir,
        task,
        step_functions,
        run,
        teacher=teacher,
        trackers=trackers,
        start_time=start_time,
    )


def open_teacher(config: Config, task: Task, directory: epath.Path) -> PretrainedModel | None:
    """Return the teacher in the train step of a run; None without one.

    Args:
      config: the configuration.
      task: the task with its data.
      directory: the workdir, or the directory of a sweep, which may record the teacher.

    Raises:
      InputError: the teacher has another vocabulary or other labels, has changed since the run
        began, or is not that of the stored logits.
    """
    distill = config.distill
    if not distill.teacher:
        return None
    if distill.logits:
        stored = StoredLogits(distill.logits)
        if PretrainedModel(distill.teacher).digest != stored.teacher_digest:
            raise InputError(
                f"distill.teacher={distill.teacher}: the logits in {stored.path} are of another "
                f"teacher, {stored.teacher}. Remove it, or write its logits."
            )
        return None
    teacher = open_recorded("distill.teacher", distill.teacher, directory)
    if task.objective.LEARNS_EMBEDDINGS:
        embed_eval_texts(task, teacher)
        return teacher
    check_tokenizer(task, teacher.tokenizer, teacher.path)
    if distill.reads_logits and task.labels and not teacher.has_labels_of(task):
        raise InputError(
            f"distill.teacher={distill.teacher}: has the labels "
            f"{', '.join(teacher.labels) or 'none'}, the data {', '.join(task.labels)}. Train the "
            "teacher on the same labels."
        )
    return teacher


def add_teacher(config: Config, objective: Objective, teacher: PretrainedModel | None) -> Objective:
    """Return the objective of the train step, with an opened teacher or stored logits if any.

    Raises:
      InputError: the teacher lacks parameters, or the losses do not fit it.
    """
    if teacher is None:
        return registry.make_train_objective(config, objective)
    combined = registry.make_train_objective(config, objective, teacher.parts, teacher.host_params)
    assert isinstance(combined, TeacherObjective)
    teacher.check_complete(combined.teacher, combined.teacher_shapes)
    teacher.keep_parts(combined.teacher_shapes)
    return combined


class SingleRun:
    """Data, metrics and scores of a single run; see `bertjax.training.trainer.Runs`."""

    num_runs = 1
    standalone = True

    def __init__(self, config: Config, task: Task, step_functions: StepFunctions) -> None:
        self._task, self._step_functions = task, step_functions
        self._total_steps = config.total_steps
        self._schedule = learning_rate_schedule(config.optimizer_config())

    def train_batches(self, start: int) -> Iterable[HostBatch]:
        """Return this process's part of the batches from step `start` on."""
        return self._task.train_batches(start, self._total_steps)

    def fetch(self, sums: Sums) -> Sums:
        """Return the metric sums of the train step on the host."""
        fetched: Sums = jax.device_get(sums)
        return fetched

    def read_metrics(self, sums: Sums, position: float) -> dict[str, dict[str, float]]:
        """Return the means of metric sums and the learning rate at a position of the schedule."""
        learning_rate = float(self._schedule(position))
        return {"": means(self.fetch(sums)) | {"learning_rate": learning_rate}}

    def are_pruned(self, step: int) -> bool:
        """Return False: a single run has none to be compared with."""
        return False

    def compile_evaluator(self) -> Callable[[int, Any], Mapping[str, Evaluation]]:
        """Return a function from a step and its parameters to evaluations by run."""
        evaluate = make_evaluator(self._task, self._step_functions)

        def evaluator(step: int, params: Any) -> dict[str, Evaluation]:
            evaluation = evaluate([params])
            return {} if evaluation is None else {"": evaluation}

        return evaluator
