"""Progress of a run with a time budget: the fraction of its time that each step starts at.

Schedules read one number a step, `progress` in [0, 1]. All processes and every resumed run must
compute the same number, so it does not come from a clock directly. Process 0 reads the clock when
metrics are logged and appends a segment of linear progress to WORKDIR/budget.json. A segment is
written before any step uses it. A resumed run replays the segments of the file, so it repeats the
same progress, to the bit, as far as the file reaches.

Progress stays at 0 until the second reading, which measures the first duration of a step. The
clock counts the time in the training loop with evaluations and checkpoints. It does not count the
compilation before the loop, nor the time between two processes of a resumed run.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from etils import epath

from bertjax.mesh import distributed
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_value

BUDGET_FILE = "budget.json"
_MAX_SEGMENTS = 200  # in the whole budget, apart from those that follow short measurements
_MIN_MEASURED_STEPS = 8  # a segment that was measured over fewer steps is replaced early

_log = logging.getLogger("bertjax")


class Segment(NamedTuple):
    """Linear progress from one step on.

    Attributes:
      step: number of updates before the segment.
      progress: fraction of the time budget at that step.
      per_step: increase of progress a step; 0 while the duration of a step is unknown.
    """

    step: int
    progress: float
    per_step: float

    def at(self, step: int) -> float:
        """Return the progress after `step` updates."""
        return min(1.0, self.progress + (step - self.step) * self.per_step)


class TimeBudget:
    """Clock of a run and the record of its progress.

    Args:
      workdir: directory that holds budget.json.
      seconds: length of the run.
      confirm: called before the file is written; raises LockLostError if it is that of another run.

    Raises:
      InputError: budget.json cannot be read.
    """

    def __init__(
        self, workdir: epath.Path, seconds: float, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._path, self._seconds, self._confirm = workdir / BUDGET_FILE, seconds, confirm
        self._segments = _read_segments(self._path) or [Segment(0, 0.0, 0.0)]
        self._last_recorded_step = self._segments[-1].step  # replayed up to here
        self._measured_steps = _MIN_MEASURED_STEPS  # that the last segment comes from

    def start_clock(self, step: int) -> None:
        """Start the clock at the recorded progress of `step`."""
        elapsed = self.progress(step) * self._seconds
        self._start_time = time.monotonic() - elapsed
        self._last_reading = step, elapsed
        self._is_warm = False

    def progress(self, step: int) -> float:
        """Return the progress in [0, 1] after `step` updates."""
        return self._segment(step).at(step)

    def is_over(self, step: int) -> bool:
        """Return whether the run ends after `step` updates."""
        segment = self._segment(max(step - 1, 0))
        # The last step is the one whose end is closest to the end of the budget.
        return segment.per_step > 0 and segment.at(step) >= 1 - segment.per_step / 2

    def update(self, step: int) -> None:
        """Read the clock and, if it is time, add a segment that starts after `step` updates.

        All processes must call this after the same steps.
        """
        if step <= self._last_recorded_step:
            self.start_clock(step)
        if step <= max(self._segments[-1].step, self._last_reading[0]):
            return
        passed = time.monotonic() - self._start_time
        (hundredths,) = distributed.broadcast_from_process_0(lambda: [int(100 * passed)], 1)
        now, current = hundredths / 100, self._segment(step)
        last_step, last_time = self._last_reading
        if not current.per_step and not self._is_warm:  # the first step takes longer than others
            self._last_reading, self._is_warm = (step, now), True
            return
        is_measured = current.per_step > 0 and self._measured_steps >= _MIN_MEASURED_STEPS
        if is_measured and now - last_time < self._seconds / _MAX_SEGMENTS:
            return
        step_seconds = max(now - last_time, 0.01) / (step - last_step)
        remaining_steps = max(self._seconds - now, step_seconds) / step_seconds
        # Progress continues where it is, so no learning rate jumps. The slope corrects the error.
        progress = current.at(step) if current.per_step else min(now / self._seconds, 1.0)
        if not current.per_step and now >= self._seconds and distributed.is_process_0():
            _log.warning(
                "steps=%g seconds: the budget ended after %d steps, before the first learning rate "
                "above 0. Raise it.",
                self._seconds,
                step,
            )
        per_step = max(1 - progress, 1e-6) / remaining_steps
        self._segments.append(Segment(step, progress, per_step))
        self._last_reading, self._measured_steps = (step, now), step - last_step
        if distributed.is_process_0():
            self._confirm()
            atomic_write_text(self._path, json.dumps(self._segments))

    def _segment(self, step: int) -> Segment:
        """Return the segment of the update that follows `step` updates."""
        return next(segment for segment in reversed(self._segments) if segment.step <= step)


def _read_segments(path: epath.Path) -> list[Segment]:
    if not path.exists():
        return []
    segments = read_json_value(path, [[float]], "Use another --workdir.")
    if not all(len(segment) == 3 for segment in segments):
        raise InputError(f"{path}: not a budget file that a run wrote. Use another --workdir.")
    return [Segment(int(step), float(p), float(d)) for step, p, d in segments]
