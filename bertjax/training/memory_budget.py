"""Memory that does not suffice: known before the first step where devices tell what they have.

Each refusal names what is needed, what there is, and a change that was judged by compiling it, or
where that would take too long or several hosts would have to, by arithmetic.
"""

import dataclasses
import logging
from collections.abc import Iterator

import jax

from bertjax.config.config import Config
from bertjax.errors import RunError
from bertjax.mesh.memory import (
    GIB,
    device_memory_limit,
    failed_allocation_bytes,
    format_bytes,
    free_address_space,
    shard_bytes,
)
from bertjax.mesh.sharding import num_batch_shards
from bertjax.steps.objective import Objective
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from data_pipelines.errors import InputError

_MAX_COMPILATIONS = 3  # programs compiled in search of one that fits
_USABLE_FRACTION = 0.9  # of the room, which differs a little from run to run
_FRAGMENTATION_FACTOR = 0.8  # of what did not find its room once, of which as much should
# Of addresses: a compiler that finds none ends the process without a word.
_COMPILE_ADDRESS_BYTES = 3 * GIB // 2
_log = logging.getLogger("bertjax")


class OutOfMemoryError(RunError):
    """Devices had no room left for what was computed."""


def smaller(config: Config, parts: int, is_traced_for_cpu: bool) -> Iterator[tuple[str, Config]]:
    """Overrides that need less memory with what they give, the mildest first.

    A CPU is as fast with few rows at a time, and gains nothing by rematerialisation; other devices
    lose more by few rows than by that.

    Args:
      parts: into which the mesh splits rows; a part is left with a row at a time in the end.
    """
    text = ""
    if not is_traced_for_cpu and not config.model.remat:
        text = "--config.model.remat=True"
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=True))
        yield text, config
    gradient_accumulation_steps = 2 * config.gradient_accumulation_steps
    while config.batch_size % (gradient_accumulation_steps * parts) == 0:
        less = dataclasses.replace(config, gradient_accumulation_steps=gradient_accumulation_steps)
        yield (
            f"{text} --config.gradient_accumulation_steps={gradient_accumulation_steps}".lstrip(),
            less,
        )
        gradient_accumulation_steps *= 2


