"""Charts show all finite values on readable axes, and mark the others."""

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.html.axes import (
    ChartAxis,
    format_number,
    format_tick,
    linear_ticks,
    log_ticks,
    tick_labels,
    value_axis,
)
from bertjax.html.charts import (
    NARROW,
    WIDE,
    Chart,
    MetricDisplay,
    Point,
    downsample,
    draw_curves,
    line_chart,
    running_median,
)
from bertjax.html.page import Section, render_report
from bertjax.html.plots import reliability_diagram, scatter, strip_plot
from bertjax.html.svg import new_axes

# Values whose differences do not overflow.
finite = st.one_of(st.just(0.0), st.floats(1e-12, 1e30), st.floats(-1e30, -1e-12))
any_value = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf]))


def points(values: list[float]) -> list[Point]:
    return [Point(10 * n, value) for n, value in enumerate(values, 1)]


# Axes


@pytest.mark.seconds
@given(st.tuples(finite, finite), st.integers(3, 10))
def test_linear_ticks_cover_the_range_evenly(ends: tuple[float, float], num_ticks: int) -> None:
    low, high = sorted(ends)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return
    ticks = linear_ticks(low, high, num_ticks)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= high - 1e-6 * step
    assert num_ticks / 2.5 <= len(ticks) <= num_ticks + 2
    np.testing.assert_allclose(np.diff(ticks), step, rtol=1e-5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.3, [0, 0.1, 0.2, 0.3]),
        (0.1 + 0.2, 0.5, [0.3, 0.35, 0.4, 0.45, 0.5]),
        (2.1, 9.9, [2, 4, 6, 8, 10]),
        (-3, 12, [-5, 0, 5, 10, 15]),
        (0, 1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
        (0, 1_000_000, [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]),
    ],
)
def test_linear_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    ticks = linear_ticks(low, high, 5)
    assert ticks == expected


@given(st.floats(1e-12, 1e12), st.floats(30, 1e12))
def test_log_ticks_cover_the_range(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert ticks[0] <= low < ticks[1]
    assert ticks[-2] < low * factor <= ticks[-1]


def test_log_ticks_include_multiples_if_few() -> None:
    assert log_ticks(0.3, 12) == [0.2, 0.5, 1, 2, 5, 10, 20]
    assert log_ticks(0.3, 12_000) == [0.1, 1, 10, 100, 1000, 10_000, 100_000]


def test_value_axis_is_logarithmic_for_wide_positive_ranges_only() -> None:
    assert value_axis([1, 100]).log
    assert not value_axis([1, 20]).log
    assert not value_axis([0, 100]).log
    assert not value_axis([1, 100], 0.0).log


@pytest.mark.parametrize("values", [[1.0, 1e308], [-1.7e308, 1.7e308], [1e308]])
def test_value_axis_of_huge_values_has_finite_ticks(values: list[float]) -> None:
    ticks = value_axis(values).ticks
    assert all(map(math.isfinite, ticks)) and ticks[-1] >= 1e300


def test_value_axis_of_no_or_equal_values_has_two_ends() -> None:
    for values in ([], [0.0], [5.0], [-5.0], [1e-9], [3.0, 3.0 + 1e-12]):
        ticks = value_axis(values).ticks
        assert ticks[0] < ticks[-1]
        assert all(ticks[0] <= value <= ticks[-1] for value in values)


@given(finite, st.floats(1.001, 1e6), st.booleans())
def test_tick_labels_differ(low: float, factor: float, as_percent: bool) -> None:
    axis = value_axis(sorted([low, low * factor]))
    labels = tick_labels(axis, as_percent)
    assert len(labels) == len(axis.ticks)
    if axis.ticks[-1] - axis.ticks[0] > 1e-3 * max(map(abs, axis.ticks)):
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("ticks", "as_percent", "labels"),
    [
        ([0, 0.5, 1], False, ["0", "0.5", "1.0"]),
        ([2, 2.25, 2.5], False, ["2.00", "2.25", "2.50"]),
        ([0, 2e-5, 4e-5], False, ["0", "2e-5", "4e-5"]),
        ([0, 20_000, 40_000], False, ["0", "20k", "40k"]),
        ([0, 0.25, 0.5], True, ["0%", "25%", "50%"]),
        ([0.96, 0.965, 0.97], True, ["96.0%", "96.5%", "97.0%"]),
    ],
)
def test_tick_labels_have_the_necessary_decimals(
    ticks: list[float], as_percent: bool, labels: list[str]
) -> None:
    assert tick_labels(ChartAxis(ticks), as_percent) == labels


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (500, "500"), (20_000, "20k"), (1_500_000, "1.5M"), (2e9, "2G"), (0.25, "0.25")],
)
def test_format_tick_is_short(value: float, text: str) -> None:
    assert format_tick(value) == text


