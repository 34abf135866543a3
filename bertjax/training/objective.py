"""What is compiled: a model and its loss."""

from typing import Any, Protocol

from bertjax.training.config import Config
from bertjax.training.step import Batch, Sums


class Objective(Protocol):
    """What is compiled: a model and its loss, from the configuration alone, without data."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        """Raises InputError in one sentence where the configuration makes no model.

        Args:
          multiple: of rows, which devices share; a task that chooses its rows gives some of it.
        """

    def init_params(self, key: Any) -> Any:
        """Random parameters from a JAX key."""

    def loss(self, params: Any, batch: Batch, key: Any) -> Sums:
        """Sums over the batch; see `bertjax.training.step.LossFunction`."""

    def batch_shapes(self) -> dict[str, Any]:
        """Name -> `jax.ShapeDtypeStruct` of the arrays of a global batch."""

    def flops_per_step(self) -> float:
        """Model operations of one step over the global batch."""


def rows_of(objective: Objective) -> int:
    """Rows of a global batch, over all hosts and devices."""
    return int(next(iter(objective.batch_shapes().values())).shape[0])
