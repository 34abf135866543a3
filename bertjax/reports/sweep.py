"""A sweep as one HTML page: a dot for each run, a row for each point of the grid."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bertjax.html.page import definition_list, page, section, table, tiles
from bertjax.html.plots import STYLE, strip_plot

_POINTS_PER_CHART = 8  # points of the grid in a chart


def render_sweep(name: str, results: Mapping[str, Any]) -> str:
    """The page of what `sweep.json` holds."""
    score, runs, points = results["score"], results["runs"], results["points"]
    best = next(run for run in runs if run["name"] == results["best"])
    failed = sum(run["failed"] for run in runs)
    header = (
        f"<header><h1>{escape(name)}</h1>\n"
        + tiles(
            [
                (f"Best {_title(score)}", _number(best["scores"].get(score))),
                ("Runs", f"{len(runs):,}"),
                ("Failed", f"{failed:,}"),
            ]
        )
        + definition_list([("Best run", results["best"]), ("Its checkpoint", "best/")])
        + "</header>\n"
    )
    body = [
        f"<style>{STYLE}</style>\n",
        header,
        section(f"{_title(score).capitalize()} of every run", _score_plots(score, runs, points)),
        section("Points of the grid", _point_table(points)),
        section("Runs", _run_table(score, runs)),
    ]
    return page(name, body)


def _score_plots(
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
        strip_plot(
            f"Points {some[0]} to {some[-1]}", {each: groups[each] for each in some}, _title(score)
        )
        for some in (
            numbers[first : first + _POINTS_PER_CHART]
            for first in range(0, len(numbers), _POINTS_PER_CHART)
        )
    ]
    note = '<p class="aside">A dot a run, the line their mean; points are those of the table.</p>'
    return f'<div class="pair">{"".join(charts)}</div>{note}\n'


def _point_table(points: Sequence[Mapping[str, Any]]) -> str:
    head = ("Point", "", "n", "Failed", "Mean", "Deviation", "Min", "Max")
    names = ("mean", "std", "min", "max")
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


def _run_table(score: str, runs: Sequence[Mapping[str, Any]]) -> str:
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
    return table(("Trainer", "", *(map(_title, names))), rows, "evaluations")


def _title(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
