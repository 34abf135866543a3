"""Points, columns and matrices, as SVG text; their look comes from the page's style."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from bertjax.html.charts import grid_lines, number, tick_labels, value_axis

_WIDTH, _HEIGHT = 528, 320
_BINS = 10  # of probabilities
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, _WIDTH - 16, 8, _HEIGHT - 42


def scatter(
    title: str,
    points: Sequence[tuple[float, float]],
    axes: tuple[str, str],
    *,
    diagonal: bool = False,
    share: bool = False,
    sizes: Sequence[float] | None = None,
) -> str:
    """Points (x, y) on two linear axes of one scale where there is a `diagonal`.

    Args:
      axes: what x and y are.
      share: both are shares, shown in percent from 0 to 1.
      sizes: radii; 2.5 by default.
    """
    values: list[Sequence[float]] = [[x for x, _ in points], [y for _, y in points]]
    if diagonal:
        values = [[*values[0], *values[1]]] * 2
    if share:
        values = [[0.0, 1.0]] * 2
    across, up = (value_axis(each, None) for each in values)

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * across.position(value)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * up.position(value)

    parts = grid_lines(up, y, _LEFT, _RIGHT, share)
    parts += [
        f'<text x="{x(tick):.1f}" y="{_BOTTOM + 18}">{label}</text>'
        for tick, label in zip(across.ticks, tick_labels(across, share), strict=True)
    ]
    if diagonal or share:
        low, high = across.ticks[0], across.ticks[-1]
        parts.append(f'<path class="grid" d="M{x(low)} {y(low)}L{x(high)} {y(high)}"/>')
    radii = sizes or [2.5] * len(points)
    parts += [
        f'<circle class="train shown" cx="{x(a):.1f}" cy="{y(b):.1f}" r="{radius:.1f}">'
        f"<title>{number(a, share)}, {number(b, share)}</title></circle>"
        for (a, b), radius in zip(points, radii, strict=True)
    ]
    return _figure(title, axes, parts)


def reliability_diagram(probabilities: Sequence[float], right: Sequence[bool]) -> str:
    """How often what is said with some probability is right (Guo et al. 2017)."""
    sure, correct = np.array(probabilities), np.array(right)
    numbers = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    points, sizes, off = [], [], 0.0
    for each in np.unique(numbers):
        own = numbers == each
        x, y, share = (float(np.mean(values)) for values in (sure[own], correct[own], own))
        points.append((x, y))
        sizes.append(2 + 8 * share**0.5)
        off += abs(x - y) * share
    title = f"Calibration: off by {off:.1%} in the mean"
    return scatter(title, points, ("probability", "share right"), share=True, sizes=sizes)


def strip_plot(title: str, groups: Mapping[str, Sequence[float]], axis: str) -> str:
    """A dot for each value, those of a group above its name."""
    up = value_axis([value for values in groups.values() for value in values], None)
    wide = (_RIGHT - _LEFT) / max(len(groups), 1)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * up.position(value)

    parts = grid_lines(up, y, _LEFT, _RIGHT, False)
    for i, (name, values) in enumerate(groups.items()):
        middle = _LEFT + wide * (i + 0.5)
        parts.append(f'<text x="{middle:.1f}" y="{_BOTTOM + 18}">{escape(name)}</text>')
        mean = sum(values) / len(values)
        reach = wide / 4
        parts.append(f'<path d="M{middle - reach:.1f} {y(mean):.1f}h{2 * reach:.1f}"/>')
        for j, value in enumerate(values):
            # Side by side, so that equal ones are seen.
            x = middle + reach * ((j + 0.5) / len(values) - 0.5)
            parts.append(
                f'<circle class="train shown" cx="{x:.1f}" cy="{y(value):.1f}" r="4">'
                f"<title>{escape(name)}: {number(value)}</title></circle>"
            )
    return _figure(title, ("", axis), parts)


def confusion_matrix(title: str, names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A table of counts, a row for each gold class and a column for each that was said.

    Cells are shaded by their share of the row.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for i, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td style="--share:{100 * count / total:.0f}%" class="{"hit" if i == j else "miss"}">'
            f"{count or ''}</td>"
            for j, count in enumerate(row)
        )
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return (
        f"<figure><figcaption><span>{escape(title)} <small>a row for each gold label, a column for "
        f'each that was said</small></span></figcaption><div class="scroll"><table class="matrix">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "</figure>\n"
    )


def _figure(title: str, axes: tuple[str, str], parts: Sequence[str]) -> str:
    across, up = axes
    note = f" <small>{escape(up)}</small>" if up else ""
    if across:
        parts = [
            *parts,
            f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 4}">{escape(across)}</text>',
        ]
    return (
        f"<figure><figcaption><span>{escape(title)}{note}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></figure>\n"
    )


STYLE = """
svg circle.shown { visibility: visible; stroke-width: .8; fill-opacity: .75; }
.matrix th, .matrix td { text-align: center; padding: 6px 10px; }
.matrix td.hit { background: color-mix(in srgb, var(--good) calc(.7 * var(--share)), transparent); }
.matrix td.miss { background: color-mix(in srgb, var(--bad) calc(.7 * var(--share)), transparent); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 36px 24px; }
@media (max-width: 760px) { .pair { grid-template-columns: 1fr; } }
"""
