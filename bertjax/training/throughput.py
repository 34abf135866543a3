"""What is measured of a run while it trains: its speed, and a profiler's trace of some steps."""

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

_MAX_PAUSED_FRACTION, _MIN_OBSERVED_SECONDS = (
    0.3,
    120.0,
)  # of the time; seconds after which it is known


class ThroughputMeter:
    """Speed since it was last read, leaving out evaluation and saving.

    Args:
      step: at which the run begins.
      runs: how many are trained at once; speeds are those of all of them.
    """

    def __init__(
        self,
        objective: Objective,
        config: Config,
        mesh: Mesh,
        feed: Feed,
        step: int,
        runs: int = 1,
    ) -> None:
        self._step, self._feed, self._rampup = step, feed, config.rampup
        # Of a step that is as large as the last one.
        self._flops = runs * objective.step_flops()
        self._tokens = runs * objective.batch_size * config.max_seq_length
        self._sequences = runs * config.batch_size
        peak = flops.peak_flops(mesh.devices.flat[0].device_kind)
        self._peak = None if peak is None else peak * mesh.size
        self._start_time, self._waited = time.perf_counter(), feed.wait_seconds
        self._first, self._paused, self._advised = self._start_time, 0.0, False

    @contextlib.contextmanager
    def pause(self, *, periodic: bool = True) -> Iterator[None]:
        """Time inside does not count; `advice` is about what is periodic of it."""
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self._start_time += took
        if periodic:
            self._paused += took

    def advice(self) -> str:
        """What to change where little of the time goes into training; once, and otherwise ""."""
        passed = time.perf_counter() - self._first
        if (
            self._advised
            or passed < _MIN_OBSERVED_SECONDS
            or self._paused < _MAX_PAUSED_FRACTION * passed
        ):
            return ""
        self._advised = True
        return (
            f"{self._paused / passed:.0%} of the time goes into evaluations and checkpoints: "
            "raise --config.eval_every and checkpoint_every, which a run that goes on may change."
        )

    def read(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """Rates from the step of the last call to `step`, whose outputs are on the host now; no
        utilisation of devices whose peak is not known.

        Args:
          values: the means of these steps.
        """
        now, rows = (
            time.perf_counter(),
            self._rampup.sequences_before(step) - self._rampup.sequences_before(self._step),
        )
        steps = rows / self._rampup.batch_sizes[-1]
        seconds = now - self._start_time
        rates = {
            "sequences_per_second": steps * self._sequences / seconds,
            "tokens_per_second": steps * self._tokens * values["nonpad_fraction"] / seconds,
            "input_wait_fraction": (self._feed.wait_seconds - self._waited) / seconds,
        }
        if self._peak:
            rates["mfu"] = self._flops * steps / seconds / self._peak
        self._step, self._start_time, self._waited = step, now, self._feed.wait_seconds
        return rates


class Profiler:
    """A profiler's trace of the steps in a range; none for an empty one.

    The host runs ahead of the devices, so it waits for them at both ends: the trace holds what they
    do for these steps, and an evaluation where one falls between them.
    """

    def __init__(self, steps: range, directory: epath.Path) -> None:
        self._steps, self._directory, self._running = steps, directory, False

    def before(self, step: int, state: Any) -> None:
        """Call ahead of each step, with the state that it begins with."""
        if step in self._steps and not self._running:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._directory))
            self._running = True

    def after(self, step: int, state: Any) -> None:
        """Call after each step, with the number of the next and the state that it begins with."""
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
