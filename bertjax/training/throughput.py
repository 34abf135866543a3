"""Throughput of a run, and a profiler trace of some of its steps."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from bertjax.config.config import Config
from bertjax.mesh.feed import Feed
from bertjax.model import flops
from bertjax.steps.objective import Objective

_MAX_PAUSED_FRACTION = 0.3  # of the time, above which intervals should be longer
_MIN_OBSERVED_SECONDS = 120.0  # before that fraction is known
_STEPS_IN_FLIGHT = 2  # at most, on the devices, when the host reads the metrics of a step


class ThroughputMeter:
    """Throughput since the last reading, without evaluations and checkpoints.

    Args:
      objective: objective of one run.
      config: resolved configuration.
      mesh: the devices.
      feed: source of the batches; its waiting time is reported.
      step: step that the process starts from.
      num_runs: number of parallel runs; rates are those of all of them.
    """

    def __init__(
        self, objective: Objective, config: Config, mesh: Mesh, feed: Feed, step: int, num_runs: int
    ) -> None:
        self._first_step = self._step = step
        self._feed, self._rampup = feed, config.rampup
        # The next three are those of a step with the full batch.
        self._step_flops = num_runs * objective.step_flops()
        self._step_tokens = num_runs * objective.batch_size * config.max_seq_length
        self._step_batch, self._batch_unit = num_runs * config.batch_size, objective.batch_unit
        peak = flops.peak_flops(mesh.devices.flat[0].device_kind)
        self._peak_flops = None if peak is None else peak * mesh.size
        self._start_time, self._wait_seconds = time.perf_counter(), feed.wait_seconds
        self._first_time, self._paused, self._advised = self._start_time, 0.0, False

    @contextlib.contextmanager
    def pause(self, *, periodic: bool = True) -> Iterator[None]:
        """Exclude the time of the block; `advice` is about periodic pauses."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._start_time += seconds
        if periodic:
            self._paused += seconds

    def advice(self) -> str:
        """Return which intervals to raise if pauses take much of the time; once, otherwise ""."""
        elapsed = time.perf_counter() - self._first_time
        too_long = self._paused >= _MAX_PAUSED_FRACTION * elapsed
        if self._advised or elapsed < _MIN_OBSERVED_SECONDS or not too_long:
            return ""
        self._advised = True
        return (
            f"evaluations and checkpoints take {self._paused / elapsed:.0%} of the time: raise "
            "--config.eval_every and checkpoint_every, which may change when a run is resumed."
        )

    def read(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Return the rates of the steps since the last reading.

        Model FLOP utilization (`mfu`) is left out for devices with an unknown peak. All rates are
        left out for the first steps of a process: they may be over when the first is read, and the
        time between two readings is then none of theirs.

        Args:
          step: the last step, whose outputs are on the host.
          metrics: means over these steps.
        """
        now, rampup = time.perf_counter(), self._rampup
        sequences = rampup.sequences_before(step) - rampup.sequences_before(self._step)
        full_steps = sequences / rampup.batch_sizes[-1]
        seconds = now - self._start_time
        tokens = full_steps * self._step_tokens
        rates = {
            f"{self._batch_unit}_per_second": full_steps * self._step_batch / seconds,
            "tokens_per_second": tokens * metrics["nonpad_fraction"] / seconds,
            "input_wait_fraction": (self._feed.wait_seconds - self._wait_seconds) / seconds,
        }
        if self._peak_flops:
            rates["mfu"] = self._step_flops * full_steps / seconds / self._peak_flops
        self._step, self._start_time, self._wait_seconds = step, now, self._feed.wait_seconds
        return rates if step - self._first_step > _STEPS_IN_FLIGHT else {}


class Profiler:
    """A context manager that writes a profiler trace of a range of steps.

    The host runs ahead of the devices and waits for them at both ends. So the trace holds the
    device work of these steps, and of an evaluation between them.

    Args:
      steps: steps to trace; an empty range for none.
      directory: where the trace is written.
    """

    def __init__(self, steps: range, directory: epath.Path) -> None:
        self._steps, self._directory, self._running = steps, directory, False

    def before(self, step: int, state: Any) -> None:
        """Start the trace if `step` is in the range; call ahead of each step with its state."""
        if step in self._steps and not self._running:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._directory))
            self._running = True

    def after(self, step: int, state: Any) -> None:
        """Stop the trace if `step`, the next one, is past the range; call after each step."""
        if step not in self._steps and self._running:
            jax.block_until_ready(state)
            self._stop()

    def _stop(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
