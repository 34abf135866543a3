"""What a configuration means before it is run: its batches as text, its parameters as a table."""

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


def show_batches(
    config: Config, start: int, steps: int, num_processes: int, process_id: int, max_sequences: int
) -> Iterator[str]:
    """The rows of this host's batches as text, a string a row.

    Args:
      most: rows of each batch; where there are more, how many is said in their place.
    """
    task = _prepare_task(config, num_processes, process_id)
    for step, batch in enumerate(task.train_batches(start, start + steps), start):
        rows = len(batch["input_ids"])
        for row in range(min(rows, max_sequences)):
            yield f"--- step {step} row {process_id * rows + row}\n{task.format_sequence(batch, row)}"
        if rows > max_sequences:
            yield f"--- step {step}: {rows - max_sequences:,} rows more, which --rows shows"


def save_batches(
    config: Config,
    start: int,
    steps: int,
    num_processes: int,
    process_id: int,
    path: epath.PathLike,
) -> None:
    """Writes this host's batches as .npz, each array with a leading axis of steps."""
    task = _prepare_task(config, num_processes, process_id)
    batches = list(task.train_batches(start, start + steps))
    if not batches:
        raise InputError(f"steps={steps} saves nothing: ask for at least 1.")
    arrays: dict[str, Any] = {n: np.stack([b[n] for b in batches]) for n in batches[0]}
    content = io.BytesIO()  # np.savez seeks in what it writes, and a remote file cannot
    np.savez(content, allow_pickle=False, **arrays)
    epath.Path(path).write_bytes(content.getvalue())


def _prepare_task(config: Config, num_processes: int, process_id: int) -> Task:
    task = registry.find(config.task)(config, num_processes, process_id)
    task.prepare(config.resolve(task.examples_per_epoch).total_steps)
    return task


def parameter_table(config: Config) -> str:
    """Name, shape and size of each parameter, and their total."""
    params = jax.eval_shape(registry.objective(config).init_params, jax.random.key(0))
    rows = [(name, str(leaf.shape), math.prod(leaf.shape)) for name, leaf in named_leaves(params)]
    rows.append(("total", "", sum(size for *_, size in rows)))
    name_width, shape_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(
        f"{name:{name_width}}  {shape:{shape_width}}  {size:>13,}" for name, shape, size in rows
    )
