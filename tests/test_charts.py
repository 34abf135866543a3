"""A chart shows all its values, on readable axes, whatever they are."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.html.charts import (
    ChartAxis,
    Point,
    chart,
    downsample,
    format_tick,
    linear_ticks,
    log_ticks,
    number,
    running_median,
    tick_labels,
    value_axis,
)

# Whatever a metric can be, short of overflowing when its range is taken.
finite = st.one_of(st.just(0.0), st.floats(1e-12, 1e30), st.floats(-1e30, -1e-12))
any_value = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf]))


def points(values: list[float]) -> list[Point]:
    return [Point(10 * n, value) for n, value in enumerate(values, 1)]


# Axes


@given(st.tuples(finite, finite), st.integers(3, 10))
def test_linear_ticks_hold_the_range_evenly(ends: tuple[float, float], about: int) -> None:
    low, high = sorted(ends)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return
    ticks = linear_ticks(low, high, about)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= high - 1e-6 * step
    assert about / 2.5 <= len(ticks) <= about + 2
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
def test_log_ticks_hold_the_range(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert ticks[0] <= low < ticks[1]
    assert ticks[-2] < low * factor <= ticks[-1]


def test_log_ticks_have_doubles_and_halves_where_there_is_room() -> None:
    assert log_ticks(0.3, 12) == [0.2, 0.5, 1, 2, 5, 10, 20]
    assert log_ticks(0.3, 12_000) == [0.1, 1, 10, 100, 1000, 10_000, 100_000]


def test_an_axis_is_logarithmic_only_for_wide_positive_ranges() -> None:
    assert value_axis([1, 100], None).log
    assert not value_axis([1, 20], None).log
    assert not value_axis([0, 100], None).log
    assert not value_axis([1, 100], 0.0).log


def test_an_axis_of_nothing_or_of_one_value_still_has_two_ends() -> None:
    for values in ([], [0.0], [5.0], [-5.0], [1e-9], [3.0, 3.0 + 1e-12]):
        ticks = value_axis(values, None).ticks
        assert ticks[0] < ticks[-1]
        assert all(ticks[0] <= value <= ticks[-1] for value in values)


@given(finite, st.floats(1.001, 1e6), st.booleans())
def test_the_labels_of_an_axis_differ(low: float, factor: float, share: bool) -> None:
    axis = value_axis(sorted([low, low * factor]), None)
    labels = tick_labels(axis, share)
    assert len(labels) == len(axis.ticks)
    if axis.ticks[-1] - axis.ticks[0] > 1e-3 * max(map(abs, axis.ticks)):
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("ticks", "share", "labels"),
    [
        ([0, 0.5, 1], False, ["0", "0.5", "1.0"]),
        ([2, 2.25, 2.5], False, ["2.00", "2.25", "2.50"]),
        ([0, 2e-5, 4e-5], False, ["0", "2e-5", "4e-5"]),
        ([0, 20_000, 40_000], False, ["0", "20k", "40k"]),
        ([0, 0.25, 0.5], True, ["0%", "25%", "50%"]),
        ([0.96, 0.965, 0.97], True, ["96.0%", "96.5%", "97.0%"]),
    ],
)
def test_labels_have_the_decimals_they_need(
    ticks: list[float], share: bool, labels: list[str]
) -> None:
    assert tick_labels(ChartAxis(ticks), share) == labels


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (500, "500"), (20_000, "20k"), (1_500_000, "1.5M"), (2e9, "2G"), (0.25, "0.25")],
)
def test_round_numbers_are_short(value: float, text: str) -> None:
    assert format_tick(value) == text


@pytest.mark.parametrize(
    ("value", "share", "text"),
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
def test_numbers_have_four_digits(value: float, share: bool, text: str) -> None:
    assert number(value, share) == text


# Curves


@given(st.lists(any_value, max_size=400), st.integers(11, 60))
def test_a_thinned_curve_keeps_its_ends_and_extremes(values: list[float], most: int) -> None:
    curve = points(values)
    thin = downsample(curve, most)
    assert len(thin) <= most
    steps = [p.step for p in thin]
    assert steps == sorted(set(steps) & {p.step for p in curve})
    if curve:
        assert (thin[0], thin[-1]) == (curve[0], curve[-1])
    known = [p.value for p in curve if math.isfinite(p.value)]
    if known:
        left = [p.value for p in thin if math.isfinite(p.value)]
        assert (min(left), max(left)) == (min(known), max(known))
    assert any(not math.isfinite(p.value) for p in thin) == (len(known) < len(curve))


@given(st.lists(finite, min_size=1, max_size=200), st.integers(0, 20), st.integers(1, 50))
def test_a_smoothed_curve_stays_among_its_values(
    values: list[float], half_window: int, most: int
) -> None:
    curve = points(values)
    smooth = running_median(curve, half_window, most)
    assert len(smooth) <= most
    assert smooth[0] == curve[0]
    assert {p.step for p in smooth} <= {p.step for p in curve}
    assert all(min(values) <= p.value <= max(values) for p in smooth)


def test_smoothing_passes_over_spikes_and_gaps_and_keeps_lines() -> None:
    spike = [1.0] * 50 + [100.0, math.nan] + [1.0] * 50
    assert {p.value for p in running_median(points(spike), 5, 200)} == {1.0}
    line = points([float(n) for n in range(100)])
    assert running_median(line, 4, 200)[:96] == line[:96]
    lost = running_median(points([1.0] * 50 + [math.nan] * 50), 5, 200)
    assert [math.isnan(p.value) for p in lost] == [False] * 55 + [True] * 45


# The drawing


def drawing(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


@settings(max_examples=60, deadline=None)
@given(
    train=st.lists(any_value, min_size=1, max_size=150),
    eval=st.lists(any_value, max_size=5),
    floor=st.sampled_from([None, 0.0]),
    wide=st.booleans(),
)
def test_whatever_the_values_the_curves_stay_in_the_picture(
    train: list[float], eval: list[float], floor: float | None, wide: bool
) -> None:
    curves = {"train": points(train)} | ({"eval": points(eval)} if eval else {})
    last = max(point.step for curve in curves.values() for point in curve)
    figure = drawing(chart("Loss", curves, last, floor=floor, wide=wide))
    svg = next(figure.iter("svg"))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for path in svg.iter("path"):
        for x, y in re.findall(r"[ML](\S+) ([^hLMVH]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def curve_of(figure: ElementTree.Element, kind: str, split: str) -> ElementTree.Element:
    (path,) = (p for p in figure.iter("path") if p.attrib["class"] == f"{kind} {split}")
    return path


def test_a_curve_carries_what_the_pointer_shows() -> None:
    figure = drawing(chart("Loss", {"train": points([3.0, math.nan, 2.0, 1.5])}, 40))
    line = curve_of(figure, "line", "train")
    assert line.attrib["data-steps"] == "10 30 40"
    assert line.attrib["data-values"] == "3.000 2.000 1.500"
    assert re.findall("[ML]", line.attrib["d"]) == ["M", "M", "L"], "broken where a value is lost"
    assert len(list(figure.iter("circle"))) == 1


def test_the_first_lost_value_is_marked() -> None:
    def marks(values: list[float]) -> list[str]:
        figure = drawing(chart("Loss", {"train": points(values)}, 40))
        return [p.attrib["d"] for p in figure.iter("path") if p.attrib["class"] == "lost"]

    assert marks([3.0, 2.0, 1.0, 1.0]) == []
    (mark,) = marks([3.0, math.nan, 1.0, math.inf])
    middle = 52 + (528 - 16 - 52) / 2
    assert mark.startswith(f"M{middle:.1f} ")


def test_only_long_curves_are_smoothed() -> None:
    def kinds(count: int, smooth: bool) -> set[str]:
        text = chart(
            "Loss", {"train": points([1.0, 2.0] * (count // 2))}, 10 * count, smooth=smooth
        )
        return {path.attrib["class"].split()[0] for path in drawing(text).iter("path")}

    assert kinds(20, True) == {"grid", "guide", "line", "dots"}
    assert kinds(50, True) == {"grid", "guide", "line"}
    assert kinds(100, True) == {"grid", "guide", "line", "raw"}
    assert kinds(100, False) == {"grid", "guide", "line"}


def test_names_are_escaped() -> None:
    text = chart('<b>"&', {'<i>"': points([1.0])}, 10)
    assert "<b>&quot;" not in text
    assert "".join(drawing(text).find("figcaption/span").itertext()) == '<b>"&'  # type: ignore[union-attr]
