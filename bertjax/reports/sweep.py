"""A sweep as one HTML page: a dot for each run, a row for each point of the grid."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bertjax.html.page import facts, page, section, table, tiles
from bertjax.html.plots import STYLE, strips

_WIDTH = 8  # points of the grid in a chart


def render(name: str, found: Mapping[str, Any]) -> str:
    """The page of what `sweep.json` holds."""
    score, runs, points = found["score"], found["runs"], found["points"]
    best = next(run for run in runs if run["name"] == found["best"])
    failed = sum(run["failed"] for run in runs)
    header = (
        f"<header><h1>{escape(name)}</h1>\n"
        + tiles(
            [
                (f"Best {_words(score)}", _number(best["scores"].get(score))),
                ("Runs", f"{len(runs):,}"),
                ("Failed", f"{failed:,}"),
            ]
        )
        + facts([("Best run", found["best"]), ("Its checkpoint", "best/")])
        + "</header>\n"
    )
    body = [
        f"<style>{STYLE}</style>\n",
        header,
        section(f"{_words(score).capitalize()} of every run", _dots(score, runs, points)),
        section("Points of the grid", _points(points)),
        section("Runs", _runs(score, runs)),
    ]
    return page(name, body)


def _dots(
    score: str, runs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]
) -> str:
    groups = {
        str(number): [
            run["scores"][score]
            for run in runs
            if run["point"] == point["point"] and run["scores"].get(score) is not None
        ]
        for number, point in enumerate(points, 1)
    }
    groups = {number: values for number, values in groups.items() if values}
    numbers = list(groups)
    charts = [
        strips(
            f"Points {some[0]} to {some[-1]}", {each: groups[each] for each in some}, _words(score)
        )
        for some in (numbers[first : first + _WIDTH] for first in range(0, len(numbers), _WIDTH))
    ]
    note = '<p class="aside">A dot a run, the line their mean; points are those of the table.</p>'
    return f'<div class="pair">{"".join(charts)}</div>{note}\n'


def _points(points: Sequence[Mapping[str, Any]]) -> str:
    head = ("Point", "", "n", "Failed", "Mean", "Deviation", "Min", "Max")
    names = ("mean", "deviation", "min", "max")
    rows = [
        (
            point["point"],
            str(number),
            str(point["n"]),
            str(point["failed"]),
            *(_number(point[name]) for name in names),
        )
        for number, point in enumerate(points, 1)
    ]
    note = '<p class="aside">Means leave failed runs out, which learned nothing.</p>'
    return table(head, rows) + note


def _runs(score: str, runs: Sequence[Mapping[str, Any]]) -> str:
    # A loss of one term is that term.
    names = [score, *(n for n in runs[0]["scores"] if n != score and not n.endswith("_loss"))]
    rows = [
        (
            run["name"],
            "failed" if run["failed"] else "",
            *(_number(run["scores"].get(name)) for name in names),
        )
        for run in runs
    ]
    return table(("Run", "", *(map(_words, names))), rows, "evaluations")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
