"""What came of an ablation: read from its runs, written as JSON, Markdown and a page."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from html import escape

from bertjax.html.page import page, section
from bertjax.html.page import table as draw_table
from bertjax.html.plots import STYLE, strip_plot
from bertjax.training.metric_writers import read_metrics
from experiments.ablations.tables import TASKS, AblationTable, Finding, Variant

Scores = Mapping[str, Sequence[float | None]]  # "task score" -> of each seed; None of a failed one


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """A variant.

    Attributes:
      perplexity: of held-out text, at the step that the model was taken; None where it is no
        matter.
      failed: runs that learned nothing, which count all the same.
    """

    name: str
    perplexity: float | None
    scores: Scores
    num_degenerate: int


def read_row(
    variant: Variant,
    workdir: pathlib.Path,
    model: pathlib.Path,
    sweeps: Mapping[str, pathlib.Path],
) -> VariantResult:
    """The scores of a variant from its pre-training and the sweeps of its tasks."""
    step = int(model.name)
    evaluations = [m for m in read_metrics(workdir) if m["split"] == "eval" and m["step"] <= step]
    scores, num_degenerate = {}, 0
    for name, sweep in sweeps.items():
        runs = json.loads((sweep / "sweep.json").read_text())["runs"]
        num_degenerate += sum(run["failed"] for run in runs)
        for score in TASKS[name].scores:
            scores[f"{name} {score}"] = [run["scores"][score] for run in runs]
    return VariantResult(variant.name, evaluations[-1]["mlm_perplexity"], scores, num_degenerate)


def describe_finding(finding: Finding, rows: Sequence[VariantResult]) -> list[str]:
    """Whether a finding shows, in a sentence for each score that it is of.

    It does where the means are further apart than one standard deviation of their difference.
    """
    better, worse = rows[finding.better], rows[finding.worse]
    said = []
    for name in better.scores:
        if finding.tasks and name.split()[0] not in finding.tasks:
            continue
        high, low = _without_missing(better.scores[name]), _without_missing(worse.scores[name])
        if not high or not low:
            said.append(f"{finding.said}: {name} is not known of both.")
            continue
        apart = statistics.fmean(high) - statistics.fmean(low)
        found = f"{finding.said}: {name} {apart:+.4f}"
        if len(high) < 2 or len(low) < 2:
            said.append(f"{found}, of one run each.")
            continue
        by = -apart if finding.less else apart
        spread = math.hypot(statistics.stdev(high), statistics.stdev(low))
        verdict = "shows here" if by > spread else "does not show here"
        if by < -spread:
            verdict = "is the other way round here"
        said.append(f"{found} ± {spread:.4f}, {verdict}.")
    return said


def write_results(stem: pathlib.Path, table: AblationTable, rows: Sequence[VariantResult]) -> str:
    """Writes STEM.json, STEM.md and STEM.html; returns the Markdown."""
    found = [line for finding in table.findings for line in describe_finding(finding, rows)]
    content = {"caption": table.caption, "rows": [dataclasses.asdict(row) for row in rows]}
    stem.with_suffix(".json").write_text(json.dumps(content | {"findings": found}, indent=1))
    names = list(rows[0].scores)
    head = ["", "held-out perplexity", *names, "failed"]
    cells = [
        [
            row.name,
            "-" if row.perplexity is None else f"{row.perplexity:.2f}",
            *(_format_mean_std(row.scores[name]) for name in names),
            str(row.num_degenerate),
        ]
        for row in rows
    ]
    lines = [
        table.caption,
        "",
        _markdown_row(head),
        _markdown_row(["---"] + ["---:"] * (len(head) - 1)),
    ]
    told = ["", "What was to be found:", "", *(f"- {line}" for line in found)]
    text = "\n".join([*lines, *map(_markdown_row, cells), *told, ""])
    stem.with_suffix(".md").write_text(text)
    charts = "".join(_chart(rows, name) for name in names)
    parts = [
        f"<style>{STYLE}</style>\n<header><h1>Ablation: {escape(stem.name)}</h1>"
        f"<p>{escape(table.caption)}</p></header>",
        section("Scores, mean and standard deviation over the seeds", draw_table(head, cells)),
        section("What was to be found", "".join(f"<p>{escape(line)}</p>" for line in found)),
        section(
            "Every run",
            f'<div class="pair">{charts}</div>'
            '<p class="aside">A dot a run, the line their mean; rows are numbered as above.</p>',
        ),
    ]
    stem.with_suffix(".html").write_text(page(stem.name, parts))
    return text


def _chart(rows: Sequence[VariantResult], name: str) -> str:
    """The runs of each row, where there are any with this score."""
    groups = {
        str(i): own for i, row in enumerate(rows, 1) if (own := _without_missing(row.scores[name]))
    }
    return strip_plot(name, groups, "") if groups else ""


def _without_missing(values: Sequence[float | None]) -> list[float]:
    """Those of runs that did not fail altogether."""
    return [value for value in values if value is not None]


def _format_mean_std(own: Sequence[float | None]) -> str:
    values = _without_missing(own)
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
