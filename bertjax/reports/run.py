"""A run as one HTML page: its curves, its evaluations and its configuration.

The curves are SVG; a few lines of script only show the values under the pointer.
"""

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from etils import epath

from bertjax.config.loading import parse_config
from bertjax.html.charts import Point, chart, number
from bertjax.html.page import definition_list, page, section, table, tiles
from bertjax.html.tables import eval_set_table
from bertjax.model.heads import HEADS
from bertjax.reports import corpus, sweep
from bertjax.sweeps.sweep import RESULT_FILE
from bertjax.tasks import registry
from bertjax.tasks.task import EVALUATION_FILE
from bertjax.training.metrics_file import metrics_path, read_metrics
from bertjax.training.terminal import format_duration
from bertjax.workdir.workdir import PARALLEL_RUNS_DIR
from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write

MetricEntry = Mapping[str, Any]  # a line of metrics.jsonl


@dataclasses.dataclass(frozen=True)
class MetricDisplay:
    """How a metric is called and drawn; `floor` is a value that its axis always shows."""

    title: str
    share: bool = False
    floor: float | None = None
    smooth: bool = True


PERFORMANCE_METRICS = {
    "learning_rate": MetricDisplay("Learning rate", floor=0, smooth=False),
    "grad_norm": MetricDisplay("Gradient norm"),
    "sequences_per_second": MetricDisplay("Sequences per second", floor=0),
    "input_wait_fraction": MetricDisplay("Time spent waiting for data", share=True, floor=0),
    "mfu": MetricDisplay("Model FLOP utilisation", share=True, floor=0),
}
# Told by another curve, or as good as constant.
HIDDEN_METRICS = {
    "step",
    "split",
    "epoch",
    "examples",
    "tokens_per_second",
    "mlm_perplexity",
    "nonpad_fraction",
    "time_budget_fraction",
}
NOTE = (
    '<p class="aside">Over the steps of the run. Where a curve has many points, the faint line is '
    "as logged and the strong one the median of its neighbourhood.</p>\n"
)


def write_report(directory: epath.PathLike) -> epath.Path:
    """Writes report.html into a workdir, the output of an evaluation or a corpus, and says where.

    Raises InputError when it is none of these, or a run that has logged nothing yet.
    """
    directory = epath.Path(directory)
    name = os.path.basename(os.path.abspath(directory))
    if (directory / EVALUATION_FILE).exists():
        text = _report_evaluation(name, directory)
    elif (directory / RESULT_FILE).exists():
        text = sweep.render_sweep(name, json.loads((directory / RESULT_FILE).read_text()))
    elif (directory / MANIFEST).exists():
        text = corpus.render_corpus(directory, name)
    elif (directory / PARALLEL_RUNS_DIR).exists():
        raise InputError(f"{directory} holds a sweep that is not done: run it again to its end.")
    else:
        text = _report_run(name, directory)
    path = directory / "report.html"
    with atomic_write(path) as draft:
        draft.write_bytes(text.encode(errors="xmlcharrefreplace"))  # half of a surrogate pair
    return path


def _report_evaluation(name: str, directory: epath.Path) -> str:
    """The page that the task has for the output of `bertjax evaluate`."""
    path = directory / EVALUATION_FILE
    try:
        config = parse_config(json.loads(path.read_text())["config"], registry.data_fields())
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not what an evaluation wrote ({error}): repeat it.") from error
    return registry.find(config.task).report(name, config, directory)


def _report_run(name: str, workdir: epath.Path) -> str:
    """The page of the metrics.jsonl and config.json in a workdir."""
    # Of several runs at once, what they have in common.
    entries = [entry for entry in read_metrics(workdir) if "/" not in entry["split"]]
    if not entries:
        raise InputError(
            f"{metrics_path(workdir)} holds no metrics yet: wait until the run has logged a step, "
            "or lower its log_every"
        )
    config_path = workdir / "config.json"
    if not config_path.exists():
        raise InputError(f"{config_path} does not exist: give the --workdir of a run")
    try:
        config = json.loads(config_path.read_text())
        settings = dict(_flatten(config))
    except (ValueError, AttributeError):
        raise InputError(
            f"{config_path} is no configuration of a run: restore it from a checkpoint's"
        ) from None
    return render(name, entries, settings)


