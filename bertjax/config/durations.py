"""How long things last, and how often they happen: steps, epochs, examples, shares, or times."""

import math
import re
from fractions import Fraction

from data_pipelines.errors import InputError

# A number of steps, or text: "3 epochs", "5000 examples", "10%" (of the run), "200 steps"; of the
# run itself, evaluations and checkpoints also "30 minutes", "2 hours".
Duration = int | str

SECONDS_PER_UNIT = {"second": 1, "minute": 60, "hour": 3600}
_UNITS = "%|percent|steps?|epochs?|examples?|seconds?|minutes?|hours?|h"
_DURATION = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({_UNITS})\s*")


def parse(name: str, value: Duration) -> tuple[float, str]:
    """A duration as a number of a unit: "step", "epoch", "example", "%" or one of `SECONDS_PER_UNIT`.

    Raises:
      InputError: the value of the field `name` is none.
    """
    if isinstance(value, int):
        return value, "step"
    match = _DURATION.fullmatch(value)
    if not match:
        raise InputError(
            f"{name}={value!r} is no duration: write 200, '3 epochs', '5000 examples', "
            "'2 hours' or '10%'."
        )
    unit = {"percent": "%", "h": "hour"}.get(match[2], match[2].rstrip("s"))
    return float(match[1]), unit


def is_percentage(value: Duration) -> bool:
    """Whether a duration that can be read is in percent."""
    return isinstance(value, str) and ("%" in value or "percent" in value)


def steps(
    name: str,
    value: Duration,
    batch_size: Fraction,
    sequences_per_epoch: int | None,
    total: int | None,
) -> int:
    """A duration in steps.

    Args:
      batch_size: examples of a step, on average.
      sequences_per_epoch: examples of a pass over the data; None where it is not known.
      total: steps of the run; None for the run itself, or where the clock ends it.
    Raises:
      InputError: it is no number of steps.
    """
    number, unit = parse(name, value)
    if unit in SECONDS_PER_UNIT:
        raise InputError(
            f"{name}={value!r} is a time, as steps, eval_every and checkpoint_every alone may be: "
            "count steps."
        )
    if unit == "step":
        return int(number)
    if unit == "example":
        return _whole(number, 1, batch_size)
    if unit == "epoch":
        if sequences_per_epoch is None:
            raise InputError(f"{name}={value!r} counts epochs, which needs data: set data.dir.")
        return _whole(number, sequences_per_epoch, batch_size)
    if total is None:
        raise InputError(f"{name}={value!r} is a share of no known number: give steps or epochs.")
    return _whole(number, total, 100)


def _whole(number: float, numerator: int, denominator: Fraction | int) -> int:
    """number * times / over, rounded up, of the number as it is written: 7% of 100 are 7."""
    return math.ceil(Fraction(repr(number)) * numerator / denominator)


def fraction_of_budget(name: str, value: Duration, budget_seconds: float) -> float:
    """Return a duration as a fraction of a time budget.

    Raises:
      InputError: the duration is not 0, a percentage or a time.
    """
    number, unit = parse(name, value)
    if unit in SECONDS_PER_UNIT:
        return number * SECONDS_PER_UNIT[unit] / budget_seconds
    if unit == "%" or not number:
        return number / 100
    raise InputError(
        f"{name}={value!r}: not a part of a run with a time budget. Use a percentage such as '10%'."
    )
