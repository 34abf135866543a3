"""A run as one HTML page: its curves, its evaluations and its configuration.

The page needs nothing but itself: no network, no fonts, no libraries. The curves are SVG; a few
lines of script only show the values under the pointer.
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

from bertjax.charts import Point, chart, number
from bertjax.writers import duration, metrics_path, read_metrics

Entry = Mapping[str, Any]  # a line of metrics.jsonl


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a metric is called and drawn; `floor` is a value that its axis always shows."""

    title: str
    share: bool = False
    floor: float | None = None
    smooth: bool = True


# In the order of the page. A metric that is in neither is drawn after the first.
LEARNING = {
    "loss": Metric("Loss"),
    "mlm_loss": Metric("Masked-piece loss"),
    "nsp_loss": Metric("Next-sentence loss"),
    "mlm_accuracy": Metric("Masked-piece accuracy", share=True, floor=0),
    "nsp_accuracy": Metric("Next-sentence accuracy", share=True),
}
RUNNING = {
    "learning_rate": Metric("Learning rate", floor=0, smooth=False),
    "grad_norm": Metric("Gradient norm"),
    "sequences_per_second": Metric("Sequences per second", floor=0),
    "data_wait": Metric("Time spent waiting for data", share=True, floor=0),
    "mfu": Metric("Model FLOP utilisation", share=True, floor=0),
}
# Told by another curve, or as good as constant.
NOT_DRAWN = {"step", "split", "epoch", "examples", "pieces_per_second", "mlm_perplexity", "fill"}
NOTE = (
    '<p class="aside">Over the steps of the run. Where a curve has many points, the faint line is '
    "as logged and the strong one the median of its neighbourhood.</p>\n"
)


def write_report(workdir: epath.PathLike) -> epath.Path:
    """Writes WORKDIR/report.html from the metrics.jsonl and config.json there; gives its path.

    Raises ValueError when the workdir holds no run, or one that has logged nothing yet.
    """
    workdir = epath.Path(workdir)
    entries = read_metrics(workdir)
    if not entries:
        raise ValueError(
            f"{metrics_path(workdir)} holds no metrics yet: wait until the run has logged a step, "
            "or lower its log_every"
        )
    config_path = workdir / "config.json"
    if not config_path.exists():
        raise ValueError(f"{config_path} does not exist: give the --workdir of a run")
    try:
        config = json.loads(config_path.read_text())
        settings = dict(_flat(config))
    except (ValueError, AttributeError):
        raise ValueError(
            f"{config_path} is no configuration of a run: restore it from a checkpoint's"
        ) from None
    path = workdir / "report.html"
    path.write_text(render(os.path.basename(os.path.abspath(workdir)), entries, settings))
    return path


def render(name: str, entries: Sequence[Entry], settings: Mapping[str, Any]) -> str:
    """The page as text, from the lines of metrics.jsonl (at least one) and the configuration.

    `settings` has the fields of the configuration under their dotted names: "model.num_layers".
    """
    if _curves(entries, "loss") == _curves(entries, "mlm_loss"):  # the only term
        entries = [{key: entry[key] for key in entry if key != "mlm_loss"} for entry in entries]
    heldout = [entry for entry in entries if entry["split"] == "heldout"]
    others = dict.fromkeys(key for entry in entries for key in entry if key not in NOT_DRAWN)
    learning = [*LEARNING, *(key for key in others if key not in LEARNING | RUNNING)]
    body = [
        _header(name, entries, heldout, settings),
        _section("What it learnt", _charts(entries, learning)),
        _section("How it ran", _charts(entries, list(RUNNING)) + NOTE),
        _section("Held-out evaluations", _evaluations(heldout)),
        _section("Configuration", _configuration(settings)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)} · bertjax</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main>\n{''.join(body)}</main>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}</section>\n" if content else ""


def _header(
    name: str, entries: Sequence[Entry], heldout: Sequence[Entry], settings: Mapping[str, Any]
) -> str:
    state, text = _state(entries, settings.get("steps"))
    # The last line of what counts most: of the held-out text where there is any.
    final = (heldout or entries)[-1]
    results = [key for key in final if key not in {*NOT_DRAWN, *RUNNING} or "perplexity" in key]
    tiles = "".join(
        f'<div class="tile"><b>{escape(_shown(key, final[key]))}</b>'
        f"<span>{escape(_metric(key).title)}</span></div>"
        for key in results
    )
    where = "On held-out text" if heldout else "In training"
    facts = "".join(
        f"<dt>{label}</dt><dd>{escape(value)}</dd>"
        for label, value in _facts(entries, settings)
        if value
    )
    return (
        f'<header><p class="state {state}">{escape(text)}</p><h1>{escape(name)}</h1>\n'
        f'<div class="tiles">{tiles}</div><p class="aside">{where}, at step {final["step"]:,}</p>\n'
        f"<dl>{facts}</dl></header>\n"
    )


