"""Ticks and number formats of the charts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

_MIN_RATIO_FOR_LOG = 30  # of the largest to the smallest value of a logarithmic axis
_MAX_LOG_TICKS = 9  # above this number only powers of ten stay
_LARGEST = 1e300  # limit of an axis: a tick beyond the largest value must not overflow


class ChartAxis(NamedTuple):
    """Ticks of an axis, whose limits are the first and the last tick."""

    ticks: list[float]
    log: bool = False


def value_axis(values: Sequence[float], floor: float | None = None) -> ChartAxis:
    """Return an axis that covers finite values, those beyond 1e300 nearly.

    It is logarithmic for positive values that span a factor of 30, unless it has a floor.

    Args:
      values: may be empty.
      floor: upper bound of the lower limit; such an axis is linear.
    """
    low, high = (
        min(max(value, -_LARGEST), _LARGEST)
        for value in (min(values, default=0.0), max(values, default=1.0))
    )
    if floor is None and low > 0 and high > _MIN_RATIO_FOR_LOG * low:
        return ChartAxis(log_ticks(low, high), log=True)
    if floor is not None:
        low = min(low, floor)
    if high - low <= 1e-6 * abs(high):  # nearly constant
        low, high = (low - abs(low) / 10, high + abs(high) / 10) if high else (0.0, 1.0)
    return ChartAxis(linear_ticks(low, high, 5))


def linear_ticks(low: float, high: float, num_ticks: int) -> list[float]:
    """Return about `num_ticks` round, evenly spaced ticks that cover [low, high]."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(num_ticks, steps=[1, 2, 2.5, 5, 10])
    return _rounded(locator.tick_values(low, high))


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten that cover [low, high], with their multiples by 2 and 5 if few."""
    from matplotlib.ticker import LogLocator

    for multiples in ((1, 2, 5), (1,)):
        # LogLocator drops ticks if there are more than `numticks`.
        locator = LogLocator(subs=multiples, numticks=1000)
        # A decade more at both ends, so that ticks <= low and >= high exist.
        ticks = _rounded(locator.tick_values(low / 10, high * 10))
        first = max(i for i, tick in enumerate(ticks) if tick <= low)
        last = min(i for i, tick in enumerate(ticks) if tick >= high)
        if last - first < _MAX_LOG_TICKS:
            break
    return ticks[first : last + 1]


def _rounded(ticks: Sequence[float]) -> list[float]:
    return [float(f"{tick:.12g}") for tick in ticks]  # 0.3 for 0.30000000000000004


def tick_labels(axis: ChartAxis, as_percent: bool) -> list[str]:
    """Return the ticks as text, with as many decimals as distinguish them."""
    ticks = [100 * tick for tick in axis.ticks] if as_percent else axis.ticks
    largest = max(map(abs, ticks))
    if axis.log or largest >= 1e4 or largest < 1e-2:
        labels = [format_tick(tick) for tick in ticks]
    else:
        step = f"{ticks[1] - ticks[0]:.10f}".rstrip("0")
        decimals = len(step) - step.index(".") - 1
        labels = [f"{tick:.{decimals}f}" if tick else "0" for tick in ticks]
    return [label + "%" for label in labels] if as_percent else labels


def format_tick(value: float) -> str:
    """Format a round number in few characters: 500, 20k, 1.5M, 0.25, 2e-5."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{suffix}"
    if value == 0 or abs(value) >= 1e-2:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def format_number(value: float, as_percent: bool = False) -> str:
    """Format with four digits (31,250, 2.718, 0.01250, 1.250e-5), or as a percentage (41.2%)."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if as_percent:
        return f"{value:.1%}"
    if value == 0 or abs(value) >= 1e4:
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:#.4g}".removesuffix(".")
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa}e{int(exponent)}"
