"""Curves over the steps of a run, as SVG text.

A chart is a <figure> whose look and whose response to the pointer come from the style and the
script of the page that it stands in, `bertjax.reports.run`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

SPLITS = {"train": "train", "eval": "held-out"}
MAX_POINTS = 500  # of a curve: as many as its chart has room for
MIN_POINTS_TO_SMOOTH = 60  # points; a shorter curve is drawn as it is
MAX_DOTTED_POINTS = 40  # points; more dots than that would be a band

Scale = Callable[[float], float]  # from a step or a value to its coordinate in the drawing


class Point(NamedTuple):
    step: int
    value: float


class ChartAxis(NamedTuple):
    """Ticks, of which the first and the last are the ends, and whether they grow by factors."""

    ticks: list[float]
    log: bool = False

    def position(self, value: float) -> float:
        """Where the value lies between the ends, from 0 to 1."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


def chart(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    last: int,
    *,
    share: bool = False,
    floor: float | None = None,
    smooth: bool = True,
    wide: bool = False,
) -> str:
    """The curve of each split over the steps from 0 to `last`.

    A `share` is shown in percent. The vertical axis reaches down to `floor`, if there is one, and
    is logarithmic for positive values, without a floor, that differ thirtyfold. The first value
    that is not finite is marked by a dotted line.
    """
    width, height = (1080, 320) if wide else (528, 216)
    left, right, top, bottom = 52, width - 16, 8, height - 26
    points = [point for curve in curves.values() for point in curve]
    axis = value_axis([point.value for point in points if math.isfinite(point.value)], floor)

    def x(step: float) -> float:
        return left + (right - left) * step / max(last, 1)

    def y(value: float) -> float:
        return bottom - (bottom - top) * axis.position(value)

    parts = grid_lines(axis, y, left, right, share)
    parts += [
        f'<text x="{x(step):.1f}" y="{height - 6}">{format_tick(step)}</text>'
        for step in linear_ticks(0, max(last, 1), 8 if wide else 5)
        if step <= last and step.is_integer()
    ]
    lost = [point.step for point in points if not math.isfinite(point.value)]
    if lost:
        parts.append(f'<path class="lost" d="M{x(min(lost)):.1f} {top}V{bottom}"/>')
    keys = []
    for split, curve in curves.items():
        parts.append(_curve(split, curve, x, y, share, smooth))
        keys.append(
            f'<span class="{escape(split)}">{escape(SPLITS.get(split, split))} '
            f"<b>{number(curve[-1].value, share)}</b></span>"
        )
    note = " <small>log scale</small>" if axis.log else ""
    kind = ' class="wide"' if wide else ""
    return (
        f"<figure{kind}><figcaption><span>{escape(title)}{note}</span>"
        f'<span class="keys"><i></i>{"".join(keys)}</span></figcaption>\n<div class="scroll">'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'data-left="{left}" data-right="{right}" data-last="{last}">{"".join(parts)}'
        f'<path class="guide" d="M0 {top}V{bottom}"/></svg></div></figure>\n'
    )


def grid_lines(axis: ChartAxis, y: Scale, left: float, right: float, share: bool) -> list[str]:
    """A line across the drawing at each tick of a vertical axis, its label before it."""
    return [
        f'<path class="grid" d="M{left} {y(tick):.1f}H{right}"/>'
        f'<text class="value" x="{left - 9}" y="{y(tick) + 4:.1f}">{label}</text>'
        for tick, label in zip(axis.ticks, tick_labels(axis, share), strict=True)
    ]