def _state(entries: Sequence[Entry], steps: Any) -> tuple[str, str]:
    """Of the run: a class for its colour, and a few words."""
    for entry in entries:
        for key in ("loss", "grad_norm"):
            value = entry.get(key)
            if value is not None and not math.isfinite(value):
                title = _metric(key).title.lower()
                return "failed", f"Diverged at step {entry['step']:,}: {title} {number(value)}"
    last = _last(entries)
    if not isinstance(steps, int) or last >= steps:
        return "finished", f"Finished, {last:,} steps"
    return "unfinished", f"At step {last:,} of {steps:,}, {last / steps:.0%}"


def _last(entries: Sequence[Entry]) -> int:
    return max(entry["step"] for entry in entries)


def _facts(entries: Sequence[Entry], settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader asks first, from whichever settings there are."""

    def joined(**texts: str) -> str:
        known = {key: settings.get(key.replace("__", ".")) for key in texts}
        return " · ".join(
            texts[key].format(f"{value:,}" if type(value) is int else value)
            for key, value in known.items()
            if value not in (None, False)
        )

    model = joined(
        model__num_layers="{} layers",
        model__hidden_size="{} wide",
        model__num_heads="{} heads",
        model__vocab_size="{} pieces",
        model__dtype="{}",
    )
    data = joined(data__dir="{}", data__objective="{}", data__masking="masking by {}")
    batch = joined(batch_size="{} rows", seq_len="{} pieces a row", packing="packed")
    optimizer = joined(
        optimizer__name="{}",
        optimizer__learning_rate="peak rate {}",
        optimizer__warmup="warm-up {} steps",
        optimizer__schedule="{}",
    )
    speed = _speed(entries, settings.get("batch_size"))
    labels = ("Model", "Data", "Batch", "Optimiser", "Speed")
    return list(zip(labels, (model, data, batch, optimizer, speed), strict=True))


def _speed(entries: Sequence[Entry], batch_size: Any) -> str:
    train = [entry for entry in entries if entry["split"] == "train"]
    rates = [entry.get("sequences_per_second") or 0 for entry in train]
    if not any(rates):
        return ""
    parts = [f"{number(statistics.median(rates))} sequences per second"]
    if isinstance(batch_size, int):
        steps = [entry["step"] for entry in train]
        taken = zip([0, *steps], steps, rates, strict=False)
        seconds = sum((to - since) * batch_size / rate for since, to, rate in taken if rate > 0)
        parts.append(f"{duration(seconds)} in training steps")
    return " · ".join(parts)


def _charts(entries: Sequence[Entry], keys: Sequence[str]) -> str:
    """The charts of those metrics that the run has."""
    figures = []
    for key in keys:
        curves = _curves(entries, key)
        if curves:
            metric = _metric(key)
            figures.append(
                chart(
                    metric.title,
                    curves,
                    _last(entries),
                    share=metric.share,
                    floor=metric.floor,
                    smooth=metric.smooth,
                    wide=key == "loss",
                )
            )
    return f'<div class="charts">{"".join(figures)}</div>\n' if figures else ""


def _curves(entries: Sequence[Entry], key: str) -> dict[str, list[Point]]:
    """The points of a metric by split; splits that never know it are left out."""
    curves: dict[str, list[Point]] = {}
    for entry in entries:
        if entry.get(key) is not None:
            point = Point(entry["step"], float(entry[key]))
            curves.setdefault(entry["split"], []).append(point)
    return curves


def _evaluations(heldout: Sequence[Entry]) -> str:
    if not heldout:
        return ""
    keys = list(dict.fromkeys(key for entry in heldout for key in entry if key != "split"))
    finite = [e for e in heldout if math.isfinite(e.get("loss") or math.nan)]
    best = min(finite, key=lambda entry: entry["loss"], default=None)
    head = "".join(f"<th>{escape(_metric(key).title)}</th>" for key in keys)
    rows = []
    for entry in reversed(heldout):
        cells = "".join(f"<td>{escape(_shown(key, entry.get(key)))}</td>" for key in keys)
        rows.append(f'<tr class="best">{cells}</tr>' if entry is best else f"<tr>{cells}</tr>")
    note = f'<p class="aside">{len(heldout)} in all, newest first; the least loss in bold.</p>'
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


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested dictionaries under their dotted names, as the command line has them."""
    leaves = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves += _flat(value, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves


def _metric(key: str) -> Metric:
    """How the metric is called and drawn, also one that only some task has."""
    known = LEARNING | RUNNING | {"mlm_perplexity": Metric("Masked-piece perplexity")}
    unknown = Metric(key.replace("_", " ").capitalize(), share=key.endswith(("accuracy", "f1")))
    return known.get(key, unknown)


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else number(value, _metric(key).share)


STYLE = """
:root {
  color-scheme: light dark;
  --page: #fdfdfc; --ink: #20242a; --soft: #6a7079; --line: #e8e8e4; --rule: #d3d3cd;
  --train: #2b6cb0; --heldout: #d1661c; --good: #3a8a56; --bad: #c2362f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --ink: #e3e6ea; --soft: #949ba5; --line: #282c32; --rule: #3b4048;
    --train: #6cabef; --heldout: #f09a57; --good: #6fc08b; --bad: #f0736b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans",
    Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
main { max-width: 1128px; margin: 0 auto; padding: 56px 24px 72px; }
h1 { font-size: 30px; line-height: 1.2; font-weight: 600; letter-spacing: -.015em; margin: 0; }
h2 { font-size: 18px; font-weight: 600; letter-spacing: -.005em; margin: 56px 0 20px; }
.state { margin: 0 0 10px; color: var(--soft); font-size: 14px; }
.state::before {
  content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%;
  margin-right: 8px; background: var(--train);
}
.state.finished::before { background: var(--good); }
.state.failed::before { background: var(--bad); }
.state.failed { color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: 20px 48px; margin: 30px 0 0; }
.tile b { display: block; font-size: 27px; line-height: 1.2; font-weight: 500;
  letter-spacing: -.015em; }
.tile span { color: var(--soft); font-size: 13px; }
.aside { color: var(--soft); font-size: 13px; margin: 10px 0 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 32px 0 0;
  padding-top: 22px; border-top: 1px solid var(--line); }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 36px 24px; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { display: flex; justify-content: space-between; align-items: baseline; gap: 16px;
  margin-bottom: 8px; font-size: 14px; font-weight: 600; }
figcaption small { font-size: 12px; font-weight: 400; color: var(--soft); margin-left: 6px; }
.keys { display: flex; gap: 16px; font-size: 13px; font-weight: 400; color: var(--soft);
  white-space: nowrap; }
.keys b { font-weight: 500; color: var(--ink); }
.keys i { font-style: normal; }
.keys i:empty { display: none; }
.keys span::before { content: ""; display: inline-block; width: 12px; height: 2.5px;
  border-radius: 2px; margin-right: 6px; vertical-align: 4px; background: currentColor; }
.keys .train::before { background: var(--train); }
.keys .heldout::before { background: var(--heldout); }
svg { display: block; width: 100%; height: auto; overflow: visible; touch-action: pan-y; }
svg text { font-size: 12px; fill: var(--soft); text-anchor: middle; }
svg text.value { text-anchor: end; }
svg path { fill: none; stroke: var(--soft); stroke-linecap: round; stroke-linejoin: round; }
svg .grid { stroke: var(--line); }
svg .line { stroke-width: 1.8; }
svg .raw { stroke-width: 1; opacity: .28; }
svg .dots { stroke-width: 5; }
svg path.train { stroke: var(--train); }
svg path.heldout { stroke: var(--heldout); }
svg circle { fill: var(--soft); stroke: var(--page); stroke-width: 1.5; visibility: hidden; }
svg circle.train { fill: var(--train); }
svg circle.heldout { fill: var(--heldout); }
svg .lost { stroke: var(--bad); stroke-dasharray: 2 4; }
svg .guide { stroke: var(--rule); visibility: hidden; }
.hover .guide, .hover circle.on { visibility: visible; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
.evaluations { max-height: 440px; overflow: auto; }
.evaluations table { width: 100%; }
th { position: sticky; top: 0; background: var(--page); color: var(--soft); font-weight: 500;
  font-size: 13px; text-align: right; vertical-align: bottom; }
th, td { padding: 6px 0 6px 24px; border-bottom: 1px solid var(--line); }
td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.best td { font-weight: 600; }
summary { cursor: pointer; color: var(--soft); }
.settings { margin-top: 12px; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "Liberation Mono",
  monospace; }
.settings td { text-align: left; padding: 4px 32px 4px 0; white-space: normal;
  overflow-wrap: anywhere; }
.settings td:first-child { color: var(--soft); }
@media (max-width: 760px) {
  main { padding: 32px 16px 48px; }
  .charts { grid-template-columns: 1fr; }
  .wide svg { min-width: 640px; }
  figcaption { flex-wrap: wrap; gap: 2px 16px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 10px; }
}
@media print { .evaluations { max-height: none; } figure, tr { break-inside: avoid; } }
"""

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