@pytest.mark.parametrize(
    ("value", "as_percent", "text"),
    [
        (31_250.4, False, "31,250"),
        (2.5, False, "2.500"),
        (1234.5, False, "1234"),
        (0.0125, False, "0.01250"),
        (1.25e-5, False, "1.250e-5"),
        (0, False, "0"),
        (-3.14159, False, "-3.142"),
        (0.4123, True, "41.2%"),
        (math.nan, False, "NaN"),
        (math.nan, True, "NaN"),
        (math.inf, False, "infinite"),
    ],
)
def test_format_number_has_four_digits(value: float, as_percent: bool, text: str) -> None:
    assert format_number(value, as_percent) == text


# Curves


@given(st.lists(any_value, max_size=400), st.integers(11, 60))
def test_downsample_keeps_ends_and_extremes(values: list[float], max_points: int) -> None:
    curve = points(values)
    thin = downsample(curve, max_points)
    assert len(thin) <= max_points
    steps = [p.step for p in thin]
    assert steps == sorted(set(steps) & {p.step for p in curve})
    if curve:
        assert (thin[0], thin[-1]) == (curve[0], curve[-1])
    known = [p.value for p in curve if math.isfinite(p.value)]
    if known:
        kept = [p.value for p in thin if math.isfinite(p.value)]
        assert (min(kept), max(kept)) == (min(known), max(known))
    assert any(not math.isfinite(p.value) for p in thin) == (len(known) < len(curve))


@pytest.mark.seconds
@given(st.lists(finite, min_size=1, max_size=200), st.integers(0, 20), st.integers(1, 50))
def test_running_median_stays_within_the_values(
    values: list[float], half_window: int, max_points: int
) -> None:
    curve = points(values)
    smooth = running_median(curve, half_window, max_points)
    assert len(smooth) <= max_points
    assert smooth[0] == curve[0]
    assert {p.step for p in smooth} <= {p.step for p in curve}
    assert all(min(values) <= p.value <= max(values) for p in smooth)


def test_running_median_ignores_spikes_and_gaps_and_keeps_lines() -> None:
    spike = [1.0] * 50 + [100.0, math.nan] + [1.0] * 50
    assert {p.value for p in running_median(points(spike), 5, 200)} == {1.0}
    line = points([float(n) for n in range(100)])
    assert running_median(line, 4, 200)[:96] == line[:96]
    gap = running_median(points([1.0] * 50 + [math.nan] * 50), 5, 200)
    assert [math.isnan(p.value) for p in gap] == [False] * 55 + [True] * 45


# Drawings


def draw(
    curves: dict[str, list[Point]], wide: bool = False, **options: Any
) -> tuple[Any, list[list[Point]]]:
    last_step = max(point.step for curve in curves.values() for point in curve)
    metric = MetricDisplay("Loss", **options)
    with new_axes(WIDE if wide else NARROW) as axes:
        return axes, draw_curves(axes, metric, curves, last_step, wide)


def lines(axes: Any, kind: str) -> list[Any]:
    return [line for line in axes.lines if line.get_gid() == kind]


