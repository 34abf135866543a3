"""From a checkpoint to scores."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh, NamedSharding

from bertjax import tasks
from bertjax.checkpoint import check_params, find_checkpoint, load_params
from bertjax.config import Config
from bertjax.feed import Feed
from bertjax.sharding import ROWS, check_mesh, make_mesh, sharded_shapes
from bertjax.step import Sums, make_eval_step, means, total_loss
from bertjax.tasks import Task
from data_pipelines.tokenization import load_tokenizer

Scores = dict[str, float]


def evaluate(config: Config, checkpoint: epath.PathLike) -> Scores:
    """Scores of a checkpoint, or of a workdir's newest one, on the task's held-out data.

    Raises:
      ValueError: the checkpoint's parameters or vocabulary are not those of the configuration,
        or there is no held-out data.
    """
    path = find_checkpoint(checkpoint)
    task = tasks.find(config.task)(config, jax.process_count(), jax.process_index())
    task.check_tokenizer(load_tokenizer(path), path)
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model)
    shapes = jax.eval_shape(task.init_params, jax.random.key(0))
    check_mesh(mesh, config.batch_size, 1, shapes)
    check_params(path, shapes)
    params = load_params(path, sharded_shapes(mesh, shapes))
    scores = make_evaluator(task, mesh)(params)
    if not scores:
        raise ValueError(f"{config.data['dir']} has no held-out data: prepare it with --held-out.")
    return scores


def make_evaluator(task: Task, mesh: Mesh) -> Callable[[Any], Scores]:
    """A function from parameters to scores on all held-out data; empty where there is none."""
    eval_step = jax.jit(make_eval_step(task.loss))

    def evaluator(params: Any) -> Scores:
        total: Sums | None = None
        for batch in Feed(task.eval_batches(), NamedSharding(mesh, ROWS)):
            with jax.set_mesh(mesh):
                found = eval_step(params, batch)
            sums = jax.tree.map(np.float64, jax.device_get(found))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
        if total is None:
            return {}
        return task.scores({"loss": float(total_loss(total))} | means(total))

    return evaluator
