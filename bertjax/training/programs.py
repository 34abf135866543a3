"""What is compiled: the train step of a configuration on a mesh, from shapes alone.

`train` runs it and `preflight` judges it, so that what is judged is what is run.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from bertjax.mesh.sharding import (
    ROWS,
    check_mesh,
    gather_matrices,
    make_mesh,
    sharded_shapes,
    with_shardings,
)
from bertjax.training.config import Config
from bertjax.training.objective import Objective, rows_of
from bertjax.training.optimizer import make_optimizer, make_schedule
from bertjax.training.step import Batch, Sums, TrainState, init_state, make_train_step


def _compiler_options(device: jax.Device) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {}
    if device.platform == "tpu":
        # By itself the compiler sums gradients in a ring while it computes them, a slice at a time,
        # at half the speed of the whole product, and copies their inputs into another layout.
        options["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
    if device.device_kind.startswith(("TPU v5", "TPU v6")):
        # By itself it leaves a product 16 MiB of the core's memory (all that older chips have), too
        # little for the backward pass: inputs would be read several times over.
        options["xla_tpu_scoped_vmem_limit_kib"] = "32768"
    return options


class Program:
    """The train step of a resolved configuration on a mesh of devices.

    Args:
      config: its durations are numbers of steps.
      objective: the model and its loss.
      devices: of this machine or of a topology that only the compiler knows; all by default.

    Attributes:
      mesh: where arrays lie.
      state: a `TrainState` of `jax.ShapeDtypeStruct` with shardings.
      rows: the sharding of every array of a batch.
      schedule: learning rate of an update, from the number of updates before it.

    Raises:
      InputError: the configuration does not fit the mesh.
    """

    def __init__(
        self, config: Config, objective: Objective, devices: Sequence[jax.Device] | None = None
    ) -> None:
        self._config, self._objective = config, objective
        self.mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.model, devices)
        self.schedule = make_schedule(config.optimizer_config())
        self._optimizer = make_optimizer(config.optimizer_config())
        shapes = jax.eval_shape(self._init)
        check_mesh(self.mesh, rows_of(objective), config.accumulation, shapes.params)
        self.state: TrainState = sharded_shapes(self.mesh, shapes)
        self.rows = NamedSharding(self.mesh, ROWS)

    def init(self) -> TrainState:
        """The state before the first step, with random parameters."""
        return jax.jit(self._init, out_shardings=self._shardings())()

    def compile(self) -> jax.stages.Compiled:
        """The train step: (state, batch) -> (state, window); see `bertjax.training.step`."""
        options = _compiler_options(self.mesh.devices.flat[0])
        return self._lower().compile(compiler_options=options or None)

    def _lower(self) -> jax.stages.Lowered:
        config = self._config

        def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
            params = gather_matrices(self.mesh, params, config.model.dtype)
            return self._objective.loss(params, batch, key)

        train_step = make_train_step(
            loss,
            self._optimizer,
            seed_key=jax.random.key(config.seed),
            accumulation=config.accumulation,
            log_every=int(config.log_every),
        )
        jitted = jax.jit(
            train_step,
            in_shardings=(self._shardings(), self.rows),
            out_shardings=(self._shardings(), None),
            donate_argnums=0,
        )
        with jax.set_mesh(self.mesh):
            return jitted.lower(
                self.state, with_shardings(self._objective.batch_shapes(), self.rows)
            )

    def _shardings(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)

    def _init(self) -> TrainState:
        params = self._objective.init_params(jax.random.key(self._config.seed))
        return init_state(
            params, self._objective.loss, self._optimizer, self._objective.batch_shapes()
        )
