"""Inspection of a configuration before it runs: its batches and its parameters."""

import io
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.mesh.sharding import named_leaves
from bertjax.tasks import registry
from bertjax.tasks.task import Task
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes


def show_batches(
    config: Config, start: int, steps: int, num_processes: int, process_id: int, max_sequences: int
) -> Iterator[str]:
    """Yield the sequences of a process's batches as text.

    Args:
      config: configuration of the run.
      start: first step.
      steps: number of steps.
      num_processes: processes that share each batch.
      process_id: the process whose sequences are shown.
      max_sequences: largest number of sequences of a batch; a line counts the others.
    """
    task = _prepare_task(config, num_processes, process_id)
    for step, batch in enumerate(task.train_batches(start, start + steps), start):
        size = len(batch["input_ids"])
        for index in range(min(size, max_sequences)):
            text = task.format_sequence(batch, index)
            yield f"--- step {step} sequence {process_id * size + index}\n{text}"
        if size > max_sequences:
            yield f"--- step {step}: {size - max_sequences:,} more, shown by --sequences"


def save_batches(
    config: Config,
    start: int,
    steps: int,
    num_processes: int,
    process_id: int,
    path: epath.PathLike,
) -> None:
    """Write a process's batches as .npz; each array has a leading axis of steps.

    Raises:
      InputError: there is no step to write.
    """
    task = _prepare_task(config, num_processes, process_id)
    batches = list(task.train_batches(start, start + steps))
    if not batches:
        raise InputError(f"--steps={steps}: below 1. Give at least 1.")
    arrays: dict[str, Any] = {n: np.stack([b[n] for b in batches]) for n in batches[0]}
    content = io.BytesIO()  # np.savez seeks, which a remote file does not support
    np.savez(content, allow_pickle=False, **arrays)
    atomic_write_bytes(path, content.getvalue())


def _prepare_task(config: Config, num_processes: int, process_id: int) -> Task:
    task = registry.find_task(config.task)(config, num_processes, process_id)
    task.prepare(config.resolve(task.examples_per_epoch).total_steps)
    return task


def parameter_table(config: Config) -> str:
    """Return a table of the name, shape and size of each parameter, and their total.

    Raises:
      InputError: neither data nor configuration give the number of labels, or the data are invalid.
    """
    objective = registry.make_objective(registry.count_labels(config))
    params = jax.eval_shape(objective.init_params, jax.random.key(0))
    rows = [(name, str(leaf.shape), math.prod(leaf.shape)) for name, leaf in named_leaves(params)]
    rows.append(("total", "", sum(size for *_, size in rows)))
    name_width, shape_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(
        f"{name:{name_width}}  {shape:{shape_width}}  {size:>13,}" for name, shape, size in rows
    )
