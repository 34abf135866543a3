"""Evaluations and checkpoints that are due, and the end of a run that no longer improves."""

import time

from bertjax.config.config import Config
from bertjax.mesh import distributed
from data_pipelines.errors import InputError


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


class EarlyStopping:
    """End of a run whose best score is `early_stopping` evaluations old.

    It follows from the steps of the evaluations and of the best checkpoint alone, so that a resumed
    run ends at the same step.

    Args:
      config: resolved configuration.

    Raises:
      InputError: there is no score to improve, or evaluations follow the clock.
    """

    def __init__(self, config: Config) -> None:
        self._patience, self._interval = config.early_stopping, 0
        if not self._patience:
            return
        if not config.best_metric:
            raise InputError(
                f"early_stopping={self._patience}: there is no score to improve. Set best_metric."
            )
        if config.interval_seconds("eval_every") is not None:
            raise InputError(
                f"eval_every={config.eval_every!r}: early_stopping counts evaluations by steps. "
                "Set a number of steps, or a percentage."
            )
        self._interval = int(config.eval_every)

    def is_over(self, step: int, best_step: int) -> bool:
        """Return whether the run ends after a step.

        Args:
          step: number of updates so far.
          best_step: step of the best checkpoint, 0 without one.
        """
        if not self._patience:
            return False
        return step // self._interval - best_step // self._interval >= self._patience
