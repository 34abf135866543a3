"""A run that ends by the clock: how far it is at each step, and which step is its last.

A program cannot look at a clock, and hosts must not disagree. So the first host makes plans: from
some step on the run is at some tick of `TICKS`, and each step takes so many. A new plan is made
when metrics are logged and enough time has passed. Plans are kept in WORKDIR/budget.json before
they are followed, and a run that goes on from a checkpoint follows them as far as they go: what was
trained by them is trained again to the same bytes.

Until the first plan is made, at the second look, the run stays at tick 0; it begins with the part
of the time that has passed by then. What counts is the time in the train loop, evaluations and
saving with it, and neither what is compiled before it nor what passes while a run is stopped.
"""

import json
import logging
import time

from etils import epath

from bertjax.config.durations import TICKS
from bertjax.mesh import distributed
from bertjax.steps.schedules import Plan
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

BUDGET_FILE = "budget.json"
_MAX_PLANS = 200  # in the whole time, at most, but for the first ones
_MIN_STEPS_PER_PLAN = 8  # steps that tell how long one takes; a plan from fewer is soon replaced

_log = logging.getLogger("bertjax")


class TimeBudget:
    """The plans of a run.

    Args:
      seconds: of the whole run.
    Raises:
      InputError: the file in the workdir is not what a run wrote.
    """

    def __init__(self, workdir: epath.Path, seconds: float) -> None:
        self._path, self._seconds = workdir / BUDGET_FILE, seconds
        self._plans = _read(self._path) or [Plan(0, 0.0, 0.0)]
        self._last_known_step = self._plans[-1].step  # by the run that this one goes on from
        self._measured_steps = _MIN_STEPS_PER_PLAN  # steps that the last plan was made from

    def begin(self, step: int) -> None:
        """Starts the clock, at what the plans say of the time after `step` updates."""
        passed = self.share(step) * self._seconds
        self._start_time = time.monotonic() - passed
        self._last_reading = step, passed  # when the clock was read last for a plan
        self._warmed_up = False

    def plan(self, step: int) -> Plan:
        """The one that holds for the update that comes after `step` updates."""
        return next(plan for plan in reversed(self._plans) if plan.step <= step)

    def share(self, step: int) -> float:
        """Of the time, after `step` updates."""
        return min(1.0, float(self.plan(step).at(step)) / TICKS)

    def is_over(self, step: int) -> bool:
        """Whether the run ends after `step` updates."""
        plan = self.plan(max(step - 1, 0))
        return bool(plan.pace) and step >= plan.step + max(
            1, round((TICKS - plan.tick) / plan.pace)
        )

    def update(self, step: int) -> None:
        """Makes a new plan for what comes after `step` updates, if it is time; on all hosts."""
        if step <= self._last_known_step:
            self.begin(step)
        if step <= max(self._plans[-1].step, self._last_reading[0]):
            return
        passed = time.monotonic() - self._start_time
        (hundredths,) = distributed.broadcast_from_process_0(lambda: [int(100 * passed)], 1)
        now, before, (since, then) = hundredths / 100, self.plan(step), self._last_reading
        if not before.pace and not self._warmed_up:  # the first step is like no other
            self._last_reading, self._warmed_up = (step, now), True
            return
        if (
            before.pace
            and self._measured_steps >= _MIN_STEPS_PER_PLAN
            and now - then < self._seconds / _MAX_PLANS
        ):
            return
        each = max(now - then, 0.01) / (step - since)  # seconds of a step
        steps = max(self._seconds - now, each) / each
        # The tick goes on from where it is, so that no rate leaps; the pace makes up for it.
        tick = float(before.at(step) if before.pace else min(now / self._seconds, 1.0) * TICKS)
        if not before.pace and now >= self._seconds and distributed.is_process_0():
            _log.warning(
                "the time of the run, %g s, was over after %d steps, before it had a rate to learn "
                "at: give it more.",
                self._seconds,
                step,
            )
        self._plans.append(Plan(step, tick, max(TICKS - tick, 1.0) / steps))
        self._last_reading, self._measured_steps = (step, now), step - since
        if distributed.is_process_0():
            atomic_write_text(self._path, json.dumps(self._plans))


def _read(path: epath.Path) -> list[Plan]:
    if not path.exists():
        return []
    try:
        return [Plan(int(s), float(t), float(p)) for s, t, p in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is not what a run wrote ({error}): begin with another --workdir."
        ) from error
