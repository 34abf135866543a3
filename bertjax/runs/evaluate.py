"""From checkpoints to scores."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.mesh.feed import Feed
from bertjax.mesh.sharding import ROWS, check_mesh, make_mesh, sharded_shapes
from bertjax.runs.start import check_model
from bertjax.formats.opening import find_model
from bertjax.tasks import registry
from bertjax.tasks.contract import Evaluation, Task
from bertjax.training.checkpoint import check_params, find_checkpoint, load_params
from bertjax.training.config import Config
from bertjax.training.step import Sums, means, total_loss
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.errors import InputError


def evaluate(config: Config, *checkpoints: epath.PathLike) -> Evaluation:
    """What checkpoints, or the newest ones of workdirs, make of the task's held-out data.

    Several are an ensemble: what they give for each example is averaged before it is scored, and
    so are their losses.

    Raises:
      InputError: a checkpoint's model or vocabulary is not that of the configuration, or there
        is no held-out data.
    """
    paths = [find_checkpoint(checkpoint) for checkpoint in checkpoints]
    task = registry.find(config.task)(config, jax.process_count(), jax.process_index())
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model)
    shapes = jax.eval_shape(task.init_params, jax.random.key(0))
    check_mesh(mesh, task.eval_rows, 1, shapes)
    for path in paths:
        task.check_tokenizer(load_tokenizer(path), path)
        check_model(path, find_model(path), config.model)
        check_params(path, shapes)
    targets = sharded_shapes(mesh, shapes)
    found = make_evaluator(task, mesh)(load_params(path, targets) for path in paths)
    if found is None:
        raise InputError(f"{config.data['dir']} has no held-out data: prepare it with --held-out.")
    return found


def make_evaluator(task: Task, mesh: Mesh) -> Callable[[Iterable[Any]], Evaluation | None]:
    """A function from the parameters of each member of an ensemble, which may be of one, to what
    all held-out data give; None where there are none.
    """
    whole = NamedSharding(mesh, PartitionSpec())  # each host has the outputs of all rows
    eval_step = jax.jit(
        lambda params, batch: (task.loss(params, batch, None), task.outputs(params, batch)),
        out_shardings=whole,
    )

    def evaluator(members: Iterable[Any]) -> Evaluation | None:
        total: Sums | None = None
        summed: list[Any] = []
        count = 0
        for params in members:
            outputs = []
            for batch in Feed(task.eval_batches(), NamedSharding(mesh, ROWS)):
                with jax.set_mesh(mesh):
                    found = jax.device_get(eval_step(params, batch))
                sums = jax.tree.map(np.float64, found[0])
                total = sums if total is None else jax.tree.map(np.add, total, sums)
                outputs.append(found[1])
            summed = jax.tree.map(np.add, summed, outputs) if count else outputs
            count += 1
        if total is None:
            return None
        averages = {name: mean for name, mean in means(total).items() if name != "fill"}
        mean_outputs = jax.tree.map(lambda array: array / count, summed)
        return task.evaluation({"loss": float(total_loss(total))} | averages, mean_outputs)

    return evaluator
