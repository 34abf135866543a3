"""Results of an ablation: read from its runs, written as JSON, Markdown and HTML."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from bertjax.html.charts import Chart
from bertjax.html.page import Section, render_report
from bertjax.html.plots import strip_plot
from bertjax.html.tables import TextTable
from bertjax.training.metrics_file import read_metrics
from experiments.ablations.commands import write_shared
from experiments.ablations.tables import TASKS, Finding, Variant

# "task score" -> score of each seed; None for a diverged run
Scores = Mapping[str, Sequence[float | None]]


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """Scores of a variant.

    Attributes:
      name: name of the variant.
      perplexity: MLM perplexity on the eval split at the variant's step; None if not applicable.
      scores: scores of each seed.
      num_degenerate: number of runs that diverged or learned nothing; only the former lack scores.
    """

    name: str
    perplexity: float | None
    scores: Scores
    num_degenerate: int


def read_row(
    variant: Variant,
    workdirs: Sequence[pathlib.Path],
    step: int,
    sweeps: Mapping[str, pathlib.Path],
) -> VariantResult:
    """Return the result of a variant at a step from its pre-training runs and its sweeps.

    The perplexity of a pair is the geometric mean of both encoders.
    """
    losses = []
    for workdir in workdirs:
        lines = read_metrics(workdir)
        evaluations = [m for m in lines if m["split"] == "eval" and m["step"] <= step]
        losses.append(math.log(evaluations[-1]["mlm_perplexity"]))
    scores, num_degenerate = {}, 0
    for name, sweep in sweeps.items():
        runs = json.loads((sweep / "sweep.json").read_text())["runs"]
        num_degenerate += sum(run["failed"] for run in runs)
        for score in TASKS[name].scores:
            scores[f"{name} {score}"] = [run["scores"][score] for run in runs]
    perplexity = math.exp(statistics.fmean(losses))
    return VariantResult(variant.name, perplexity, scores, num_degenerate)


def describe_finding(finding: Finding, rows: Sequence[VariantResult]) -> list[str]:
    """Return a sentence for each score of a finding that states whether it is reproduced.

    It is, if the means differ by more than one standard error of their difference,
    sqrt(s1²/n1 + s2²/n2) with the deviations s of n seeds.
    """
    better, worse = rows[finding.better_row], rows[finding.worse_row]
    sentences = []
    for name in better.scores:
        if finding.tasks and name.split()[0] not in finding.tasks:
            continue
        high, low = _without_missing(better.scores[name]), _without_missing(worse.scores[name])
        if not high or not low:
            sentences.append(f"{finding.claim}: {name} is missing for one row.")
            continue
        difference = statistics.fmean(high) - statistics.fmean(low)
        text = f"{finding.claim}: {name} {difference:+.4f}"
        if len(high) < 2 or len(low) < 2:
            sentences.append(f"{text}, of one run each.")
            continue
        gain = -difference if finding.lower_is_better else difference
        spread = math.sqrt(
            statistics.variance(high) / len(high) + statistics.variance(low) / len(low)
        )
        verdict = "reproduced" if gain > spread else "not reproduced"
        if gain < -spread:
            verdict = "reversed"
        sentences.append(f"{text} ± {spread:.4f}, {verdict}.")
    return sentences


def write_results(
    stem: pathlib.Path, caption: str, rows: Sequence[VariantResult], findings: Sequence[Finding]
) -> str:
    """Write STEM.json, STEM.md and STEM.html; return the Markdown."""
    sentences = [line for finding in findings for line in describe_finding(finding, rows)]
    content = {"caption": caption, "rows": [dataclasses.asdict(row) for row in rows]}
    content["findings"] = sentences
    write_shared(stem.with_suffix(".json"), json.dumps(content, indent=1))
    names = list(rows[0].scores)
    header = ["", "eval perplexity", *names, "degenerate"]
    cells = [
        [
            row.name,
            "-" if row.perplexity is None else f"{row.perplexity:.2f}",
            *(_format_mean_std(row.scores[name]) for name in names),
            str(row.num_degenerate),
        ]
        for row in rows
    ]
    table = [header, ["---"] + ["---:"] * (len(header) - 1), *cells]
    lines = [caption, "", *(f"| {' | '.join(row)} |" for row in table)]
    lines += ["", "Findings:", "", *(f"- {sentence}" for sentence in sentences), ""]
    text = "\n".join(lines)
    write_shared(stem.with_suffix(".md"), text)
    scores = TextTable(header, cells)
    note = "A dot for each run and a line at their mean; numbers are those of the rows above."
    sections = [
        Section("Scores, mean and standard deviation over the seeds", table=scores),
        Section("Findings", paragraphs=sentences),
        Section("Every run", note, charts=[_chart(rows, name) for name in names]),
    ]
    page = render_report(f"Ablation: {stem.name}", sections, metrics_note=caption)
    write_shared(stem.with_suffix(".html"), page)
    return text


def _chart(rows: Sequence[VariantResult], name: str) -> Chart:
    """Return the scores of each row that has any."""
    scores = {str(i): _without_missing(row.scores[name]) for i, row in enumerate(rows, 1)}
    groups = {row: values for row, values in scores.items() if values}
    means = {row: statistics.fmean(values) for row, values in groups.items()}
    return strip_plot(name, groups, means, "")


def _without_missing(values: Sequence[float | None]) -> list[float]:
    """Return the values of the runs that did not diverge."""
    return [value for value in values if value is not None]


def _format_mean_std(scores: Sequence[float | None]) -> str:
    values = _without_missing(scores)
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean
