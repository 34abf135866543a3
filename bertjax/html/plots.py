"""Scatter plots, strip plots, reliability diagrams and confusion matrices."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertjax.html.axes import format_number, value_axis
from bertjax.html.charts import Chart
from bertjax.html.svg import COLORS, Layout, new_axes, set_axis, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LAYOUT = Layout(528, 320, bottom=42)
_NUM_BINS = 10  # of probabilities


class ConfusionMatrix(NamedTuple):
    """Counts of examples: a row for each gold label, a column for each predicted label."""

    title: str
    labels: Sequence[str]
    counts: Sequence[Sequence[int]]


def scatter(
    title: str,
    points: Sequence[tuple[float, float]],
    axis_labels: tuple[str, str],
    *,
    as_percent: bool = False,
    sizes: Sequence[float] | None = None,
) -> Chart:
    """Return points and the diagonal on two axes of the same range.

    Args:
      title: plain text.
      points: (x, y) of each point.
      axis_labels: names of x and y.
      as_percent: the axes show fractions, from 0% to 100%.
      sizes: radius of each point, 2.5 by default.
    """
    values = [value for point in points for value in point]
    axis = value_axis([0.0, 1.0] if as_percent else values, min(values, default=0.0))
    with new_axes(_LAYOUT, title) as axes:
        set_axis(axes, "x", axis, as_percent)
        set_axis(axes, "y", axis, as_percent)
        axes.set_xlabel(axis_labels[0], color=COLORS["soft"], labelpad=2)
        ends = axis.ticks[0], axis.ticks[-1]
        axes.plot(ends, ends, color=COLORS["line"], linewidth=1, clip_on=False)
        if sizes is None:
            _draw_points(axes, points, 2.5)
        else:
            for point, size in zip(points, sizes, strict=True):
                _draw_points(axes, [point], size)
        tooltips = [", ".join(format_number(v, as_percent) for v in point) for point in points]
        return Chart(title, to_svg(axes, tooltips), _LAYOUT, axis_labels[1])


def reliability_diagram(probabilities: Sequence[float], correct: Sequence[bool]) -> Chart:
    """Return accuracy by predicted probability and the expected calibration error.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks".

    Args:
      probabilities: probability of each prediction, 0 to 1.
      correct: whether each prediction is correct.
    """
    confidence, accuracy = np.array(probabilities), np.array(correct)
    bins = np.minimum((confidence * _NUM_BINS).astype(int), _NUM_BINS - 1)
    points, sizes, calibration_error = [], [], 0.0
    for number in np.unique(bins):
        members = bins == number
        x, y = float(confidence[members].mean()), float(accuracy[members].mean())
        fraction = float(members.mean())
        points.append((x, y))
        sizes.append(2 + 8 * fraction**0.5)
        calibration_error += abs(x - y) * fraction
    title = f"Expected calibration error {calibration_error:.1%}"
    return scatter(title, points, ("probability", "accuracy"), as_percent=True, sizes=sizes)


def strip_plot(
    title: str,
    groups: Mapping[str, Sequence[float]],
    means: Mapping[str, float | None],
    label: str,
) -> Chart:
    """Return a dot for each value above the name of its group, and a line at the group's mean."""
    with new_axes(_LAYOUT, title) as axes:
        set_axis(axes, "y", value_axis([v for values in groups.values() for v in values]), False)
        places = range(len(groups))
        axes.set(xlim=(-0.5, max(len(groups), 1) - 0.5), xticks=places, xticklabels=list(groups))
        points, tooltips = [], []
        for place, (name, values) in zip(places, groups.items(), strict=True):
            if (mean := means[name]) is not None:
                ends = (place - 0.25, place + 0.25)
                axes.plot(ends, (mean, mean), color=COLORS["soft"], linewidth=1, clip_on=False)
            for i, value in enumerate(values):
                # Side by side, so that equal values do not hide each other.
                points.append((place + 0.25 * ((i + 0.5) / len(values) - 0.5), value))
                tooltips.append(f"{name}: {format_number(value)}")
        _draw_points(axes, points, 4)
        return Chart(title, to_svg(axes, tooltips), _LAYOUT, label)


def _draw_points(axes: "Axes", points: Sequence[tuple[float, float]], radius: float) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        linestyle="none",
        marker="o",
        markersize=2 * radius,
        color=COLORS["train"],
        markeredgecolor=COLORS["page"],
        markeredgewidth=0.8,
        alpha=0.8,
        clip_on=False,
        gid="points",
    )