class MemoryBudget:
    """What a run needs of its devices' memory.

    Of a CPU it counts a copy of the state, which is made for each checkpoint and kept while that is
    written.

    Args:
      runs: how many are trained at once.
    """

    def __init__(
        self, config: Config, objective: Objective, programs: AnyStepFunctions, runs: int = 1
    ) -> None:
        self._config, self._objective, self._step_functions = config, objective, programs
        self._tries = _MAX_COMPILATIONS if runs == jax.process_count() == 1 else 0
        self._devices = list(programs.mesh.devices.flat)
        self._for_cpu = self._devices[0].platform == "cpu"
        self._state_bytes = shard_bytes(programs.state_shapes)
        self._copy_bytes = self._state_bytes if self._for_cpu else 0

    @property
    def step_bytes(self) -> int:
        """Bytes of a device that a step takes, once it is compiled."""
        return self._step_functions.memory_bytes["train_step"] + self._copy_bytes

    def check_state(self) -> None:
        """Raises InputError where parameters and optimizer do not fit, or nothing would compile."""
        addresses = free_address_space() if self._for_cpu else None
        if addresses is not None and addresses < _COMPILE_ADDRESS_BYTES:
            raise InputError(
                f"`ulimit -v` leaves this process {format_bytes(addresses)} of addresses, and to compile "
                f"takes {format_bytes(_COMPILE_ADDRESS_BYTES)}, most of which are only reserved: raise it."
            )
        limit, needed = device_memory_limit(self._devices), self._state_bytes + self._copy_bytes
        if limit is not None and needed > limit:
            raise InputError(
                f"parameters and optimizer need {format_bytes(needed)} a device, and {format_bytes(limit)} are "
                "left there: take a smaller model, or more devices with --config.mesh.fsdp."
            )

    def check_step(self) -> str:
        """What the step that is compiled takes, for a person; the state is there already.

        Raises:
          InputError: it does not fit.
        """
        limit = self._device_limit()
        if limit is not None and self.step_bytes > limit:
            raise InputError(
                f"a step needs {format_bytes(self.step_bytes)} a device, and {format_bytes(limit)} are left there: "
                f"{self.suggest_fix(_USABLE_FRACTION * limit)}"
            )
        return f"{format_bytes(self.step_bytes)} a device" + (
            f" of {format_bytes(limit)}" if limit else ""
        )

    def check_evaluation(self) -> None:
        """Raises InputError where the evaluation that is compiled does not fit beside the state."""
        reserved_bytes = shard_bytes(self._step_functions.state_shapes.opt_state) + self._copy_bytes
        check_evaluation(
            self._step_functions, self._objective, reserved_bytes, self._device_limit()
        )

    def explain(self, error: BaseException) -> OutOfMemoryError | None:
        """What is to be said of an error in compiling or computing; None where it is another."""
        wanted = failed_allocation_bytes(error)
        if wanted is None:
            return None
        needed = self._step_functions.memory_bytes.get("train_step", wanted) + self._copy_bytes
        limit = min(needed * _FRAGMENTATION_FACTOR, device_memory_limit(self._devices) or needed)
        return OutOfMemoryError(
            f"memory does not suffice, {format_bytes(wanted)} could not be had of a device: "
            f"{self.suggest_fix(limit, needed)}"
        )

    def suggest_fix(self, limit: float, needed: int | None = None) -> str:
        """The rest of a sentence: what makes a step fit.

        Args:
          needed: by a step now; None for what its program says.
        """
        fixed = self._state_bytes + self._copy_bytes
        parameters = shard_bytes(self._step_functions.param_shapes)
        activations = (self.step_bytes if needed is None else needed) - fixed
        before, tries = self._config.gradient_accumulation_steps, 0
        for text, config in smaller(
            self._config, num_batch_shards(self._step_functions.mesh), self._for_cpu
        ):
            share = before / config.gradient_accumulation_steps
            # Gradients are there twice, those of a part and the sum, and do not shrink.
            expected = fixed + 3 * parameters + activations * share
            if share < 1 and expected > limit:
                continue
            if tries == self._tries:
                return f"by arithmetic {text} would fit; `bertjax preflight` tells."
            _log.info("looking for what fits: compiling with %s ...", text)
            tries += 1
            found = self._step_bytes_with(config)
            if found is None:
                continue
            if found <= limit:
                return f"with {text} it needs {format_bytes(found)}, and fits."
            activations, before = found - fixed, config.gradient_accumulation_steps
        return (
            "a row at a time needs too much: take a shorter --config.max_seq_length, a smaller model, or "
            "more devices with --config.mesh.fsdp."
        )

    def _step_bytes_with(self, config: Config) -> int | None:
        """Bytes of a device that a step takes with another configuration; None for too many."""
        objective = registry.make_objective(config, self._objective.batch_size_multiple)
        parts = num_batch_shards(self._step_functions.mesh) * config.gradient_accumulation_steps
        objective.batch_size = -(-self._objective.batch_size // parts) * parts
        programs = StepFunctions(config, objective, self._devices)
        try:
            programs.compile_train_step()
        except jax.errors.JaxRuntimeError as error:
            if failed_allocation_bytes(error) is None:
                raise
            return None
        return programs.memory_bytes["train_step"] + self._copy_bytes

    def _device_limit(self) -> int | None:
        """Bytes of a device for all there is, the state included, which the process has by now."""
        limit = device_memory_limit(self._devices)
        return limit + self._state_bytes if limit is not None and self._for_cpu else limit


def check_evaluation(
    programs: AnyStepFunctions,
    objective: Objective,
    reserved_bytes: int = 0,
    limit: int | None = None,
) -> None:
    """Refuses an evaluation that is compiled and does not fit.

    Args:
      beside: bytes of a device that are taken while it runs, and that it does not see.
      limit: bytes of a device; None for those that it tells of.

    Raises:
      InputError: naming rows that should fit.
    """
    needed = programs.memory_bytes.get("eval_step", 0) + reserved_bytes
    limit = limit or device_memory_limit(list(programs.mesh.devices.flat))
    if limit is None or needed <= limit:
        return
    rows, parts, left = objective.eval_batch_size, num_batch_shards(programs.mesh), needed
    while rows > parts and left > limit:
        rows, left = rows // 2, left // 2
    raise InputError(
        f"an evaluation needs {format_bytes(needed)} a device, and {format_bytes(limit)} are left there: "
        f"--config.eval_batch_size={max(rows // parts, 1) * parts} should fit."
    )