def render(name: str, entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> str:
    """The page as text, from the lines of metrics.jsonl (at least one) and the configuration.

    `settings` has the fields of the configuration under their dotted names: "model.num_hidden_layers".
    """
    terms = {key for entry in entries for key in entry if key.endswith("_loss")}
    only = {
        key for key in terms if _curves_by_split(entries, key) == _curves_by_split(entries, "loss")
    }
    entries = [{key: entry[key] for key in entry if key not in only} for entry in entries]
    eval_entries = [entry for entry in entries if entry["split"] == "eval"]
    others = dict.fromkeys(key for entry in entries for key in entry if key not in HIDDEN_METRICS)
    named = [key for key in _quality_metrics() if key not in HIDDEN_METRICS]
    learning = [*named, *(key for key in others if key not in (*named, *PERFORMANCE_METRICS))]
    body = [
        _header(name, entries, eval_entries, settings),
        section("What it learnt", _charts(entries, learning)),
        section("How it ran", _charts(entries, list(PERFORMANCE_METRICS)) + NOTE),
        section("Data sets", _eval_set_scores(eval_entries)),
        section("Held-out evaluations", _evaluations(eval_entries)),
        section("Configuration", _configuration(settings)),
    ]
    return page(name, body, SCRIPT)


def _header(
    name: str,
    entries: Sequence[MetricEntry],
    eval_entries: Sequence[MetricEntry],
    settings: Mapping[str, Any],
) -> str:
    state, text = _run_status(entries, settings.get("steps"))
    # The last line of what counts most: of the held-out text where there is any.
    final = (eval_entries or entries)[-1]
    results = [
        key
        for key in final
        if key not in {*HIDDEN_METRICS, *PERFORMANCE_METRICS} or "perplexity" in key
    ]
    results = [key for key in results if "/" not in key]  # of one of several data sets
    shown = tiles((_metric(key).title, _format_value(key, final[key])) for key in results)
    where = "On held-out text" if eval_entries else "In training"
    return (
        f'<header><p class="state {state}">{escape(text)}</p><h1>{escape(name)}</h1>\n'
        f'{shown}<p class="aside">{where}, at step {final["step"]:,}</p>\n'
        f"{definition_list(_facts(entries, settings))}</header>\n"
    )


def _run_status(entries: Sequence[MetricEntry], steps: Any) -> tuple[str, str]:
    """Of the run: a class for its colour, and a few words."""
    for entry in entries:
        for key in ("loss", "grad_norm"):
            value = entry.get(key)
            if value is not None and not math.isfinite(value):
                title = _metric(key).title.lower()
                return "failed", f"Diverged at step {entry['step']:,}: {title} {number(value)}"
    last = _last_step(entries)
    share = next(
        (
            entry["time_budget_fraction"]
            for entry in reversed(entries)
            if "time_budget_fraction" in entry
        ),
        None,
    )
    if share is not None and share < 1:
        return "unfinished", f"At step {last:,}, {share:.0%} of {steps}"
    if not isinstance(steps, int) or last >= steps:
        return "finished", f"Finished, {last:,} steps"
    return "unfinished", f"At step {last:,} of {steps:,}, {last / steps:.0%}"


def _last_step(entries: Sequence[MetricEntry]) -> int:
    return max(entry["step"] for entry in entries)


def _facts(entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader asks first, from whichever settings there are."""

    def joined(**texts: str) -> str:
        known = {key: settings.get(key.replace("__", ".")) for key in texts}
        return " · ".join(
            texts[key].format(f"{value:,}" if type(value) is int else value)
            for key, value in known.items()
            if value not in (None, False)
        )

    model = joined(
        model__num_hidden_layers="{} layers",
        model__hidden_size="{} wide",
        model__num_attention_heads="{} heads",
        model__vocab_size="{} pieces",
        model__dtype="{}",
    )
    data = joined(data__dir="{}", data__objective="{}", data__masking="masking by {}")
    batch = joined(batch_size="{} rows", max_seq_length="{} pieces a row", packing="packed")
    optimizer = joined(
        optimizer__name="{}",
        optimizer__learning_rate="peak rate {}",
        optimizer__warmup="warm-up {} steps",
        optimizer__schedule="{}",
    )
    speed = _speed(entries, settings.get("batch_size"))
    labels = ("Model", "Data", "Batch", "Optimiser", "Speed")
    return list(zip(labels, (model, data, batch, optimizer, speed), strict=True))


def _speed(entries: Sequence[MetricEntry], batch_size: Any) -> str:
    train = [entry for entry in entries if entry["split"] == "train"]
    rates = [entry.get("sequences_per_second") or 0 for entry in train]
    if not any(rates):
        return ""
    parts = [f"{number(statistics.median(rates))} sequences per second"]
    if isinstance(batch_size, int):
        steps = [entry["step"] for entry in train]
        taken = zip([0, *steps], steps, rates, strict=False)
        seconds = sum((to - since) * batch_size / rate for since, to, rate in taken if rate > 0)
        parts.append(f"{format_duration(seconds)} in training steps")
    return " · ".join(parts)


def _charts(entries: Sequence[MetricEntry], keys: Sequence[str]) -> str:
    """The charts of those metrics that the run has."""
    figures = []
    for key in keys:
        curves = _curves_by_split(entries, key)
        if curves:
            metric = _metric(key)
            figures.append(
                chart(
                    metric.title,
                    curves,
                    _last_step(entries),
                    share=metric.share,
                    floor=metric.floor,
                    smooth=metric.smooth,
                    wide=key == "loss",
                )
            )
    return f'<div class="charts">{"".join(figures)}</div>\n' if figures else ""


def _curves_by_split(entries: Sequence[MetricEntry], key: str) -> dict[str, list[Point]]:
    """The points of a metric by split; splits that never know it are left out."""
    curves: dict[str, list[Point]] = {}
    for entry in entries:
        if entry.get(key) is not None:
            point = Point(entry["step"], float(entry[key]))
            curves.setdefault(entry["split"], []).append(point)
    return curves


def _eval_set_scores(eval_entries: Sequence[MetricEntry]) -> str:
    """The last scores of each of several data sets."""
    found = eval_set_table(
        {k: v for k, v in eval_entries[-1].items() if k != "split"} if eval_entries else {}
    )
    return table(*found) if found.rows else ""


def _evaluations(eval_entries: Sequence[MetricEntry]) -> str:
    if not eval_entries:
        return ""
    keys = dict.fromkeys(key for entry in eval_entries for key in entry if "/" not in key)
    keys.pop("split", None)
    finite = [e for e in eval_entries if math.isfinite(e.get("loss") or math.nan)]
    best = min(finite, key=lambda entry: entry["loss"], default=None)
    head = "".join(f"<th>{escape(_metric(key).title)}</th>" for key in keys)
    rows = []
    for entry in reversed(eval_entries):
        cells = "".join(f"<td>{escape(_format_value(key, entry.get(key)))}</td>" for key in keys)
        rows.append(f'<tr class="best">{cells}</tr>' if entry is best else f"<tr>{cells}</tr>")
    note = f'<p class="aside">{len(eval_entries)} in all, newest first; the least loss in bold.</p>'
    return (
        f'<div class="evaluations"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}\n"
    )


def _configuration(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(json.dumps(value, ensure_ascii=False))}</td></tr>"
        for key, value in settings.items()
    )
    summary = f"<summary>All {len(settings)} fields</summary>"
    return f'<details>{summary}<table class="settings">{rows}</table></details>\n'


def _flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested dictionaries under their dotted names, as the command line has them."""
    leaves = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves += _flatten(value, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves


def _quality_metrics() -> dict[str, MetricDisplay]:
    """What heads say of their metrics, losses first; what none names is drawn after them."""
    titles = [item for head in HEADS.values() for item in head.titles.items()]
    titles.sort(key=lambda item: not item[0].endswith("_loss"))
    return {"loss": MetricDisplay("Loss")} | {
        name: MetricDisplay(title, share=name.endswith("accuracy"), floor=floor)
        for name, (title, floor) in titles
    }


def _metric(key: str) -> MetricDisplay:
    """How the metric is called and drawn, also one that only some task has."""
    known = _quality_metrics() | PERFORMANCE_METRICS
    unknown = MetricDisplay(key.replace("_", " ").capitalize(), share=key.endswith("accuracy"))
    return known.get(key, unknown)


def _format_value(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else number(value, _metric(key).share)


SCRIPT = """
const charts = [...document.querySelectorAll("figure")].map(figure => ({
  svg: figure.querySelector("svg"),
  at: figure.querySelector("i"),
  guide: figure.querySelector(".guide"),
  curves: [...figure.querySelectorAll(".line")].map((path, n) => ({
    steps: path.dataset.steps.split(" ").map(Number),
    values: path.dataset.values.split(" "),
    spots: [...path.getAttribute("d").matchAll(/[ML]([\\d.]+) ([\\d.]+)/g)],
    label: figure.querySelectorAll(".keys b")[n],
    final: figure.querySelectorAll(".keys b")[n].textContent,
    spot: figure.querySelectorAll("circle")[n],
  })).filter(curve => curve.spots.length),
}));
const nearest = (steps, step) => steps.reduce(
  (best, s, i) => Math.abs(s - step) < Math.abs(steps[best] - step) ? i : best, 0);

function show(step) {
  for (const {svg, at, guide, curves} of charts) {
    const {left, right, last} = svg.dataset;
    guide.style.transform = `translateX(${+left + (right - left) * step / Math.max(last, 1)}px)`;
    at.textContent = `step ${step.toLocaleString("en")}`;
    for (const {steps, values, spots, label, spot} of curves) {
      const i = nearest(steps, step), known = step >= steps[0] && step <= steps.at(-1);
      label.textContent = known ? values[i] : "-";
      spot.classList.toggle("on", known);
      spot.setAttribute("cx", spots[i][1]);
      spot.setAttribute("cy", spots[i][2]);
    }
  }
  document.body.classList.add("hover");
}

function hide() {
  document.body.classList.remove("hover");
  for (const {at, curves} of charts) {
    at.textContent = "";
    for (const {label, final} of curves) label.textContent = final;
  }
}

for (const {svg, curves} of charts.filter(chart => chart.curves.length)) {
  svg.addEventListener("pointermove", event => {
    const {left, right, last} = svg.dataset, box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const {steps} = curves.reduce((a, b) => b.steps.length > a.steps.length ? b : a);
    show(steps[nearest(steps, (x - left) / (right - left) * last)]);
  });
  svg.addEventListener("pointerleave", hide);
}
"""