def _curve(
    split: str, curve: Sequence[Point], x: Scale, y: Scale, share: bool, smooth: bool
) -> str:
    """The curve of a split; a long one faintly as it was logged, its running median over that."""

    def path(kind: str, points: Sequence[Point], join: str, data: str = "") -> str:
        strokes, pen = [], "M"
        for point in points:
            finite = math.isfinite(point.value)
            if finite:
                # "h0" is a stroke of no length: a dot where a point stands alone.
                strokes.append(f"{pen}{x(point.step):.1f} {y(point.value):.1f}h0")
            pen = join if finite else "M"
        return f'<path class="{kind} {escape(split)}" d="{"".join(strokes)}"{data}/>'

    drawn = ""
    if smooth and len(curve) >= MIN_POINTS_TO_SMOOTH:
        drawn = path("raw", downsample(curve, MAX_POINTS), "L")
        curve = running_median(curve, len(curve) // MIN_POINTS_TO_SMOOTH, MAX_POINTS)
    curve = downsample(curve, MAX_POINTS)
    known = [point for point in curve if math.isfinite(point.value)]
    steps = " ".join(str(point.step) for point in known)
    values = " ".join(number(point.value, share) for point in known)
    drawn += path("line", curve, "L", f' data-steps="{steps}" data-values="{values}"')
    if len(known) <= MAX_DOTTED_POINTS:
        drawn += path("dots", known, "M")
    return f'{drawn}<circle class="{escape(split)}" r="3.5"/>'


def running_median(points: Sequence[Point], half_window: int, max_points: int) -> list[Point]:
    """At most `max_points` of the points, evenly spaced, each with the median of its neighbourhood.

    That is up to `half_window` points either side; near the beginning, where curves are steep, as many
    before as after. Values that are not finite do not count; where there are no others, it is NaN.
    """
    values = np.array([point.value for point in points])
    values[~np.isfinite(values)] = np.nan
    chosen = np.unique(
        np.linspace(0, len(points) - 1, min(max_points, len(points))).round().astype(int)
    )
    found = []
    for i in chosen.tolist():
        here = min(half_window, i)
        near = values[i - here : i + here + 1]
        known = near[~np.isnan(near)]
        found.append(Point(points[i].step, float(np.median(known)) if known.size else math.nan))
    return found


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """At most `max_points` points that draw the same curve: the ends and each stretch's extremes.

    Of values that are not finite, one a stretch stays, so that the curve is broken there.
    """
    if len(points) <= max_points:
        return list(points)
    kept = {0, len(points) - 1}
    stretches = (max_points - 2) // 3
    for stretch in range(stretches):
        begin, end = (len(points) * n // stretches for n in (stretch, stretch + 1))
        finite = [i for i in range(begin, end) if math.isfinite(points[i].value)]
        if finite:
            kept.add(min(finite, key=lambda i: points[i].value))
            kept.add(max(finite, key=lambda i: points[i].value))
        kept.update([i for i in range(begin, end) if not math.isfinite(points[i].value)][:1])
    return [points[i] for i in sorted(kept)]


def value_axis(values: Sequence[float], floor: float | None) -> ChartAxis:
    """An axis that holds the values and `floor`, logarithmic as `chart` says."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if floor is None and low > 0 and high > 30 * low:
        return ChartAxis(log_ticks(low, high), log=True)
    if floor is not None:
        low = min(low, floor)
    if high - low <= 1e-6 * abs(high):  # as good as constant
        low, high = (low - abs(low) / 10, high + abs(high) / 10) if high else (0.0, 1.0)
    return ChartAxis(linear_ticks(low, high, 5))


def linear_ticks(low: float, high: float, num_ticks: int) -> list[float]:
    """About so many multiples of 1, 2, 2.5 or 5 times a power of ten, from <= low to >= high."""
    wanted = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(wanted))
    # The tolerances keep 0.30000000000000004 from asking for one tick more than 0.3.
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= wanted * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from <= low to >= high, with their doubles and halves if these are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1,)):
        ticks = [float(f"{m}e{n}") for n in range(first - 1, last + 2) for m in factors]
        begin = max(i for i, tick in enumerate(ticks) if tick <= low)
        end = min(i for i, tick in enumerate(ticks) if tick >= high)
        if end - begin < 8:
            break
    return ticks[begin : end + 1]


def tick_labels(axis: ChartAxis, share: bool) -> list[str]:
    """The ticks as text, all with the decimals that tell them apart; shares in percent."""
    ticks = [100 * tick for tick in axis.ticks] if share else axis.ticks
    largest = max(map(abs, ticks))
    if axis.log or largest >= 1e4 or largest < 1e-2:
        labels = [format_tick(tick) for tick in ticks]
    else:
        step = f"{ticks[1] - ticks[0]:.10f}".rstrip("0")
        decimals = len(step) - step.index(".") - 1
        labels = [f"{tick:.{decimals}f}" if tick else "0" for tick in ticks]
    return [label + "%" for label in labels] if share else labels


def format_tick(value: float) -> str:
    """A round number in few characters: 500, 20k, 1.5M, 0.25, 2e-5."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{sign}"
    if value == 0 or abs(value) >= 1e-2:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def number(value: float, share: bool = False) -> str:
    """Four digits: 31,250 or 2.718 or 0.01250 or 1.250e-5; of a share one decimal: 41.2%."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if share:
        return f"{value:.1%}"
    if value == 0 or abs(value) >= 1e4:
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:#.4g}".removesuffix(".")
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa}e{int(exponent)}"
