"""Replay of a step: gradients that are computed twice must have the same bits.

A device that computes wrongly now and then corrupts a run without an error (Hochschild et al. 2021,
"Cores that don't count"). Here each device computes the gradient of its own sequences, without an
exchange that would spread an error, so a difference names the device. The train step is another
program: it stays as it is.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from bertjax.errors import CorruptionError
from bertjax.mesh import distributed
from bertjax.mesh.feed import Batch
from bertjax.steps.parallel_runs import AnyStepFunctions, ParallelStepFunctions
from bertjax.steps.train_step import TrainState
from data_pipelines.errors import InputError

_GPU_FLAG = "--xla_gpu_deterministic_ops=true"


class Replay:
    """Check of every n-th step before its update.

    Args:
      every: the interval in steps; 0 for none.
      step_functions: those of the run.

    Raises:
      InputError: the run cannot be replayed.
    """

    def __init__(self, every: int, step_functions: AnyStepFunctions) -> None:
        self._every, self._step_functions = every, step_functions
        self._compiled: dict[int, Callable[..., Array]] = {}
        platform = step_functions.mesh.devices.flat[0].platform
        if every and isinstance(step_functions, ParallelStepFunctions):
            raise InputError(
                f"replay_every={every}: a sweep trains several runs in parallel. Leave it out, or "
                "train one of them alone."
            )
        if every and platform == "gpu" and _GPU_FLAG not in os.environ.get("XLA_FLAGS", "").split():
            raise InputError(
                f"replay_every={every}: GPUs add in any order, so gradients differ anyway. Set "
                f"XLA_FLAGS={_GPU_FLAG}, or leave it out."
            )

    def compile(self, batch_size: int) -> None:
        """Compile the replay of a batch size, unless it was compiled or there is no replay."""
        if self._every and batch_size not in self._compiled:
            assert not isinstance(self._step_functions, ParallelStepFunctions)
            self._compiled[batch_size] = self._step_functions.compile_replay_step(batch_size)

    def check(self, step: int, state: TrainState, batch: Batch, constants: Any) -> None:
        """Compute the gradients of a step twice if it is due.

        Args:
          step: number of updates after the step.
          state: the state before it.
          batch: its batch.
          constants: arrays that are not trained.

        Raises:
          CorruptionError: they differ; every process names the devices.
        """
        if not self._every or step % self._every:
            return
        batch_size = len(next(iter(batch.values())))
        self.compile(batch_size)
        replay = self._compiled[batch_size]
        digests = [replay(state.params, state.step, batch, constants) for _ in range(2)]
        shards = zip(*(array.addressable_shards for array in digests), strict=True)
        wrong = [
            first.device.id if np.asarray(first.data) != np.asarray(second.data) else -1
            for first, second in shards
        ]
        devices = [
            f"device {device} of process {process}"
            for process, ids in enumerate(distributed.gather_from_processes(wrong))
            for device in ids
            if device >= 0
        ]
        if devices:
            raise CorruptionError(
                f"step {step}: two computations of the gradient differ on {', '.join(devices)}, "
                "which is silent data corruption. Replace the hardware, and resume from a "
                "checkpoint before the first doubt."
            )