def drawn_values(axes: Any) -> list[float]:
    """Return the values that are visible: dots, and the ends of segments."""
    values = {float(v) for line in lines(axes, "dots") for v in line.get_ydata()}
    for line in lines(axes, "line"):
        ys = np.array([math.nan, *line.get_ydata(), math.nan])
        finite = np.isfinite(ys)
        beside = finite & (np.roll(finite, 1) | np.roll(finite, -1))
        values |= {float(v) for v in ys[beside]}
    return sorted(values)


@pytest.mark.seconds
@settings(max_examples=60, deadline=None)
@given(
    train=st.lists(any_value, min_size=1, max_size=150),
    eval=st.lists(any_value, max_size=5),
    floor=st.sampled_from([None, 0.0]),
    wide=st.booleans(),
)
def test_line_chart_shows_all_values_within_the_axes(
    train: list[float], eval: list[float], floor: float | None, wide: bool
) -> None:
    curves = {"train": points(train)} | ({"eval": points(eval)} if eval else {})
    axes, drawn = draw(curves, floor=floor, wide=wide, smooth=False)
    finite = {value for value in train + eval if math.isfinite(value)}
    assert drawn_values(axes) == sorted(finite)
    layout = WIDE if wide else NARROW
    for curve in drawn:
        for x, y in axes.transData.transform(np.reshape(curve, (-1, 2))):
            assert layout.left - 0.1 <= x <= layout.width - layout.right + 0.1
            assert layout.bottom - 0.1 <= y <= layout.height - layout.top + 0.1


def test_line_chart_has_log_scale_for_wide_ranges() -> None:
    curves = {"train": points([1.0, 100.0])}
    assert draw(curves)[0].get_yscale() == "log"
    assert draw(curves, floor=0.0)[0].get_yscale() == "linear"
    assert line_chart(MetricDisplay("Loss"), curves, 20).note == "log scale"


def test_line_chart_has_readable_ticks() -> None:
    axes, _ = draw({"train": points([0.2, 0.4] * 5000)}, as_percent=True, floor=0.0)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "0", "20k", "40k", "60k", "80k", "100k",
    ]  # fmt: skip
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["0%", "10%", "20%", "30%", "40%"]


def test_line_chart_carries_values_for_the_pointer() -> None:
    chart = line_chart(MetricDisplay("Loss"), {"train": points([3.0, math.nan, 2.0, 1.5])}, 40)
    (curve,) = chart.curves
    assert curve["steps"] == [10, 30, 40]
    assert curve["values"] == "3.000 2.000 1.500"
    assert curve["y"] == pytest.approx([8.0, 8 + 182 * 2 / 3, 190.0], abs=0.1)
    assert chart.legend == [("train", "1.500")]


def test_line_chart_breaks_the_curve_at_nan() -> None:
    values = [3.0, math.nan, 2.0, math.inf, 1.0, 0.5] + [1.0] * 60
    axes, _ = draw({"train": points(values)}, smooth=False)
    (line,) = lines(draw({"train": points([3.0, math.nan, 2.0])})[0], "line")
    assert [math.isfinite(v) for v in line.get_ydata()] == [True, False, True]
    (dots,) = lines(axes, "dots")
    assert list(dots.get_xdata()) == [10, 30], "points without neighbors are dots"


def test_line_chart_marks_the_first_value_that_is_not_finite() -> None:
    def marks(values: list[float]) -> list[float]:
        return [
            line.get_xdata()[0] for line in lines(draw({"train": points(values)})[0], "diverged")
        ]

    assert marks([3.0, 2.0, 1.0, 1.0]) == []
    assert marks([3.0, math.nan, 1.0, math.inf]) == [20]
    chart = line_chart(MetricDisplay("Loss"), {"train": points([3.0, math.nan])}, 20)
    assert 'class="diverged"' in chart.svg


