"""The training state before the first step, from an objective and an optimizer."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.feed import Batch
from bertjax.mesh.sharding import map_named, named_leaves
from bertjax.model.initialization import merge_pretrained
from bertjax.model.losses import Sums
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import make_optimizer
from bertjax.steps.train_step import TrainState, init_state


class StateInitializer:
    """Initial states of runs of one objective.

    Args:
      objective: the model and its loss.
      config: the optimizer.
      param_shapes: the parameters of one run as a tree of shapes.
      reinit_layers: highest layers that stay random, see `Config.reinit_layers`.

    Attributes:
      optimizer: the optimizer; parameters that the objective does not train have no moments.
    """

    def __init__(
        self, objective: Objective, config: OptimizerConfig, param_shapes: Any, reinit_layers: int
    ) -> None:
        self._objective, self._param_shapes = objective, param_shapes
        self._reinit_layers = reinit_layers
        self.optimizer = make_optimizer(config)
        if not all(objective.trainable(name) for name, _ in named_leaves(param_shapes)):
            transformations = {True: self.optimizer, False: optax.set_to_zero()}
            labels = functools.partial(map_named, lambda name, _: objective.trainable(name))
            self.optimizer = optax.partition(transformations, labels)

    def from_params(self, params: Any) -> TrainState:
        """Return the state of the given parameters at step 0."""
        return init_state(params, self._sum_shapes, self.optimizer)

    def from_seed(self, seed: Any, init_params: Any) -> TrainState:
        """Return the state of random parameters, except where `init_params` has values.

        Args:
          seed: seed of the random parameters, an integer or uint32 [].
          init_params: nested dictionary with some of the parameters.
        """
        random_params = self._objective.init_params(jax.random.key(seed))
        params = merge_pretrained(random_params, init_params, self._reinit_layers)
        return self.from_params(params)

    @functools.cached_property
    def _sum_shapes(self) -> Sums:
        """Shapes of the objective's sums over a batch."""
        objective = self._objective

        def sums(params: Any, batch: Batch, constants: Any) -> Sums:
            return objective.train_sums(params, batch, None, constants, jnp.float32(0))

        batch = objective.batch_shapes(objective.batch_size)
        constants = objective.train_constant_shapes()
        return cast(Sums, jax.eval_shape(sums, self._param_shapes, batch, constants))
