"""Checks of batch sizes against a mesh, and microbatches of a batch that ramps up."""

from collections.abc import Sequence

from jax.sharding import Mesh

from bertjax.config.config import Config
from bertjax.mesh.device_mesh import num_batch_shards
from bertjax.steps.objective import Objective
from data_pipelines.errors import InputError


def check_batch_sizes(config: Config, objective: Objective, mesh: Mesh, *, train: bool) -> None:
    """Reject batches that the devices of a mesh cannot share, before anything compiles.

    Args:
      config: the configuration of the run; a resolved one, if `train`.
      objective: the objective of the run.
      mesh: the devices.
      train: whether training batches are checked as well as eval batches.

    Raises:
      InputError: a batch size is not a multiple of the number of its parts.
    """
    shards = num_batch_shards(mesh)
    sizes: Sequence[int] = ()
    if train:
        has_rampup = config.batch_size_rampup > 1
        sizes = config.rampup.batch_sizes if has_rampup else [objective.batch_size]
    for batch_size in sizes:
        accumulation = accumulation_steps(config, objective, mesh, batch_size)
        if batch_size % (shards * accumulation):
            raise InputError(
                f"batch_size={batch_size}: does not divide over {shards} devices x "
                f"gradient_accumulation_steps={accumulation}. Use a multiple of "
                f"{shards * accumulation}."
            )
    if objective.eval_batch_size % shards:
        raise InputError(
            f"eval_batch_size={objective.eval_batch_size}: does not divide over {shards} devices. "
            f"Use a multiple of {shards}."
        )


def accumulation_steps(config: Config, objective: Objective, mesh: Mesh, batch_size: int) -> int:
    """Return the number of microbatches of a batch whose gradients the train step adds up.

    Microbatches of a smaller batch of a ramp-up are no larger than those of the full batch.
    """
    steps, full_size = config.gradient_accumulation_steps, objective.batch_size
    if objective.caches_gradients:
        return 1
    if batch_size == full_size:
        return steps
    fewest = -(-steps * batch_size // full_size)
    per_shard = batch_size // num_batch_shards(mesh)
    candidates = range(fewest, per_shard + 1)
    return next((count for count in candidates if per_shard % count == 0), fewest)
