"""Several runs as one program, each on a device of its own: no two of them ever exchange a byte.

What tells the runs apart, their rates and seeds, are arguments; all else is compiled once. Arrays
have a leading axis of runs R, which the devices share, and a device that has several of them
computes them as one batch. The losses of a run are those that it has alone.
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
from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.allocator import keep_freed_memory
from bertjax.mesh.feed import Batch
from bertjax.mesh.sharding import AXES, with_shardings
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import with_learning_rate, stop_frozen_gradients
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import Sums, TrainState, make_train_step

RUNS = "runs"
_PER_RUN, _REPLICATED = PartitionSpec(RUNS), PartitionSpec()


class ParallelStepFunctions(StepFunctions):
    """The programs of R runs that differ in nothing but `PER_RUN_FIELDS`.

    Args:
      configs: of the runs, as many on each device; resolved.
      objective: of one run on one device.
      devices: of this machine or of a topology that only the compiler knows; all by default.
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
        self._config, self._objective, self.configs = configs[0], objective, configs
        self._runs_per_device = len(configs) // len(devices)  # of a device
        # The axes that split a run are there, of one device each.
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        self.mesh = Mesh(np.asarray(ordered).reshape(-1, 1, 1, 1), (RUNS, *AXES))
        self.batch_sharding = NamedSharding(self.mesh, _PER_RUN)
        self._replicated = self.eval_batch_sharding = NamedSharding(self.mesh, _REPLICATED)
        self._compiled: dict[str, Any] = {}
        self.memory_bytes = {}
        fixed = jax.eval_shape(objective.constants)
        self._constants = {
            "rates": self._shard_over_runs(jax.ShapeDtypeStruct((len(configs),), jnp.float32)),
            "seeds": self._shard_over_runs(jax.ShapeDtypeStruct((len(configs),), jnp.uint32)),
            "fixed": with_shardings(fixed, self._replicated),
        }
        self._single_run_shapes = jax.eval_shape(lambda: objective.init_params(jax.random.key(0)))
        self.param_shapes = self._shard_over_runs(
            jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((len(configs), *leaf.shape), leaf.dtype),
                self._single_run_shapes,
            )
        )

    def with_configs(self, configs: Sequence[Config]) -> "ParallelStepFunctions":
        """The same programs, compiled once for all, of as many other runs."""
        other = copy.copy(self)
        other.configs = configs
        return other

    @property
    def is_compiled(self) -> bool:
        return "train" in self._compiled

    def _compile_once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._compiled:
            self._compiled[name] = make()
        return self._compiled[name]

    def constants(self) -> Any:
        """Rates and seeds of the runs, and what does not learn, on the devices."""
        rates = np.array([each.optimizer.learning_rate for each in self.configs], np.float32)
        seeds = np.array([each.seed for each in self.configs], np.uint32)
        found = {"rates": rates, "seeds": seeds, "fixed": self._objective.constants()}
        return jax.tree.map(_make_global_array, found, self._constants)

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """The state of all runs: every leaf but `step` has a leading axis of runs."""
        shapes = jax.eval_shape(self._init_runs, self._constants["seeds"], {})
        return shapes._replace(
            step=with_shardings(shapes.step, self._replicated),
            **{
                name: self._shard_over_runs(getattr(shapes, name))
                for name in ("params", "opt_state", "window")
            },
        )

    @property
    def init_shapes(self) -> Any:
        """All runs begin with the same, whole on every device."""
        return with_shardings(self._single_run_shapes, self._replicated)

    def compile_train_step(self, rows: int | None = None) -> jax.stages.Compiled:
        """The train step: (state, batch, constants) -> (state, window).

        The arrays of a batch are [R, B, ...], the window's [R].
        """
        return self._compile_once("train", self._make_train_step)

    def _make_train_step(self) -> jax.stages.Compiled:
        config, objective = self._config, self._objective

        def one(state: TrainState, batch: Batch, rate: Any, seed: Any, fixed: Any) -> Any:
            def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
                params = stop_frozen_gradients(params, config.optimizer_config())
                return objective.sums(objective.apply(params, batch, key, fixed), batch)

            step = make_train_step(
                loss,
                with_learning_rate(self._optimizer, rate),
                seed_key=jax.random.key(seed),
                gradient_accumulation_steps=config.gradient_accumulation_steps,
                log_every=int(config.log_every),
            )
            return step(state, batch)

        def train_step(state: TrainState, batch: Batch, constants: Any) -> Any:
            fixed = constants["fixed"]

            def device(step: Any, rest: Any, batch: Batch, rates: Any, seeds: Any) -> Any:
                def run(rest: Any, batch: Batch, rate: Any, seed: Any) -> Any:
                    found, window = one(TrainState(step, *rest), batch, rate, seed, fixed)
                    return found[1:], window

                return self._over_runs(run, rest, batch, rates, seeds)

            rest, window = self._on_devices(
                device, (_REPLICATED, _PER_RUN, _PER_RUN, _PER_RUN, _PER_RUN)
            )(state.step, state[1:], batch, constants["rates"], constants["seeds"])
            return TrainState(state.step + 1, *rest), window

        shapes = self._objective.batch_shapes(self._objective.batch_size)
        batches = {
            name: jax.ShapeDtypeStruct((len(self.configs), *each.shape), each.dtype)
            for name, each in shapes.items()
        }
        out = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes), self.batch_sharding
        return self._compile(train_step, self.state_shapes, batches, out, donate_argnums=0)

    def compile_eval_step(self) -> jax.stages.Compiled:
        """(params, batch, constants) -> sums [R] and outputs [R, ...] of a batch, for each run."""
        return self._compile_once("evaluate", self._make_eval_step)

    def _make_eval_step(self) -> jax.stages.Compiled:
        objective = self._objective

        def eval_step(params: Any, batch: Batch, constants: Any) -> Any:
            def device(params: Any, batch: Batch, fixed: Any) -> Any:
                def run(params: Any) -> Any:
                    outputs = objective.apply(params, batch, None, fixed)
                    kept = {name: outputs[name] for name in objective.eval_outputs}
                    return objective.sums(outputs, batch), kept

                return self._over_runs(run, params)

            specs = (_PER_RUN, _REPLICATED, _REPLICATED)
            return self._on_devices(device, specs)(params, batch, constants["fixed"])

        shapes = objective.eval_shapes()
        return self._compile(
            eval_step, self.param_shapes, shapes, self._replicated, self.eval_batch_sharding
        )

    @functools.cached_property
    def gather(self) -> Callable[[Any], Any]:
        """A function that gives every device what is of each run, such as a window."""
        return jax.jit(lambda tree: tree, out_shardings=self._replicated)

    def check_batch_sizes(self, train: bool) -> None:
        """Every device has whole batches, so that none must divide."""

    def _on_devices(self, function: Callable[..., Any], specs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, in_specs=specs, out_specs=_PER_RUN, check_vma=False)

    def _over_runs(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """What `run` gives for each of a device's runs; of one alone its very program."""
        if self._runs_per_device > 1:
            return jax.vmap(run)(*arguments)
        alone = run(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], alone)

    def init(self, given: Any = None) -> TrainState:
        """The states before the first step; see `Programs.init`."""
        out = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes)
        init = self._compile_once("init", lambda: jax.jit(self._init_runs, out_shardings=out))
        state: TrainState = init(self.constants()["seeds"], given or {})
        return state

    def _init_runs(self, seeds: Any, given: Any) -> TrainState:
        def one(seed: Any) -> tuple[Any, ...]:
            return tuple(self._init_with_seed(seed, given))

        return TrainState(*jax.vmap(one, out_axes=(None, 0, 0, 0))(seeds))

    def _optimizer_config(self) -> OptimizerConfig:
        return dataclasses.replace(super()._optimizer_config(), learning_rate=1.0)

    def _shard_over_runs(self, tree: Any) -> Any:
        return with_shardings(tree, NamedSharding(self.mesh, _PER_RUN))


def round_up_runs(runs: int, devices: int) -> int:
    """So many runs, or as few more as give every device as many."""
    return -(-runs // devices) * devices


def _make_global_array(array: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
    found = np.asarray(array)
    return jax.make_array_from_callback(found.shape, target.sharding, lambda index: found[index])
