"""Evaluations and checkpoints that are due, and the end of a run that no longer improves."""

import time

from etils import epath

from bertjax.config.config import Config
from bertjax.mesh import distributed
from bertjax.training.metrics_file import metrics_path, read_metrics
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

    A resumed run counts the evaluations that metrics.jsonl has since the best checkpoint, and so
    ends at the same step. `eval_every` may have changed: evaluations are counted, not steps.

    Args:
      config: resolved configuration.

    Raises:
      InputError: there is no score to improve, or evaluations follow the clock.
    """

    def __init__(self, config: Config) -> None:
        self._patience, self._num_since_best = config.early_stopping, 0
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

    def resume(self, workdir: epath.Path, step: int, best_step: int) -> None:
        """Count the evaluations since the best checkpoint; process 0 reads them for all.

        Without a best checkpoint none is counted: `best_metric` may be new, and no checkpoint may
        have that score.

        Args:
          workdir: directory of the run.
          step: number of updates that the run resumes from.
          best_step: step of the best checkpoint, 0 without one.
        """
        if not best_step:
            return

        def count() -> list[int]:
            lines = read_metrics(workdir) if metrics_path(workdir).exists() else []
            steps = {line["step"] for line in lines if line["split"] == "eval"}
            return [sum(best_step < evaluated <= step for evaluated in steps)]

        (self._num_since_best,) = distributed.broadcast_from_process_0(count, 1)

    def add(self, is_best: bool) -> None:
        """Count an evaluation; `is_best` is whether its score is the best so far."""
        self._num_since_best = 0 if is_best else self._num_since_best + 1

    @property
    def is_over(self) -> bool:
        """True if the run ends."""
        return bool(self._patience) and self._num_since_best >= self._patience
