"""When something is due, by steps or by the clock of the first host."""

import time

from bertjax.config.config import Config
from bertjax.mesh import distributed


class Cadence:
    """Asked once a step on all hosts.

    What is due needs all hosts after the same step, and their clocks do not agree. To ask the first
    one is a collective, for which every device waits: so it is asked when metrics are logged, which
    waits for the devices anyhow, and not after each step.

    Args:
      name: the field that says how often: "checkpoint_every" or "eval_every".
    """

    def __init__(self, config: Config, name: str) -> None:
        self._every, self._seconds = getattr(config, name), config.interval_seconds(name)
        self._log_every = int(config.log_every)
        self._start_time = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether it is time after this step."""
        if self._seconds is None:
            return step % int(self._every) == 0
        if step % self._log_every:
            return False
        passed = time.monotonic() - self._start_time >= self._seconds
        (due,) = distributed.broadcast_from_process_0(lambda: [passed], 1)
        if due:
            self._start_time = time.monotonic()
        return bool(due)
