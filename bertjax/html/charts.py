"""Line charts of metrics over the steps of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertjax.html.axes import format_number, format_tick, linear_ticks, value_axis
from bertjax.html.svg import COLORS, Layout, new_axes, set_axis, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 500  # points of a curve: a chart is about as many pixels wide
MIN_POINTS_TO_SMOOTH = 60  # points; a shorter curve is drawn as logged
HALF_WINDOWS_PER_CURVE = 60  # a running median takes 1/60 of the curve's points on each side
MAX_DOTTED_POINTS = 40  # points; more dots would touch
NARROW, WIDE = Layout(528, 216), Layout(1080, 320)


class Point(NamedTuple):
    """A value of a metric, logged at a step."""

    step: int
    value: float


class Chart(NamedTuple):
    """A chart as the templates show it.

    Attributes:
      title: plain text.
      svg: content of the <svg> element.
      layout: size and margins of the drawing.
      note: plain text beside the title.
      legend: the split of each curve, which is its CSS class, and the curve's last value.
      curves: data of each curve for charts.js; see `_curve_for_js`.
      last_step: right end of the horizontal axis.
    """

    title: str
    svg: str
    layout: Layout
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()
    curves: Sequence[Mapping[str, Any]] = ()
    last_step: int = 0

    @property
    def is_wide(self) -> bool:
        """True if the chart uses the width of the page."""
        return self.layout == WIDE


class MetricDisplay(NamedTuple):
    """Title and chart options of a metric.

    Attributes:
      title: plain text.
      as_percent: show fractions as percentages.
      floor: upper bound of the lower limit of the vertical axis, which is then linear.
      smooth: draw the running median of a long curve on top of the faint raw curve.
    """

    title: str
    as_percent: bool = False
    floor: float | None = None
    smooth: bool = True


def line_chart(
    metric: MetricDisplay, curves: Mapping[str, Sequence[Point]], last_step: int, wide: bool = False
) -> Chart:
    """Return the chart of a metric.

    Args:
      metric: its title and chart options.
      curves: points of each split, in the order of their steps.
      last_step: right end of the horizontal axis, which begins at step 0.
      wide: use the width of the page.
    """
    layout = WIDE if wide else NARROW
    with new_axes(layout, metric.title) as axes:
        drawn = draw_curves(axes, metric, curves, last_step, wide)
        return Chart(
            title=metric.title,
            svg=to_svg(axes),
            layout=layout,
            note="log scale" if axes.get_yscale() == "log" else "",
            legend=[
                (split, format_number(curve[-1].value, metric.as_percent))
                for split, curve in curves.items()
            ],
            curves=[_curve_for_js(axes, layout, points, metric.as_percent) for points in drawn],
            last_step=last_step,
        )


def draw_curves(
    axes: "Axes",
    metric: MetricDisplay,
    curves: Mapping[str, Sequence[Point]],
    last_step: int,
    wide: bool = False,
) -> list[list[Point]]:
    """Draw the curves and mark the first step with a value that is not finite.

    Returns:
      The finite points of each curve as drawn.
    """
    points = [point for curve in curves.values() for point in curve]
    finite = [point.value for point in points if math.isfinite(point.value)]
    set_axis(axes, "y", value_axis(finite, metric.floor), metric.as_percent)
    end = max(last_step, 1)
    steps = [s for s in linear_ticks(0, end, 8 if wide else 5) if s <= end and s.is_integer()]
    axes.set(xlim=(0, end), xticks=steps, xticklabels=list(map(format_tick, steps)))
    diverged = [point.step for point in points if not math.isfinite(point.value)]
    if diverged:
        style: dict[str, Any] = {"color": COLORS["bad"], "linewidth": 1, "linestyle": (0, (2, 4))}
        axes.axvline(min(diverged), gid="diverged", clip_on=False, **style)
    return [_draw_curve(axes, split, curve, metric.smooth) for split, curve in curves.items()]


def _draw_curve(axes: "Axes", split: str, curve: Sequence[Point], smooth: bool) -> list[Point]:
    def draw(kind: str, points: Sequence[Point], **style: Any) -> None:
        steps = [point.step for point in points]
        values = [point.value if math.isfinite(point.value) else math.nan for point in points]
        # Every point is inside the axes: clipping would only add definitions to the SVG.
        style |= {"color": COLORS.get(split, COLORS["soft"]), "clip_on": False}
        axes.plot(steps, values, gid=kind, solid_capstyle="round", **style)

    if smooth and len(curve) >= MIN_POINTS_TO_SMOOTH:
        draw("raw", downsample(curve, MAX_POINTS), linewidth=1, alpha=0.28)
        curve = running_median(curve, len(curve) // HALF_WINDOWS_PER_CURVE, MAX_POINTS)
    curve = downsample(curve, MAX_POINTS)
    draw("line", curve, linewidth=1.8)
    finite = [point for point in curve if math.isfinite(point.value)]
    dots = finite if len(finite) <= MAX_DOTTED_POINTS else _isolated(curve)
    if dots:
        draw("dots", dots, linestyle="none", marker="o", markersize=5, markeredgewidth=0)
    return finite


def _isolated(curve: Sequence[Point]) -> list[Point]:
    """Return the finite points without a finite neighbor, which no line shows."""
    finite = np.isfinite([math.nan, *(point.value for point in curve), math.nan])
    isolated = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    return [point for point, alone in zip(curve, isolated, strict=True) if alone]


def _curve_for_js(
    axes: "Axes", layout: Layout, points: Sequence[Point], as_percent: bool
) -> dict[str, Any]:
    """Return a curve for charts.js.

    "steps" and "y", the vertical positions in the drawing, are lists. "values" is one string: the
    formatted values, separated by spaces.
    """
    positions = axes.transData.transform(np.reshape(points, (-1, 2)))
    return {
        "steps": [point.step for point in points],
        "values": " ".join(format_number(point.value, as_percent) for point in points),
        "y": (layout.height - positions[:, 1]).round(1).tolist(),
    }


def running_median(points: Sequence[Point], half_window: int, max_points: int) -> list[Point]:
    """Return evenly spaced points with the median of the values around each.

    Values that are not finite do not count. Without any finite value the median is NaN.

    Args:
      points: values in the order of their steps.
      half_window: points on each side. Near the beginning, where curves are steep, the window
        shrinks symmetrically; at the end it is cut off.
      max_points: upper bound of the number of points that are returned.
    """
    values = np.array([point.value for point in points])
    values[~np.isfinite(values)] = np.nan
    spaced = np.linspace(0, len(points) - 1, min(max_points, len(points)))
    medians = []
    for i in np.unique(spaced.round().astype(int)).tolist():
        reach = min(half_window, i)
        window = values[i - reach : i + reach + 1]
        finite = window[~np.isnan(window)]
        median = float(np.median(finite)) if finite.size else math.nan
        medians.append(Point(points[i].step, median))
    return medians


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` points that draw the same curve.

    Keeps the first and the last point. Of each of (max_points - 2) // 3 intervals it keeps minimum,
    maximum and the first value that is not finite, which leaves a gap.
    """
    if len(points) <= max_points:
        return list(points)
    kept = {0, len(points) - 1}
    intervals = (max_points - 2) // 3
    for interval in range(intervals):
        begin, end = (len(points) * n // intervals for n in (interval, interval + 1))
        finite = [i for i in range(begin, end) if math.isfinite(points[i].value)]
        if finite:
            kept.add(min(finite, key=lambda i: points[i].value))
            kept.add(max(finite, key=lambda i: points[i].value))
        kept.update([i for i in range(begin, end) if not math.isfinite(points[i].value)][:1])
    return [points[i] for i in sorted(kept)]
