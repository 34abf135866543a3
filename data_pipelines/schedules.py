"""Values that change linearly over a run, written as "1..0.1"."""

import re

from data_pipelines.errors import InputError

_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"


class ScheduledFloat(float):
    """Default of a field of `data` that is a number or, as text, two numbers."""


def parse_schedule(name: str, value: float | str) -> tuple[float, float]:
    """Return the first and the last value of a number, or of two numbers as in "1..0.1".

    Raises:
      InputError: the value is neither, or negative.
    """
    match = re.fullmatch(rf"({_NUMBER})(?:\.\.({_NUMBER}))?", str(value))
    if not match:
        raise InputError(f"{name}={value!r}: not a number from 0. Use one, or two as in '1..0.1'.")
    first = float(match[1])
    return first, first if match[2] is None else float(match[2])
