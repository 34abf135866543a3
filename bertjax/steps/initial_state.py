"""The training state before the first step, from an objective and an optimizer."""

from typing import Any, cast

import jax
import optax

from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.feed import Batch
from bertjax.mesh.sharding import named_leaves, parameter_name
from bertjax.model.initialization import merge_pretrained
from bertjax.model.losses import Sums
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import make_optimizer
from bertjax.steps.train_step import TrainState, init_state


class StateInitializer:
    """Initial states of runs of one objective.

    Args:
      objective: the model and its loss.
      optimizer_config: the optimizer.
      param_shapes: the parameters of one run as a tree of shapes.
      reinit_layers: highest layers that stay random, see `Config.reinit_layers`.

    Attributes:
      optimizer: the optimizer of the parameters that the objective trains.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer_config: OptimizerConfig,
        param_shapes: Any,
        reinit_layers: int,
    ) -> None:
        self._objective, self._param_shapes = objective, param_shapes
        self._reinit_layers = reinit_layers
        self.optimizer = _make_partial_optimizer(objective, optimizer_config, param_shapes)
        self._sums: Sums | None = None

    def from_params(self, params: Any) -> TrainState:
        """Return the state of the given parameters at step 0."""
        if self._sums is None:
            self._sums = _sum_shapes(self._objective, self._param_shapes)
        return init_state(params, self._sums, self.optimizer)

    def from_seed(self, seed: Any, init_params: Any) -> TrainState:
        """Return the state of random parameters, except where `init_params` has values.

        Args:
          seed: seed of the random parameters, an integer or uint32 [].
          init_params: nested dictionary with some of the parameters.
        """
        random_params = self._objective.init_params(jax.random.key(seed))
        params = merge_pretrained(random_params, init_params, self._reinit_layers)
        return self.from_params(params)


def _make_partial_optimizer(
    objective: Objective, config: OptimizerConfig, param_shapes: Any
) -> optax.GradientTransformation:
    """Return the optimizer; parameters that the objective does not train have no moments."""
    optimizer = make_optimizer(config)
    if all(objective.trainable(name) for name, _ in named_leaves(param_shapes)):
        return optimizer

    def labels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: objective.trainable(parameter_name(path)), params
        )

    return optax.partition({True: optimizer, False: optax.set_to_zero()}, labels)


def _sum_shapes(objective: Objective, param_shapes: Any) -> Sums:
    """Return the shapes of the objective's sums over a batch."""

    def sums(params: Any, batch: Batch, constants: Any) -> Sums:
        return objective.sums(objective.apply(params, batch, None, constants), batch)

    batch = objective.batch_shapes(objective.batch_size)
    constants = jax.eval_shape(objective.constants)
    return cast(Sums, jax.eval_shape(sums, param_shapes, batch, constants))
