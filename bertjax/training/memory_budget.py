"""Memory budget: runs that exceed the device memory are rejected with a suggested fix.

Where devices report their memory this happens before the first step. A suggested fix was compiled,
or computed by arithmetic where compilation would take too long or involves several processes.
"""

import dataclasses
import logging
from collections.abc import Iterator

import jax

from bertjax.config.config import Config
from bertjax.errors import CommandError
from bertjax.mesh.device_mesh import num_batch_shards
from bertjax.mesh.memory import (
    GIB,
    device_memory_limit,
    failed_allocation_bytes,
    format_bytes,
    free_address_space,
    shard_bytes,
)
from bertjax.steps.objective import Objective
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from data_pipelines.errors import InputError

_MAX_COMPILATIONS = 3  # step functions compiled in search of a fix
_USABLE_FRACTION = 0.9  # of the limit, which differs a little between runs
_FRAGMENTATION_FACTOR = 0.8  # of the memory of a step that once found no space
_COMPILE_ADDRESS_BYTES = 3 * GIB // 2  # XLA ends the process without a message if it gets less
_log = logging.getLogger("bertjax")


class OutOfMemoryError(CommandError):
    """The devices ran out of memory."""


def memory_fixes(config: Config, num_shards: int, is_cpu: bool) -> Iterator[tuple[str, Config]]:
    """Yield overrides that need less memory, with their configurations, the mildest first.

    Microbatches cost a CPU no speed, and rematerialization does. On other devices small
    microbatches cost more.

    Args:
      config: resolved configuration.
      num_shards: shards of a batch; the last fix leaves each with one sequence at a time.
      is_cpu: whether the devices are CPUs.
    """
    override = ""
    if not is_cpu and not config.model.remat and config.model.encoder == "transformer":
        override = "--config.model.remat=True "
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=True))
        yield override.rstrip(), config
    steps, per_shard = config.gradient_accumulation_steps, config.batch_size // num_shards
    for divisor in range(2, per_shard + 1):
        if per_shard % divisor == 0 and divisor >= 2 * steps:  # half as many at a time, or fewer
            steps = divisor
            fixed = dataclasses.replace(config, gradient_accumulation_steps=steps)
            yield f"{override}--config.gradient_accumulation_steps={steps}", fixed


