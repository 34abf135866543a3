"""Evaluations and checkpoints that are due, by steps or by the clock of process 0."""

import time

from bertjax.config.config import Config
from bertjax.mesh import distributed


class Cadence:
    """Interval of evaluations or checkpoints; all processes ask after every step.

    With an interval in seconds process 0 decides for all, because clocks differ. Its answer is a
    collective that waits for the devices. It is asked for only when metrics are logged, which waits
    for the devices anyway.

    Args:
      config: resolved configuration.
      name: field of the interval, "checkpoint_every" or "eval_every".
    """

    def __init__(self, config: Config, name: str) -> None:
        self._steps, self._seconds = getattr(config, name), config.interval_seconds(name)
        self._log_every = int(config.log_every)
        self._last_due = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether the interval ends after a step."""
        if self._seconds is None:
            return step % int(self._steps) == 0
        if step % self._log_every:
            return False
        passed = time.monotonic() - self._last_due >= self._seconds
        (due,) = distributed.broadcast_from_process_0(lambda: [passed], 1)
        if due:
            self._last_due = time.monotonic()
        return bool(due)
