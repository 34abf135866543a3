"""Step functions of a configuration on a mesh: initialize, train, evaluate and predict.

`bertjax train`, `evaluate` and `predict` run these compiled functions and `bertjax preflight`
analyzes them, from shapes alone: with the same mesh, gathering and compiler options.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.config import Config
from bertjax.mesh.device_mesh import AXES, BATCH_SPEC, make_mesh, num_batch_shards
from bertjax.mesh.feed import Batch, to_devices
from bertjax.mesh.sharding import (
    check_mesh,
    gather_matrices,
    sharded_shapes,
    stack_layers,
    with_shardings,
)
from bertjax.model.cpu_layout import CpuLayout
from bertjax.model.decoder.generation import generate
from bertjax.model.decoder.options import Decoding
from bertjax.model.losses import Sums
from bertjax.steps.batch_sizes import accumulation_steps
from bertjax.steps.compilation import Compiler, shardings_of
from bertjax.steps.digests import digest
from bertjax.steps.initial_state import StateInitializer
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import stop_frozen_gradients, with_learning_rate
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.steps.train_step import TrainState, make_train_step, sums_and_gradient


class StepFunctions:
    """The compiled functions of one run on a mesh of devices.

    Args:
      config: a configuration; `state_shapes`, `init` and `compile_train_step` need a resolved one.
      objective: the model and its loss.
      devices: devices of this machine or of a compile-only topology; all by default.

    Attributes:
      objective: the model and its loss.
      mesh: the devices.
      param_shapes: the parameters as `jax.ShapeDtypeStruct` with shardings.
      init_shapes: the same for the parameters that `init` takes.
      constant_shapes, train_constant_shapes: the same for what `constants` and `train_constants`
        return.
      batch_sharding, eval_batch_sharding: sharding of every array of a training or eval batch.
      predict_layout: layout of the parameters that a compiled predict function takes.
      memory_bytes: bytes per device of each compiled function, by the function's name.
      is_compiled: whether the train step was compiled by an earlier run.

    Raises:
      InputError: the parameters do not fit the mesh.
    """

    is_compiled = False

    def __init__(
        self, config: Config, objective: Objective, devices: Sequence[jax.Device] | None = None
    ) -> None:
        self._config, self.objective = config, objective
        self.mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
        shapes = jax.eval_shape(lambda: objective.init_params(jax.random.key(0)))
        check_mesh(self.mesh, shapes)
        self.param_shapes = self.init_shapes = sharded_shapes(self.mesh, shapes)
        self.batch_sharding = self.eval_batch_sharding = NamedSharding(self.mesh, BATCH_SPEC)
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self.constant_shapes = sharded_shapes(self.mesh, jax.eval_shape(objective.constants))
        train_constants = objective.train_constant_shapes()
        check_mesh(self.mesh, train_constants)  # such as a teacher
        self.train_constant_shapes = sharded_shapes(self.mesh, train_constants)
        self._progress = jax.ShapeDtypeStruct((), jnp.float32, sharding=self._replicated)
        self.predict_layout = CpuLayout(config.model, self.mesh)
        self._compiler = Compiler(self.mesh, sdc_checker=config.sdc_checker)
        self.memory_bytes = self._compiler.memory_bytes

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """A training state as `jax.ShapeDtypeStruct` with shardings."""
        shapes = jax.eval_shape(self._initializer.from_params, self.param_shapes)
        return sharded_shapes(self.mesh, shapes)

    def init(self, init_params: Any = None) -> TrainState:
        """Return the state before the first step.

        Args:
          init_params: some of the parameters, as `init_shapes`; the others are random. They are
            donated.
        """
        init = functools.partial(self._initializer.from_seed, self._config.seed)
        out_shardings = shardings_of(self.state_shapes)
        return jax.jit(init, out_shardings=out_shardings, donate_argnums=0)(init_params or {})

    def constants(self) -> Any:
        """Return the arrays that evaluation and prediction read and that are not trained."""
        return jax.tree.map(to_devices, self.objective.constants(), self.constant_shapes)

    def train_constants(self) -> Any:
        """Return the arrays that the train step reads and does not train."""
        constants = self.objective.train_constants()
        return jax.tree.map(to_devices, constants, self.train_constant_shapes)

    def with_progress(self, constants: Any, progress: float) -> Any:
        """Return the constants of a train step at `progress` in [0, 1] of a time budget."""
        return {"fixed": constants, "progress": to_devices(progress, self._progress)}

    @property
    def _step_constant_shapes(self) -> Any:
        """Shapes of the constants of a train step, with a time budget those of `with_progress`."""
        constants = self.train_constant_shapes
        if self._config.budget_seconds is None:
            return constants
        return {"fixed": constants, "progress": self._progress}

    def compile_train_step(self, batch_size: int | None = None) -> jax.stages.Compiled:
        """Compile the train step: (state, batch, constants) -> (state, metric_sums).

        See `make_train_step`. With a time budget the constants are those of `with_progress`.

        Args:
          batch_size: sequences of the batch during a ramp-up; None for the full batch.
        """
        config, objective = self._config, self.objective
        batch_size = batch_size or objective.batch_size
        timed = config.budget_seconds is not None
        schedule = learning_rate_schedule(config.optimizer_config())
        num_microbatches = accumulation_steps(config, objective, self.mesh, batch_size)

        def train_step(state: TrainState, batch: Batch, constants: Any) -> tuple[TrainState, Sums]:
            optimizer = self._initializer.optimizer
            if timed:
                progress, constants = constants["progress"], constants["fixed"]
                optimizer = with_learning_rate(optimizer, schedule(progress))
            else:
                progress = state.step / jnp.float32(config.total_steps)

            def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
                return objective.train_sums(stack_layers(params), batch, key, constants, progress)

            def gather(params: Any) -> Any:
                return self._gather(stop_frozen_gradients(params, config.optimizer_config()))

            step = make_train_step(
                loss,
                optimizer,
                seed_key=jax.random.key(config.seed),
                gradient_accumulation_steps=num_microbatches,
                log_every=int(config.log_every),
                gather=gather,
            )
            return step(state, batch)

        return self._compiler.compile(
            train_step,
            self.state_shapes,
            with_shardings(objective.batch_shapes(batch_size), self.batch_sharding),
            self._step_constant_shapes,
            out_shardings=(shardings_of(self.state_shapes), None),
            donate=True,
        )

    def compile_replay_step(self, batch_size: int) -> jax.stages.Compiled:
        """Compile a replay: (params, step, batch, constants) -> digests, uint32 [devices].

        Each device computes the gradient of its own sequences with all parameters. Devices along
        `tensor` repeat each other.

        Args:
          batch_size: sequences of the global batch.
        """
        config, objective = self._config, self.objective
        num_microbatches = accumulation_steps(config, objective, self.mesh, batch_size)
        # For the model a device is a mesh of its own, as in `ParallelStepFunctions`.
        devices = self.mesh.devices.reshape(num_batch_shards(self.mesh), -1, 1, 1, 1)
        mesh = Mesh(devices, ("shards", "copies", *AXES))

        def on_device(params: Any, step: Any, batch: Batch, constants: Any) -> jax.Array:
            if config.budget_seconds is None:
                progress = step / jnp.float32(config.total_steps)
            else:
                progress, constants = constants["progress"], constants["fixed"]
            key = jax.random.fold_in(jax.random.key(config.seed), step)
            key = jax.random.fold_in(key, jax.lax.axis_index("shards"))

            def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
                params = stop_frozen_gradients(params, config.optimizer_config())
                return objective.train_sums(params, batch, key, constants, progress)

            return digest(sums_and_gradient(loss, params, batch, key, num_microbatches))[None]

        def replay_step(*arguments: Any) -> jax.Array:
            specs = (PartitionSpec(), PartitionSpec(), PartitionSpec("shards"), PartitionSpec())
            out_specs = PartitionSpec(("shards", "copies"))
            function = jax.shard_map(
                on_device, in_specs=specs, out_specs=out_specs, check_vma=False
            )
            result: jax.Array = function(*arguments)
            return result

        compiler = Compiler(mesh, sdc_checker=config.sdc_checker)
        compiled = compiler.compile(
            replay_step,
            self.param_shapes,
            self.state_shapes.step,
            with_shardings(objective.batch_shapes(batch_size), self.batch_sharding),
            self._step_constant_shapes,
            out_shardings=NamedSharding(mesh, PartitionSpec(("shards", "copies"))),
        )
        self.memory_bytes |= compiler.memory_bytes
        return compiled

    def compile_eval_step(self) -> jax.stages.Compiled:
        """Compile the eval step: (params, batch, constants) -> (sums, eval outputs).

        One forward pass computes both. Every process has the outputs of all sequences.
        """

        def eval_step(params: Any, batch: Batch, constants: Any) -> tuple[Sums, dict[str, Any]]:
            return self.objective.eval_results(self._apply(params, batch, constants), batch)

        return self._compiler.compile(
            eval_step,
            self.param_shapes,
            with_shardings(self.objective.eval_shapes(), self.eval_batch_sharding),
            self.constant_shapes,
            out_shardings=self._replicated,
        )

    def compile_predict_step(
        self, batch_shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> jax.stages.Compiled:
        """Compile prediction: (parameters in `predict_layout`, batch, constants) -> outputs."""

        def predict(params: Any, batch: Batch, constants: Any) -> dict[str, Any]:
            outputs: dict[str, Any] = self.predict_layout.apply(
                lambda stacked: self._apply(stacked, batch, constants), params
            )
            return outputs

        return self._compiler.compile(
            predict,
            self.predict_layout.shapes(self.param_shapes),
            with_shardings(dict(batch_shapes), self.batch_sharding),
            self.constant_shapes,
            out_shardings=self._replicated,
        )

    def compile_generate_step(
        self, batch_shapes: Mapping[str, jax.ShapeDtypeStruct], decoding: Decoding
    ) -> jax.stages.Compiled:
        """Compile `generate`: (parameters in `predict_layout`, batch) -> targets."""

        def generate_step(params: Any, batch: Batch) -> dict[str, Any]:
            def generate_targets(stacked: Any) -> dict[str, Any]:
                gathered = stack_layers(self._gather(stacked))
                return generate(self._config.model, gathered, batch, decoding)

            targets: dict[str, Any] = self.predict_layout.apply(generate_targets, params)
            return targets

        return self._compiler.compile(
            generate_step,
            self.predict_layout.shapes(self.param_shapes),
            with_shardings(dict(batch_shapes), self.batch_sharding),
            out_shardings=self._replicated,
        )

    def _apply(self, params: Any, batch: Batch, constants: Any) -> dict[str, jax.Array]:
        return self.objective.apply(stack_layers(self._gather(params)), batch, None, constants)

    def _gather(self, params: Any) -> Any:
        model = self._config.model
        return gather_matrices(self.mesh, params, model.dtype, per_layer=not model.scan_layers)

    @functools.cached_property
    def _initializer(self) -> StateInitializer:
        config, reinit_layers = self._config.optimizer_config(), self._config.reinit_layers
        if self._config.budget_seconds is not None:
            # The learning rate is a function of progress: see `with_learning_rate`.
            config = dataclasses.replace(
                config,
                schedule="wsd",
                learning_rate=1.0,
                warmup_steps=0,
                cooldown_steps=0,
                decay_power=1.0,
            )
        return StateInitializer(self.objective, config, self.param_shapes, reinit_layers)


class TrainSteps:
    """Train steps of a run, each batch size of a ramp-up compiled once.

    Args:
      step_functions: functions of the run, or of several.
      full_batch_size: sequences of the full batch.
    """

    def __init__(self, step_functions: Any, full_batch_size: int) -> None:
        self._step_functions, self._full_batch_size = step_functions, full_batch_size
        self._compiled: dict[int, jax.stages.Compiled] = {}

    def is_compiled(self, batch_size: int) -> bool:
        """Return whether `compile` returns at once."""
        return batch_size in self._compiled

    def compile(self, batch_size: int) -> jax.stages.Compiled:
        """Return the train step of a batch size."""
        if batch_size not in self._compiled:
            ramps_up = batch_size != self._full_batch_size
            self._compiled[batch_size] = self._step_functions.compile_train_step(
                batch_size if ramps_up else None
            )
        return self._compiled[batch_size]
