"""Report of a sweep: scores of every run and of every point of the grid."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.html.charts import Chart
from bertjax.html.page import Section, render_report
from bertjax.html.plots import strip_plot
from bertjax.html.tables import TextTable
from bertjax.reports.metrics import sole_loss_terms
from data_pipelines.errors import InputError
from data_pipelines.schema import read_json_object

_POINTS_PER_CHART = 8  # points of the grid
_MAX_POINTS_SHOWN = 64  # a chart takes a tenth of a second
_FIX = "Run the sweep again."
_NUMBER = (float, None)
_POINT = {"label": str, "num_runs": int, "num_failed": int, "num_pruned": int}
_POINT |= dict.fromkeys(("mean?", "std?", "min?", "max?"), float)
_RUN = {"name": str, "point": str, "failed": bool, "scores": {str: _NUMBER}, "pruned_at?": int}
_SCHEMA = {"primary_metric": str, "best": str, "runs": [_RUN], "points": [_POINT]}


def read_sweep(path: epath.Path) -> dict[str, Any]:
    """Return the content of sweep.json.

    Raises:
      InputError: the file is not what a sweep writes.
    """
    results = read_json_object(path, _SCHEMA, _FIX)
    if results["best"] not in [run["name"] for run in results["runs"]]:
        raise InputError(f"{path}: best={results['best']!r}: none of its runs. {_FIX}")
    return results


def render_sweep(name: str, results: Mapping[str, Any]) -> str:
    """Return the page for the content of sweep.json."""
    metric, runs, points = results["primary_metric"], results["runs"], results["points"]
    best = next(run for run in runs if run["name"] == results["best"])
    title = _title(metric)
    num_failed, num_pruned = (sum(p[n] for p in points) for n in ("num_failed", "num_pruned"))
    shown = "points"
    if len(points) > _MAX_POINTS_SHOWN:
        shown = f"first {_MAX_POINTS_SHOWN} of {len(points):,} points"
    return render_report(
        name,
        [
            Section(
                f"{title.capitalize()} of every run",
                "A dot for each run that was not pruned, and a line at the mean of those that did "
                f"not fail; numbers are those of the {shown}.",
                charts=_score_plots(metric, runs, points[:_MAX_POINTS_SHOWN]),
            ),
            Section(
                "Points of the grid",
                "Mean and standard deviation exclude pruned runs, and failed ones: diverged and "
                "degenerate.",
                table=_point_table(points),
            ),
            Section("Runs", table=_run_table(metric, runs)),
        ],
        metrics=[
            (f"Best {title}", _format_score(best["scores"].get(metric))),
            ("Runs", f"{len(runs):,}"),
            ("Failed", f"{num_failed:,}"),
            *([("Pruned", f"{num_pruned:,}")] if num_pruned else []),
        ],
        facts=[("Best run", results["best"]), ("Its checkpoint", "best/")],
    )


def _score_plots(
    metric: str, runs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]
) -> list[Chart]:
    scores_of_point = collections.defaultdict(list)
    for run in runs:
        if "pruned_at" not in run and (score := run["scores"].get(metric)) is not None:
            scores_of_point[run["point"]].append(score)
    groups = {
        str(number): scores_of_point[point["label"]] for number, point in enumerate(points, 1)
    }
    means = {str(number): point.get("mean") for number, point in enumerate(points, 1)}
    numbers = [number for number, scores in groups.items() if scores]
    charts = []
    for first in range(0, len(numbers), _POINTS_PER_CHART):
        shown = numbers[first : first + _POINTS_PER_CHART]
        title = f"Points {shown[0]} to {shown[-1]}"
        charts.append(strip_plot(title, {n: groups[n] for n in shown}, means, _title(metric)))
    return charts


def _point_table(points: Sequence[Mapping[str, Any]]) -> TextTable:
    header = ("Point", "", "Runs", "Failed", "Pruned", "Mean", "Deviation", "Min", "Max")
    rows = [
        (
            point["label"],
            str(number),
            str(point["num_runs"]),
            str(point["num_failed"]),
            str(point["num_pruned"]),
            *(_format_score(point.get(name)) for name in ("mean", "std", "min", "max")),
        )
        for number, point in enumerate(points, 1)
    ]
    return TextTable(header, rows)


def _run_table(metric: str, runs: Sequence[Mapping[str, Any]]) -> TextTable:
    repeated = sole_loss_terms([run["scores"] for run in runs]) - {metric}
    names = [metric, *(n for n in runs[0]["scores"] if n != metric and n not in repeated)]
    rows = [
        (
            run["name"],
            _mark(run),
            *(_format_score(run["scores"].get(name)) for name in names),
        )
        for run in runs
    ]
    return TextTable(("Run", "", *map(_title, names)), rows)


def _mark(run: Mapping[str, Any]) -> str:
    """Return why the scores of a run do not count; "" if they do."""
    if run["failed"]:
        return "failed"
    return f"pruned at {run['pruned_at']:,}" if "pruned_at" in run else ""


def _title(name: str) -> str:
    return name.replace("_", " ")


def _format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
