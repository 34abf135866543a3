"""Step functions of several vmapped runs, each on one device; the runs exchange no data.

Runs differ in their learning rates and seeds, which are arguments, so one compiled function serves
all. Arrays have a leading axis of runs R, sharded over the devices; a device with several runs
computes them as one batch. The losses of a run are those it has alone, up to rounding.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.config import Config
from bertjax.mesh.allocator import keep_freed_memory
from bertjax.mesh.device_mesh import AXES
from bertjax.mesh.feed import Batch, to_devices
from bertjax.mesh.sharding import with_shardings
from bertjax.steps.batch_sizes import accumulation_steps
from bertjax.steps.compilation import Compiler, shardings_of
from bertjax.steps.initial_state import StateInitializer
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import stop_frozen_gradients, with_learning_rate
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import Sums, TrainState, make_train_step

RUNS = "runs"
_PER_RUN, _REPLICATED = PartitionSpec(RUNS), PartitionSpec()


class ParallelStepFunctions:
    """The compiled functions of R runs that differ only in `PER_RUN_FIELDS`.

    They have the interface of `StepFunctions`, but for prediction and time budgets.

    Args:
      configs: resolved configurations of the runs, the same number for each device.
      objective: the objective of one run on one device.
      devices: devices of this machine or of a compile-only topology; all by default.

    Attributes:
      configs: as given.
      mesh: the devices along the axis `RUNS`, and axes of size 1 for those of `make_mesh`.
      param_shapes: parameters [R, ...] as `jax.ShapeDtypeStruct` with shardings.
      init_shapes: the parameters that `init` takes, without the axis R: all runs share them.
      batch_sharding, eval_batch_sharding: shardings of training batches [R, B, ...] and of eval
        batches [B, ...].
      memory_bytes: bytes per device of each compiled function, by the function's name.
    """

    PER_RUN_FIELDS = ("seed", "data_seed", "optimizer.learning_rate")

    def __init__(
        self,
        configs: Sequence[Config],
        objective: Objective,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        devices = jax.devices() if devices is None else devices
        if devices[0].platform == "cpu":
            keep_freed_memory()
        self.configs, self.objective = configs, objective
        self._runs_per_device = len(configs) // len(devices)
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        self.mesh = Mesh(np.asarray(ordered).reshape(-1, 1, 1, 1), (RUNS, *AXES))
        self._replicated = NamedSharding(self.mesh, _REPLICATED)
        self.batch_sharding = NamedSharding(self.mesh, _PER_RUN)
        self.eval_batch_sharding = self._replicated
        per_run = functools.partial(
            jax.ShapeDtypeStruct, (len(configs),), sharding=self.batch_sharding
        )
        per_run_shapes = {"rates": per_run(jnp.float32), "seeds": per_run(jnp.uint32)}
        self.constant_shapes, self.train_constant_shapes = (
            per_run_shapes | {"fixed": with_shardings(fixed, self._replicated)}
            for fixed in (jax.eval_shape(objective.constants), objective.train_constant_shapes())
        )
        shapes = jax.eval_shape(lambda: objective.init_params(jax.random.key(0)))
        self.init_shapes = with_shardings(shapes, self._replicated)
        self.param_shapes = with_shardings(self._stack_shapes(shapes), self.batch_sharding)
        # The learning rate of each run is an argument: see `with_learning_rate`.
        optimizer = dataclasses.replace(configs[0].optimizer_config(), learning_rate=1.0)
        reinit_layers = configs[0].reinit_layers
        self._initializer = StateInitializer(objective, optimizer, self.init_shapes, reinit_layers)
        self._compiler = Compiler(self.mesh, sdc_checker=configs[0].sdc_checker)
        self.memory_bytes = self._compiler.memory_bytes
        self._compiled: dict[str, Any] = {}

    def with_configs(self, configs: Sequence[Config]) -> "ParallelStepFunctions":
        """Return the same compiled functions for another set of as many runs."""
        other = copy.copy(self)
        other.configs = configs
        return other

    @property
    def is_compiled(self) -> bool:
        """True if the train step was compiled for an earlier set of runs."""
        return "train_step" in self._compiled

    def constants(self) -> Any:
        """Return the runs' rates and seeds, and what `StepFunctions.constants` returns."""
        return self._place(self.objective.constants(), self.constant_shapes)

    def train_constants(self) -> Any:
        """Return the runs' rates and seeds, and what `StepFunctions.train_constants` returns."""
        return self._place(self.objective.train_constants(), self.train_constant_shapes)

    def _place(self, fixed: Any, shapes: Any) -> Any:
        values = {
            "rates": np.array([c.optimizer.learning_rate for c in self.configs], np.float32),
            "seeds": np.array([c.seed for c in self.configs], np.uint32),
            "fixed": jax.tree.map(np.asarray, fixed),
        }
        return jax.tree.map(to_devices, values, shapes)

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """The state of all runs: every leaf but `step` has a leading axis of runs."""
        shapes = jax.eval_shape(self._init_runs, self.constant_shapes["seeds"], {})
        return TrainState(
            with_shardings(shapes.step, self._replicated),
            *with_shardings(shapes[1:], self.batch_sharding),
        )

    def init(self, init_params: Any = None) -> TrainState:
        """Return the states before the first step; see `StepFunctions.init`."""
        out_shardings = shardings_of(self.state_shapes)
        init = self._compile_once(
            "init", lambda: jax.jit(self._init_runs, out_shardings=out_shardings)
        )
        state: TrainState = init(self.constants()["seeds"], init_params or {})
        return state

    def compile_train_step(self, batch_size: int | None = None) -> jax.stages.Compiled:
        """Compile the train step once: (state, batch, constants) -> (state, metric_sums).

        The arrays of a batch are [R, B, ...], those of the metric sums [R].

        Args:
          batch_size: sequences of a run's batch; None, or the size of the full batch.
        """
        assert batch_size in (None, self.objective.batch_size)
        return self._compile_once("train_step", self._compile_train_step)

    def compile_eval_step(self) -> jax.stages.Compiled:
        """Compile the eval step once: (params, batch, constants) -> (sums, outputs), [R, ...]."""
        return self._compile_once("eval_step", self._compile_eval_step)

    def gather(self, tree: Any) -> Any:
        """Return arrays of all runs, such as metric sums, replicated on every device."""
        gather = self._compile_once(
            "gather", lambda: jax.jit(lambda tree: tree, out_shardings=self._replicated)
        )
        return gather(tree)

    def _compile_train_step(self) -> jax.stages.Compiled:
        config, objective = self.configs[0], self.objective
        num_microbatches = accumulation_steps(config, objective, self.mesh, objective.batch_size)

        def train_step(state: TrainState, batch: Batch, constants: Any) -> Any:
            fixed = constants["fixed"]
            progress = state.step / jnp.float32(config.total_steps or 1)

            def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
                params = stop_frozen_gradients(params, config.optimizer_config())
                return objective.train_sums(params, batch, key, fixed, progress)

            def device_step(number: Any, leaves: Any, batch: Batch, rates: Any, seeds: Any) -> Any:
                def run(leaves: Any, batch: Batch, rate: Any, seed: Any) -> Any:
                    step = make_train_step(
                        loss,
                        with_learning_rate(self._initializer.optimizer, rate),
                        seed_key=jax.random.key(seed),
                        gradient_accumulation_steps=num_microbatches,
                        log_every=int(config.log_every),
                    )
                    new_state, metric_sums = step(TrainState(number, *leaves), batch)
                    return new_state[1:], metric_sums

                return self._over_runs(run, leaves, batch, rates, seeds)

            leaves, metric_sums = self._on_devices(
                device_step, (_REPLICATED, _PER_RUN, _PER_RUN, _PER_RUN, _PER_RUN)
            )(state.step, state[1:], batch, constants["rates"], constants["seeds"])
            return TrainState(state.step + 1, *leaves), metric_sums

        batches = self._stack_shapes(objective.batch_shapes(objective.batch_size))
        return self._compiler.compile(
            train_step,
            self.state_shapes,
            with_shardings(batches, self.batch_sharding),
            self.train_constant_shapes,
            out_shardings=(shardings_of(self.state_shapes), self.batch_sharding),
            donate=True,
        )

    def _compile_eval_step(self) -> jax.stages.Compiled:
        objective = self.objective

        def eval_step(params: Any, batch: Batch, constants: Any) -> Any:
            def device_step(params: Any, batch: Batch, fixed: Any) -> Any:
                def run(params: Any) -> Any:
                    outputs = objective.apply(params, batch, None, fixed)
                    return objective.eval_results(outputs, batch)

                return self._over_runs(run, params)

            specs = (_PER_RUN, _REPLICATED, _REPLICATED)
            return self._on_devices(device_step, specs)(params, batch, constants["fixed"])

        return self._compiler.compile(
            eval_step,
            self.param_shapes,
            with_shardings(objective.eval_shapes(), self.eval_batch_sharding),
            self.constant_shapes,
            out_shardings=self._replicated,
        )

    def _compile_once(self, name: str, compile_function: Callable[[], Any]) -> Any:
        if name not in self._compiled:
            self._compiled[name] = compile_function()
        return self._compiled[name]

    def _on_devices(self, function: Callable[..., Any], specs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, in_specs=specs, out_specs=_PER_RUN, check_vma=False)

    def _over_runs(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Return the stacked results of `run` for each of a device's runs.

        A single run is not vmapped: its program is the one it has alone.
        """
        if self._runs_per_device > 1:
            return jax.vmap(run)(*arguments)
        result = run(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

    def _init_runs(self, seeds: Any, init_params: Any) -> TrainState:
        def init_run(seed: Any) -> tuple[Any, ...]:
            return tuple(self._initializer.from_seed(seed, init_params))

        return TrainState(*jax.vmap(init_run, out_axes=(None, 0, 0, 0))(seeds))

    def _stack_shapes(self, tree: Any) -> Any:
        """Return shapes with a leading axis of runs."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((len(self.configs), *leaf.shape), leaf.dtype), tree
        )


AnyStepFunctions = StepFunctions | ParallelStepFunctions  # what a training loop runs


def round_up_runs(runs: int, devices: int) -> int:
    """Return the number of runs, rounded up to a multiple of the devices."""
    return -(-runs // devices) * devices
