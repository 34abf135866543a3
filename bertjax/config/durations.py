"""Durations and intervals: steps, epochs, examples, percent of the run, or times."""

import math
import re
from fractions import Fraction

from data_pipelines.errors import InputError

# A number of steps, or text: "200 steps", "3 epochs", "5000 examples", "10%" of the run. `steps`,
# `eval_every` and `checkpoint_every` may also be a time: "30 minutes", "2 hours". So may
# `keep_period` if `steps` is one.
Duration = int | str

MAX_STEPS = (1 << 31) - 1  # int32 counts them on devices
SECONDS_PER_UNIT = {"second": 1, "minute": 60, "hour": 3600}
_UNITS = "%|percent|steps?|epochs?|examples?|seconds?|minutes?|hours?|h"
_DURATION = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({_UNITS})\s*")


def parse_duration(name: str, value: Duration) -> tuple[float, str]:
    """Return a duration as a number and a unit.

    The unit is "step", "epoch", "example", "%" or a key of `SECONDS_PER_UNIT`.

    Raises:
      InputError: the value of the field `name` is not a duration.
    """
    if isinstance(value, int):
        _check_size(name, value, value)
        return value, "step"
    match = _DURATION.fullmatch(value)
    if not match:
        raise InputError(
            f"{name}={value!r}: not a duration. Use a form such as 200, '3 epochs', "
            "'5000 examples', '2 hours' or '10%'."
        )
    _check_size(name, value, float(match[1]))
    unit = {"percent": "%", "h": "hour"}.get(match[2], match[2].rstrip("s"))
    return float(match[1]), unit


def _check_size(name: str, value: Duration, number: float) -> None:
    if number > MAX_STEPS:
        raise InputError(f"{name}={value!r}: too large. Use at most {MAX_STEPS:,} steps.")


def to_steps(
    name: str,
    value: Duration,
    batch_size: Fraction,
    examples_per_epoch: int | None,
    total_steps: int | None,
) -> int:
    """Convert a duration to steps.

    Args:
      name: the field, for errors.
      value: the duration.
      batch_size: mean number of examples of a step (sequences in pre-training).
      examples_per_epoch: examples of a pass over the data; None if unknown.
      total_steps: steps of the run; None for the run itself, or with a time budget.

    Raises:
      InputError: the duration is not a number of steps.
    """
    number, unit = parse_duration(name, value)
    if unit in SECONDS_PER_UNIT:
        problem = "only steps, eval_every and checkpoint_every may be times"
        if name == "keep_period":
            problem = "is a time, which needs a run with a time budget, such as steps='8 hours'"
        raise InputError(f"{name}={value!r}: {problem}. Use a number of steps.")
    if unit == "step":
        return int(number)
    exact = Fraction(repr(number))  # in decimals: 7% of 100 is 7
    if unit == "example":
        return math.ceil(exact / batch_size)
    if unit == "epoch":
        if examples_per_epoch is None:
            raise InputError(f"{name}={value!r}: the length of an epoch is unknown. Set data.dir.")
        return math.ceil(exact * examples_per_epoch / batch_size)
    if total_steps is None:
        raise InputError(
            f"{name}={value!r}: the number of steps of the run is unknown. Use steps or epochs."
        )
    return math.ceil(exact * total_steps / 100)


def fraction_of_budget(name: str, value: Duration, budget_seconds: float) -> float:
    """Convert a duration to a fraction of a time budget.

    Raises:
      InputError: the duration is not 0, a percentage or a time.
    """
    number, unit = parse_duration(name, value)
    if unit in SECONDS_PER_UNIT:
        return number * SECONDS_PER_UNIT[unit] / budget_seconds
    if unit == "%" or not number:
        return number / 100
    raise InputError(
        f"{name}={value!r}: not a part of a run with a time budget. Use a percentage such as '10%'."
    )