class MemoryBudget:
    """Device memory that a run needs and has.

    On CPUs it includes the copy of the state that each checkpoint is written from.

    Args:
      config: resolved configuration.
      objective: objective of one run.
      step_functions: their `memory_bytes` are read.
      num_runs: number of parallel runs.
    """

    def __init__(
        self, config: Config, objective: Objective, step_functions: AnyStepFunctions, num_runs: int
    ) -> None:
        self._config, self._objective, self._step_functions = config, objective, step_functions
        self._max_compilations = _MAX_COMPILATIONS if num_runs == jax.process_count() == 1 else 0
        self._devices = list(step_functions.mesh.devices.flat)
        self._is_cpu = self._devices[0].platform == "cpu"
        self._state_bytes = shard_bytes(step_functions.state_shapes)
        # Arrays that only the train step reads, such as a teacher, stay during an evaluation.
        self._constant_bytes = shard_bytes(step_functions.train_constant_shapes) - shard_bytes(
            step_functions.constant_shapes
        )
        self._copy_bytes = self._state_bytes if self._is_cpu else 0

    @property
    def step_bytes(self) -> int:
        """Bytes per device of the compiled train step, or of its replay if that takes more."""
        programs = self._step_functions.memory_bytes
        moments = shard_bytes(self._step_functions.state_shapes.opt_state)
        replay_bytes = programs.get("replay_step", -moments) + moments  # parameters are arguments
        return max(programs["train_step"], replay_bytes) + self._copy_bytes

    def check_state(self) -> None:
        """Check that parameters and optimizer state fit, and that compilation is possible.

        Raises:
          InputError: they do not fit, or too little address space is left.
        """
        addresses = free_address_space() if self._is_cpu else None
        if addresses is not None and addresses < _COMPILE_ADDRESS_BYTES:
            raise InputError(
                f"`ulimit -v` leaves {format_bytes(addresses)} of address space, and XLA "
                f"compilation reserves {format_bytes(_COMPILE_ADDRESS_BYTES)}. Raise the limit."
            )
        limit, needed = device_memory_limit(self._devices), self._state_bytes + self._copy_bytes
        if limit is not None and needed > limit:
            raise InputError(
                f"parameters and optimizer need {format_bytes(needed)} a device, of which "
                f"{format_bytes(limit)} are free. Use a smaller model, or more devices with "
                "--config.mesh.fsdp."
            )

    def check_step(self) -> str:
        """Return the memory of the compiled train step as text; the state is on the devices.

        Raises:
          InputError: the step does not fit.
        """
        limit, needed = self._device_limit(), format_bytes(self.step_bytes)
        if limit is not None and self.step_bytes > limit:
            raise InputError(
                f"a step needs {needed} a device, of which {format_bytes(limit)} are free. "
                f"{self.suggest_fix(_USABLE_FRACTION * limit, self.step_bytes)}"
            )
        return f"{needed} a device" + (f" of {format_bytes(limit)}" if limit else "")

    def check_evaluation(self) -> None:
        """Raise InputError if the compiled eval step does not fit beside the training state."""
        reserved = shard_bytes(self._step_functions.state_shapes.opt_state) + self._copy_bytes
        reserved += self._constant_bytes
        check_evaluation(self._step_functions, self._objective, reserved, self._device_limit())

    def explain(self, error: BaseException) -> OutOfMemoryError | None:
        """Return the error with a suggested fix if a device ran out of memory, else None."""
        failed_bytes = failed_allocation_bytes(error)
        if failed_bytes is None:
            return None
        step_bytes = self._step_functions.memory_bytes.get("train_step", failed_bytes)
        needed = step_bytes + self._copy_bytes
        limit = min(needed * _FRAGMENTATION_FACTOR, device_memory_limit(self._devices) or needed)
        return OutOfMemoryError(
            f"out of memory: allocating {format_bytes(failed_bytes)} on a device failed. "
            f"{self.suggest_fix(limit, needed)}"
        )

    def suggest_fix(self, limit: float, needed: int) -> str:
        """Return a sentence with overrides that make a step fit.

        Args:
          limit: bytes per device that a step may take.
          needed: bytes per device that it takes now.
        """
        fixed_bytes = self._state_bytes + self._copy_bytes + self._constant_bytes
        param_bytes = shard_bytes(self._step_functions.param_shapes)
        activations = needed - fixed_bytes
        # Gradients do not shrink: those of a microbatch and their sum are there together.
        least_bytes = fixed_bytes + 3 * param_bytes
        before, compilations, untested = self._config.gradient_accumulation_steps, 0, ""
        shards = num_batch_shards(self._step_functions.mesh)
        for override, config in memory_fixes(self._config, shards, self._is_cpu):
            fraction = before / config.gradient_accumulation_steps
            is_remat_alone = fraction == 1
            if is_remat_alone and not self._max_compilations:  # no estimate of what it saves
                untested = override if least_bytes < limit else ""
                continue
            if not is_remat_alone and least_bytes + activations * fraction > limit:
                untested = override if untested else ""
                continue
            if compilations == self._max_compilations:
                return f"An estimate fits with {override}; check it with `bertjax preflight`."
            _log.info("searching a fix: compiling with %s ...", override)
            compilations += 1
            step_bytes = self._compile_step_bytes(config)
            if step_bytes is None:
                continue
            if step_bytes <= limit:
                return f"It fits with {override}, which needs {format_bytes(step_bytes)}."
            activations, before = step_bytes - fixed_bytes, config.gradient_accumulation_steps
        if untested:
            return f"Try {untested}; check it with `bertjax preflight`."
        return (
            "Even one sequence at a time does not fit: use a shorter --config.max_seq_length, a "
            "smaller model, or more devices with --config.mesh.fsdp."
        )

    def _compile_step_bytes(self, config: Config) -> int | None:
        """Return the bytes per device of a step with a configuration; None for too many."""
        objective = registry.make_objective(config, self._objective.batch_size_multiple)
        parts = num_batch_shards(self._step_functions.mesh) * config.gradient_accumulation_steps
        objective.batch_size = -(-self._objective.batch_size // parts) * parts
        train_objective = registry.make_train_objective(config, objective)
        step_functions = StepFunctions(config, train_objective, self._devices)
        try:
            step_functions.compile_train_step()
        except jax.errors.JaxRuntimeError as error:
            if failed_allocation_bytes(error) is None:
                raise
            return None
        return step_functions.memory_bytes["train_step"] + self._copy_bytes

    def _device_limit(self) -> int | None:
        """Return the bytes per device for everything; a CPU's process has the state already."""
        limit = device_memory_limit(self._devices)
        return limit + self._state_bytes if limit is not None and self._is_cpu else limit


def check_evaluation(
    step_functions: AnyStepFunctions,
    objective: Objective,
    reserved_bytes: int = 0,
    limit: int | None = None,
) -> None:
    """Check that the compiled eval step fits.

    Args:
      step_functions: their `memory_bytes` are read.
      objective: the objective.
      reserved_bytes: bytes per device in use beside its arguments.
      limit: bytes per device; by default those that the devices report.

    Raises:
      InputError: the eval step does not fit; the fix is an estimate.
    """
    needed = step_functions.memory_bytes.get("eval_step", 0) + reserved_bytes
    limit = limit or device_memory_limit(list(step_functions.mesh.devices.flat))
    if limit is None or needed <= limit:
        return
    shards = num_batch_shards(step_functions.mesh)
    batch_size, estimate = objective.eval_batch_size, needed
    while batch_size > shards and estimate > limit:
        batch_size, estimate = batch_size // 2, estimate // 2
    fitting = max(batch_size // shards, 1) * shards
    raise InputError(
        f"eval_batch_size={objective.eval_batch_size}: an evaluation needs "
        f"{format_bytes(needed)} a device, of which {format_bytes(limit)} are free. "
        f"Use --config.eval_batch_size={fitting}."
    )