def test_line_chart_smooths_long_curves_only() -> None:
    def kinds(count: int, smooth: bool) -> set[str]:
        axes, _ = draw({"train": points([1.0, 2.0] * (count // 2))}, smooth=smooth)
        return {line.get_gid() for line in axes.lines}

    assert kinds(20, True) == {"line", "dots"}
    assert kinds(50, True) == {"line"}
    assert kinds(100, True) == {"line", "raw"}
    assert kinds(100, False) == {"line"}


def example_charts() -> list[Chart]:
    curves = {"train": points([8.0, math.nan, *range(200)]), "eval": points([3.0, 2.0])}
    return [
        line_chart(MetricDisplay("Loss"), curves, 2020, wide=True),
        line_chart(MetricDisplay("Accuracy", True), curves | {"x/<b>": points([2.0])}, 2020),
        scatter("Gold", [(1.0, 2.0), (3.0, 2.5)], ("$gold$ <&>", "predicted")),
        reliability_diagram([0.2, 0.25, 0.9], [False, True, True]),
        strip_plot(
            "Scores", {"<1>": [0.5, 0.5], "$2": [0.75]}, {"<1>": 0.5, "$2": 0.75}, "accuracy"
        ),
    ]


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{chart.svg}</svg>")


@pytest.mark.seconds
def test_charts_are_the_same_bytes_whatever_the_style_of_the_user() -> None:
    expected = example_charts()
    with matplotlib.rc_context({"lines.linewidth": 9, "lines.marker": "x", "svg.fonttype": "path"}):
        assert example_charts() == expected
        assert matplotlib.rcParams["lines.linewidth"] == 9


@pytest.mark.seconds
def test_charts_are_plain_elements_in_the_colors_of_the_page() -> None:
    css = render_report("x", [])
    for chart in example_charts():
        tags = {element.tag for element in parsed(chart).iter()} - {"svg"}
        assert tags <= {"g", "path", "text", "defs", "use", "title"}
        assert not re.search(r"#[0-9a-f]{6}\b|\brgb|black|font|url\(|http", chart.svg)
        variables = set(re.findall(r"var\((--\w+)\)", chart.svg))
        assert variables >= {"--train", "--soft"}
        for variable in variables:
            assert css.count(f"{variable}: #") == 2, "a light and a dark color"


@pytest.mark.seconds
def test_charts_keep_text_as_text() -> None:
    texts = [text.text for text in parsed(example_charts()[2]).iter("text")]
    assert "$gold$ <&>" in texts and "1.0" in texts
    tooltips = [title.text for title in parsed(example_charts()[4]).iter("title")]
    assert tooltips == ["<1>: 0.5000", "<1>: 0.5000", "$2: 0.7500"]


def test_strip_plot_has_a_dot_per_value_and_a_line_per_mean() -> None:
    groups = {"a": [1, 1, 4], "b": [3], "c": [2]}
    svg = parsed(strip_plot("x", groups, {"a": 2.0, "b": 3.0, "c": None}, ""))
    (dots,) = (group for group in svg.iter("g") if group.get("class") == "points")
    places = [(float(use.get("x")), float(use.get("y"))) for use in dots.iter("use")]
    assert len(set(places)) == 5
    means = [path for path in svg.iter("path") if "var(--soft)" in path.get("style", "")]
    assert len(means) == 2


def test_reliability_diagram_titles_the_calibration_error() -> None:
    diagram = reliability_diagram([0.95] * 3 + [0.55], [True, True, False, True])
    assert diagram.title == "Expected calibration error 32.5%"
    assert diagram.svg.count("<title>") == 2 and "95.0%, 66.7%" in diagram.svg


def test_titles_and_splits_are_escaped() -> None:
    chart = line_chart(MetricDisplay('<b>"&'), {'<i>"': points([1.0])}, 10)
    page = render_report("x", [Section("Charts", charts=[chart])])
    assert "<span>&lt;b&gt;&#34;&amp;</span>" in page.replace("\n", "")
    assert "<b>&" not in page and "<i>&" not in page
