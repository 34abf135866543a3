"""What is compiled: the train step, evaluation and prediction of a configuration on a mesh.

All three from shapes alone, with the same mesh, gathering and compiler's options. `bertjax train`,
`evaluate` and `predict` run them and `bertjax preflight` judges them, so that what is judged is
what is run.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.config.config import Config
from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.feed import Batch
from bertjax.mesh.memory import program_bytes
from bertjax.mesh.sharding import (
    BATCH_SPEC,
    check_mesh,
    gather_matrices,
    make_mesh,
    named_leaves,
    num_batch_shards,
    parameter_name,
    sharded_shapes,
    stack_layers,
    with_shardings,
)
from bertjax.model.attention.dispatch import AttentionImplementation, choose
from bertjax.model.initialization import merge_pretrained
from bertjax.model.layers import transposed_kernels
from bertjax.model.losses import Sums
from bertjax.steps.objective import Objective
from bertjax.steps.optimizer import (
    is_stacked,
    make_optimizer,
    with_learning_rate,
    stop_frozen_gradients,
)
from bertjax.steps.schedules import Plan, learning_rate_schedule
from bertjax.steps.train_step import TrainState, init_state, make_train_step
from data_pipelines.errors import InputError

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def _compiler_options(device: jax.Device) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {}
    if device.platform == "tpu":
        # By itself the compiler sums gradients in a ring while it computes them, a slice at a time,
        # at half the speed of the whole product, and copies their inputs into another layout.
        options["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
        # By itself it sums them all at the end, when nothing is left to do beside that. So each
        # matrix is summed by itself, while the backward pass goes on.
        options["xla_jf_crs_combiner_threshold_in_bytes"] = "2000000"
        options["xla_enable_async_all_reduce"] = True
        options["xla_tpu_enable_async_collective_fusion_fuse_all_reduce"] = True
    if device.device_kind.startswith(("TPU v5", "TPU v6")):
        # By itself it leaves a product 16 MiB of the core's memory (all that older chips have), too
        # little for the backward pass: inputs would be read several times over.
        options["xla_tpu_scoped_vmem_limit_kib"] = "32768"
    return options


class StepFunctions:
    """The programs of a configuration on a mesh of devices.

    Args:
      objective: the model and its loss.
      devices: of this machine or of a topology that only the compiler knows; all by default.

    Attributes:
      mesh: where arrays lie.
      params: the parameters as `jax.ShapeDtypeStruct` with shardings.
      rows, eval_batch_sharding: the shardings of every array of a batch, of training or held out.
      taken: bytes of a device that each program takes which was compiled, by its function's name.

    Raises:
      InputError: the parameters do not fit the mesh.
    """

    def __init__(
        self, config: Config, objective: Objective, devices: Sequence[jax.Device] | None = None
    ) -> None:
        self._config, self._objective = config, objective
        self.mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
        shapes = jax.eval_shape(lambda: objective.init_params(jax.random.key(0)))
        check_mesh(self.mesh, shapes)
        self.param_shapes = sharded_shapes(self.mesh, shapes)
        self.batch_sharding = self.eval_batch_sharding = NamedSharding(self.mesh, BATCH_SPEC)
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self._constants = sharded_shapes(self.mesh, jax.eval_shape(objective.constants))
        self.memory_bytes: dict[str, int] = {}

    def check_batch_sizes(self, train: bool) -> None:
        """Refuses batches that the devices cannot share, before anything compiles.

        Args:
          train: whether those of training are of interest, and not those of held-out data alone.
        Raises:
          InputError: rows do not divide over the devices.
        """
        objective, parts = self._objective, num_batch_shards(self.mesh)
        for rows in self._batch_sizes if train else ():
            gradient_accumulation_steps = self._gradient_accumulation_steps(rows)
            if rows % (parts * gradient_accumulation_steps):
                raise InputError(
                    f"batch_size={rows} does not divide over {parts} devices x accumulation="
                    f"{gradient_accumulation_steps}: make it a multiple of {parts * gradient_accumulation_steps}."
                )
        if objective.eval_batch_size % parts:
            raise InputError(
                f"{objective.eval_batch_size} rows of held-out data do not divide over {parts} devices: "
                "make eval_batch_size a multiple of that."
            )

    @property
    def _batch_sizes(self) -> tuple[int, ...]:
        """Rows of the batches of training."""
        config = self._config
        return (
            config.rampup.batch_sizes
            if config.batch_size_rampup > 1
            else (self._objective.batch_size,)
        )

    def _gradient_accumulation_steps(self, rows: int) -> int:
        """Parts of a batch of so many rows; of one that grows no larger than those of the last."""
        count, last = self._config.gradient_accumulation_steps, self._objective.batch_size
        if rows == last:
            return count
        least = -(-count * rows // last)
        own = rows // num_batch_shards(self.mesh)  # of a device
        return next((parts for parts in range(least, own + 1) if own % parts == 0), least)

    @functools.cached_property
    def schedule(self) -> optax.Schedule:
        """Learning rate of an update, from the number of updates before it."""
        return learning_rate_schedule(self._config.optimizer_config())

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """A training state as `jax.ShapeDtypeStruct` with shardings.

        It, `init` and `train` need a configuration whose durations are numbers of steps.
        """

        def state(params: Any) -> TrainState:
            return init_state(params, self._sums, self._optimizer)

        return sharded_shapes(self.mesh, jax.eval_shape(state, self.param_shapes))

    @property
    def init_shapes(self) -> Any:
        """What parameters that are given to `init` look like: shapes with shardings."""
        return self.param_shapes

    def init(self, given: Any = None) -> TrainState:
        """The state before the first step.

        Args:
          given: some of the parameters; the others are random. They are donated.
        """
        init = jax.jit(self._init, out_shardings=_shardings(self.state_shapes), donate_argnums=0)
        return init(given or {})

    def constants(self) -> Any:
        """What does not learn, on the devices."""
        return jax.device_put(self._objective.constants(), _shardings(self._constants))

    def planned(self, constants: Any, plan: Plan) -> Any:
        """The constants of a train step that follows a plan."""
        values = (
            np.asarray(value, leaf.dtype) for value, leaf in zip(plan, self._plan, strict=True)
        )
        return {"fixed": constants, "plan": jax.device_put(Plan(*values), self._replicated)}

    @functools.cached_property
    def _plan(self) -> Plan:
        scalars = Plan(
            *(jax.ShapeDtypeStruct((), kind) for kind in (jnp.int32, jnp.int32, jnp.float32))
        )
        plan: Plan = with_shardings(scalars, self._replicated)
        return plan

    @property
    def is_compiled(self) -> bool:
        """Whether the train step is kept from an earlier run."""
        return False

    def attention_implementation(self) -> AttentionImplementation:
        """How each layer of the train step attends; known without tracing it."""
        config, objective = self._config, self._objective
        rows, length = objective.batch_shapes(objective.batch_size)["example_ids"].shape
        heads = config.model.num_attention_heads
        shape = (
            rows // config.gradient_accumulation_steps,
            length,
            heads,
            config.model.hidden_size // heads,
        )
        with jax.set_mesh(self.mesh):
            return choose(jax.ShapeDtypeStruct(shape, config.model.dtype))

    def compile_train_step(self, rows: int | None = None) -> jax.stages.Compiled:
        """The train step: (state, batch, constants) -> (state, window); see `make_train_step`.

        Where the clock ends the run, its constants are what `planned` gives.

        Args:
          rows: of the batch, where batches grow; None for the last and largest.
        """
        config, rows = self._config, rows or self._objective.batch_size
        timed = config.budget_seconds is not None
        given = {"fixed": self._constants, "plan": self._plan} if timed else self._constants

        def train_step(state: TrainState, batch: Batch, constants: Any) -> tuple[TrainState, Sums]:
            optimizer = self._optimizer
            if timed:
                plan, constants = constants["plan"], constants["fixed"]
                optimizer = with_learning_rate(optimizer, self.schedule(plan.at(state.step)))

            def loss(params: Any, batch: Batch, key: jax.Array | None) -> Sums:
                outputs = self._objective.apply(stack_layers(params), batch, key, constants)
                return self._objective.sums(outputs, batch)

            def gather(params: Any) -> Any:
                return self._gather(stop_frozen_gradients(params, config.optimizer_config()))

            step = make_train_step(
                loss,
                optimizer,
                seed_key=jax.random.key(config.seed),
                gradient_accumulation_steps=self._gradient_accumulation_steps(rows),
                log_every=int(config.log_every),
                gather=gather,
            )
            return step(state, batch)

        shapes = self._objective.batch_shapes(rows)
        out = _shardings(self.state_shapes), None
        return self._compile(
            train_step, self.state_shapes, shapes, out, constants=given, donate_argnums=0
        )

    def compile_eval_step(self) -> jax.stages.Compiled:
        """(params, batch, constants) -> sums over the batch, and the outputs that a task asks for.

        One forward pass gives both. Each host has the outputs of all rows.
        """

        def eval_step(params: Any, batch: Batch, constants: Any) -> tuple[Sums, dict[str, Any]]:
            outputs = self._apply(params, batch, None, constants)
            kept = {name: outputs[name] for name in self._objective.eval_outputs}
            return self._objective.sums(outputs, batch), kept

        shapes = self._objective.eval_shapes()
        return self._compile(
            eval_step, self.param_shapes, shapes, self._replicated, self.eval_batch_sharding
        )

    def compile_predict_step(self, shapes: Shapes) -> jax.stages.Compiled:
        """(what `laid` gives, batch, constants) -> all outputs, for batches of these shapes."""

        def predict(params: Any, batch: Batch, constants: Any) -> dict[str, Any]:
            if not self._unstacks_layers:
                return self._apply(params, batch, None, constants)
            with transposed_kernels():
                whole = stack_layers(jax.tree_util.tree_map_with_path(_transpose_kernel, params))
                return self._apply(whole, batch, None, constants)

        def place(leaf: Any, layer: int | None, transposed: bool) -> Any:
            own = leaf.shape if layer is None else leaf.shape[1:]
            shape = own[::-1] if transposed else own
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self._replicated)

        return self._compile(
            predict, self._map_layout(self.param_shapes, place), shapes, self._replicated
        )

    def layout_params(self, params: Any) -> Any:
        """Parameters as `predict` takes them, in the memory that they have where it can be."""

        def place(leaf: Any, layer: int | None, transposed: bool) -> Any:
            found = np.asarray(leaf) if layer is None else np.asarray(leaf)[layer]
            return jax.device_put(found.T if transposed else found, self._replicated)

        return self._map_layout(params, place)

    @functools.cached_property
    def _unstacks_layers(self) -> bool:
        """Whether each layer's parameters are given to `predict` by themselves, kernels turned.

        Of those of all layers in one array a CPU would copy each layer's at every call, which takes
        longer than to compute a short text. And it multiplies up to 64 pieces by a kernel that lies
        there as [outputs, inputs] in half to three quarters of the time.
        """
        alone = self.mesh.size == self.mesh.shape["data"]
        cpu = self.mesh.devices.flat[0].platform == "cpu"
        return cpu and alone and not self._config.model.scan_layers

    def _map_layout(self, params: Any, place: Callable[[Any, int | None, bool], Any]) -> Any:
        layers = range(self._config.model.num_hidden_layers)

        def laid(path: tuple[Any, ...], leaf: Any) -> Any:
            name = parameter_name(path)
            transposed = name.endswith("/kernel")
            if is_stacked(name):
                return tuple(place(leaf, layer, transposed) for layer in layers)
            return place(leaf, None, True) if transposed else leaf

        return jax.tree_util.tree_map_with_path(laid, params) if self._unstacks_layers else params

    def _apply(
        self, params: Any, batch: Batch, key: jax.Array | None, constants: Any
    ) -> dict[str, jax.Array]:
        return self._objective.apply(stack_layers(self._gather(params)), batch, key, constants)

    def _gather(self, params: Any) -> Any:
        model = self._config.model
        return gather_matrices(self.mesh, params, model.dtype, per_layer=not model.scan_layers)

    def _compile(
        self,
        function: Any,
        first: Any,
        shapes: Shapes,
        out: Any,
        rows: NamedSharding | None = None,
        constants: Any = None,
        **options: Any,
    ) -> jax.stages.Compiled:
        batch = with_shardings(dict(shapes), rows or self.batch_sharding)
        arguments = (first, batch, self._constants if constants is None else constants)
        jitted = jax.jit(
            function,
            in_shardings=tuple(map(_shardings, arguments)),
            out_shardings=out,
            **options,
        )
        with jax.set_mesh(self.mesh):
            lowered = jitted.lower(*arguments)
        chosen = _compiler_options(self.mesh.devices.flat[0])
        compiled = lowered.compile(compiler_options=chosen)
        self.memory_bytes[function.__name__] = program_bytes(compiled)
        return compiled

    @functools.cached_property
    def _optimizer(self) -> optax.GradientTransformation:
        optimizer = make_optimizer(self._optimizer_config())
        if all(self._objective.trainable(name) for name, _ in named_leaves(self.param_shapes)):
            return optimizer

        def labels(params: Any) -> Any:
            return jax.tree_util.tree_map_with_path(
                lambda path, _: self._objective.trainable(parameter_name(path)), params
            )

        return optax.partition({True: optimizer, False: optax.set_to_zero()}, labels)

    def _optimizer_config(self) -> OptimizerConfig:
        found = self._config.optimizer_config()
        if self._config.budget_seconds is None:
            return found
        # The rate comes with the plan.
        return dataclasses.replace(
            found, schedule="wsd", learning_rate=1.0, warmup_steps=0, cooldown_steps=0
        )

    def _init(self, given: Any) -> TrainState:
        return self._init_with_seed(self._config.seed, given)

    def _init_with_seed(self, seed: Any, given: Any) -> TrainState:
        random = self._objective.init_params(jax.random.key(seed))
        params = merge_pretrained(random, given, self._config.reinit_layers)
        return init_state(params, self._sums, self._optimizer)

    @functools.cached_property
    def _sums(self) -> Sums:
        """Shapes of what the objective sums over a batch."""
        objective = self._objective

        def sums(params: Any, batch: Batch, constants: Any) -> Sums:
            return objective.sums(objective.apply(params, batch, None, constants), batch)

        batch, fixed = (
            objective.batch_shapes(objective.batch_size),
            jax.eval_shape(objective.constants),
        )
        return cast(Sums, jax.eval_shape(sums, self.init_shapes, batch, fixed))


def _shardings(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def _transpose_kernel(path: tuple[Any, ...], leaf: Any) -> Any:
    return leaf.T if "/kernel" in parameter_name(path) else leaf
