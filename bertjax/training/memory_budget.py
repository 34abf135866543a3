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
from bertjax.mesh.memory import GIB, free_addresses, room, shard_bytes, short_of, size
from bertjax.mesh.sharding import row_parts
from bertjax.steps.objective import Objective
from bertjax.steps.step_functions import Programs
from bertjax.tasks import registry
from data_pipelines.errors import InputError

_TRIES = 3  # programs compiled in search of one that fits
_SPARE = 0.9  # of the room, which differs a little from run to run
_FRAGMENTS = 0.8  # of what did not find its room once, of which as much should
# Of addresses: a compiler that finds none ends the process without a word.
_COMPILING = 3 * GIB // 2
_log = logging.getLogger("bertjax")


class OutOfMemory(RunError):
    """Devices had no room left for what was computed."""


def smaller(config: Config, parts: int, for_cpu: bool) -> Iterator[tuple[str, Config]]:
    """Overrides that need less memory with what they give, the mildest first.

    A CPU is as fast with few rows at a time, and gains nothing by rematerialisation; other devices
    lose more by few rows than by that.

    Args:
      parts: into which the mesh splits rows; a part is left with a row at a time in the end.
    """
    text = ""
    if not for_cpu and not config.model.remat:
        text = "--config.model.remat=True"
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=True))
        yield text, config
    accumulation = 2 * config.accumulation
    while config.batch_size % (accumulation * parts) == 0:
        less = dataclasses.replace(config, accumulation=accumulation)
        yield f"{text} --config.accumulation={accumulation}".lstrip(), less
        accumulation *= 2


class Need:
    """What a run needs of its devices' memory.

    Of a CPU it counts a copy of the state, which is made for each checkpoint and kept while that is
    written.

    Args:
      runs: how many are trained at once.
    """

    def __init__(
        self, config: Config, objective: Objective, programs: Programs, runs: int = 1
    ) -> None:
        self._config, self._objective, self._programs = config, objective, programs
        self._tries = _TRIES if runs == jax.process_count() == 1 else 0
        self._devices = list(programs.mesh.devices.flat)
        self._for_cpu = self._devices[0].platform == "cpu"
        self._state = shard_bytes(programs.state)
        self._copy = self._state if self._for_cpu else 0

    @property
    def step(self) -> int:
        """Bytes of a device that a step takes, once it is compiled."""
        return self._programs.taken["train_step"] + self._copy

    def check_state(self) -> None:
        """Raises InputError where parameters and optimizer do not fit, or nothing would compile."""
        addresses = free_addresses() if self._for_cpu else None
        if addresses is not None and addresses < _COMPILING:
            raise InputError(
                f"`ulimit -v` leaves this process {size(addresses)} of addresses, and to compile "
                f"takes {size(_COMPILING)}, most of which are only reserved: raise it."
            )
        limit, needed = room(self._devices), self._state + self._copy
        if limit is not None and needed > limit:
            raise InputError(
                f"parameters and optimizer need {size(needed)} a device, and {size(limit)} are "
                "left there: take a smaller model, or more devices with --config.mesh.fsdp."
            )

    def check_step(self) -> str:
        """What the step that is compiled takes, for a person; the state is there already.

        Raises:
          InputError: it does not fit.
        """
        limit = self._room()
        if limit is not None and self.step > limit:
            raise InputError(
                f"a step needs {size(self.step)} a device, and {size(limit)} are left there: "
                f"{self.cure(_SPARE * limit)}"
            )
        return f"{size(self.step)} a device" + (f" of {size(limit)}" if limit else "")

    def check_evaluation(self) -> None:
        """Raises InputError where the evaluation that is compiled does not fit beside the state."""
        beside = shard_bytes(self._programs.state.opt_state) + self._copy
        check_evaluation(self._programs, self._objective, beside, self._room())

    def explain(self, error: BaseException) -> OutOfMemory | None:
        """What is to be said of an error in compiling or computing; None where it is another."""
        wanted = short_of(error)
        if wanted is None:
            return None
        needed = self._programs.taken.get("train_step", wanted) + self._copy
        limit = min(needed * _FRAGMENTS, room(self._devices) or needed)
        return OutOfMemory(
            f"memory does not suffice, {size(wanted)} could not be had of a device: "
            f"{self.cure(limit, needed)}"
        )

    def cure(self, limit: float, needed: int | None = None) -> str:
        """The rest of a sentence: what makes a step fit.

        Args:
          needed: by a step now; None for what its program says.
        """
        fixed = self._state + self._copy
        parameters = shard_bytes(self._programs.params)
        activations = (self.step if needed is None else needed) - fixed
        before, tries = self._config.accumulation, 0
        for text, config in smaller(self._config, row_parts(self._programs.mesh), self._for_cpu):
            share = before / config.accumulation
            # Gradients are there twice, those of a part and the sum, and do not shrink.
            expected = fixed + 3 * parameters + activations * share
            if share < 1 and expected > limit:
                continue
            if tries == self._tries:
                return f"by arithmetic {text} would fit; `bertjax preflight` tells."
            _log.info("looking for what fits: compiling with %s ...", text)
            tries += 1
            found = self._compiled(config)
            if found is None:
                continue
            if found <= limit:
                return f"with {text} it needs {size(found)}, and fits."
            activations, before = found - fixed, config.accumulation
        return (
            "a row at a time needs too much: take a shorter --config.seq_len, a smaller model, or "
            "more devices with --config.mesh.fsdp."
        )

    def _compiled(self, config: Config) -> int | None:
        """Bytes of a device that a step takes with another configuration; None for too many."""
        objective = registry.objective(config, self._objective.multiple)
        parts = row_parts(self._programs.mesh) * config.accumulation
        objective.rows = -(-self._objective.rows // parts) * parts
        programs = Programs(config, objective, self._devices)
        try:
            programs.train()
        except jax.errors.JaxRuntimeError as error:
            if short_of(error) is None:
                raise
            return None
        return programs.taken["train_step"] + self._copy

    def _room(self) -> int | None:
        """Bytes of a device for all there is, the state included, which the process has by now."""
        limit = room(self._devices)
        return limit + self._state if limit is not None and self._for_cpu else limit


def check_evaluation(
    programs: Programs, objective: Objective, beside: int = 0, limit: int | None = None
) -> None:
    """Refuses an evaluation that is compiled and does not fit.

    Args:
      beside: bytes of a device that are taken while it runs, and that it does not see.
      limit: bytes of a device; None for those that it tells of.
    Raises:
      InputError: naming rows that should fit.
    """
    needed = programs.taken.get("eval_step", 0) + beside
    limit = limit or room(list(programs.mesh.devices.flat))
    if limit is None or needed <= limit:
        return
    rows, parts, left = objective.eval_rows, row_parts(programs.mesh), needed
    while rows > parts and left > limit:
        rows, left = rows // 2, left // 2
    raise InputError(
        f"an evaluation needs {size(needed)} a device, and {size(limit)} are left there: "
        f"--config.eval_batch_size={max(rows // parts, 1) * parts} should fit."
    )
