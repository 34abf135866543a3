"""Report of a run: status, curves of its metrics, evaluations, configuration."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.checkpointing.retention import BestMetric
from bertjax.config.config import Config
from bertjax.config.fields import build_dataclass
from bertjax.config.loading import read_config_dict
from bertjax.html.axes import format_number
from bertjax.html.charts import Chart, MetricDisplay, Point, line_chart
from bertjax.html.page import Section, Status, render_report
from bertjax.html.tables import TextTable, eval_set_table
from bertjax.reports.metrics import (
    PERFORMANCE_METRICS,
    metric_display,
    quality_metrics,
    sole_loss_terms,
)
from bertjax.tasks import registry
from bertjax.training.metrics_file import metrics_path, read_metrics
from bertjax.training.terminal import format_duration
from bertjax.workdir.goodput import PARTS, Session, read_sessions, total_seconds
from bertjax.workdir.workdir import flatten
from data_pipelines.errors import InputError
from data_pipelines.rampup import BatchSizeRampup

MetricEntry = Mapping[str, Any]  # a line of metrics.jsonl


# Metrics without a chart: nearly constant, or a function of another metric.
HIDDEN_METRICS = {
    "step",
    "split",
    "epoch",
    "examples",
    "tokens_per_second",
    "nonpad_fraction",
    "progress",
    *(f"{part}_fraction" for part in PARTS),
}
# Terms at the top of the page: field of the configuration -> text for its value.
FACTS: Mapping[str, Mapping[str, str]] = {
    "Model": {
        "model.encoder": "{}",
        "model.direction": "{}",
        "model.num_hidden_layers": "{} layers",
        "model.hidden_size": "hidden size {}",
        "model.num_attention_heads": "{} heads",
        "model.vocab_size": "{} tokens in the vocabulary",
        "model.dtype": "{}",
    },
    "Data": {"data.dir": "{}"},
    "Batch": {
        "batch_size": "size {}",
        "max_seq_length": "{} tokens per sequence",
        "packing": "packed",
    },
    "Optimizer": {
        "optimizer.name": "{}",
        "optimizer.learning_rate": "peak learning rate {}",
        "optimizer.warmup": "{} warmup steps",
        "optimizer.schedule": "{} schedule",
    },
}
_SMOOTHING_NOTE = (
    "Metrics over the steps of the run. For a long curve, the faint line shows values as logged, "
    "the strong line their running median."
)


def read_run(
    workdir: epath.Path,
) -> tuple[Sequence[MetricEntry], dict[str, Any], Sequence[Session]]:
    """Return the lines of metrics.jsonl, the fields of config.json and the sessions of a run.

    Raises:
      InputError: a file is missing or invalid, or no metrics have been logged.
    """
    entries = read_metrics(workdir)
    if all(map(_is_of_single_run, entries)):
        raise InputError(
            f"{metrics_path(workdir)}: no metrics yet. Wait until a step is logged, or lower "
            "log_every."
        )
    path = workdir / "config.json"
    return entries, flatten(read_config_dict(path)), read_sessions(workdir)


def render_run(
    name: str,
    entries: Sequence[MetricEntry],
    settings: Mapping[str, Any],
    sessions: Sequence[Session] = (),
) -> str:
    """Return the page of a run, without the curves of single runs among parallel ones.

    Args:
      name: title of the page.
      entries: lines of metrics.jsonl, at least one of all runs together.
      settings: fields of the configuration under dotted names ("model.hidden_size").
      sessions: the processes that trained in the workdir.
    """
    facts = _facts(entries, settings)
    entries = [entry for entry in entries if not _is_of_single_run(entry)]
    quality = quality_metrics(key for entry in entries for key in entry)
    duplicates = sole_loss_terms(entries)
    entries = [{k: v for k, v in entry.items() if k not in duplicates} for entry in entries]
    eval_entries = [entry for entry in entries if entry["split"] == "eval"]
    keys = dict.fromkeys([*quality, *(key for entry in entries for key in entry)])
    excluded = {*HIDDEN_METRICS, *PERFORMANCE_METRICS}
    # A perplexity is the exponential of a loss.
    learning = [key for key in keys if key not in excluded and not key.endswith("perplexity")]
    last_eval = eval_entries[-1] if eval_entries else {}
    evaluations, best_row = _evaluation_table(eval_entries, quality)
    number = len(eval_entries)
    rows = [(key, json.dumps(value, ensure_ascii=False)) for key, value in settings.items()]
    sections = [
        Section(
            "Training and evaluation metrics",
            _SMOOTHING_NOTE,
            charts=_charts(entries, learning, quality),
        ),
        Section("Wall time", _time_note(sessions), table=_time_table(sessions)),
        Section("Performance", charts=_charts(entries, list(PERFORMANCE_METRICS), {})),
        Section(
            "Eval sets", table=eval_set_table({k: v for k, v in last_eval.items() if k != "split"})
        ),
        Section(
            "Evaluations",
            f"{number} evaluation{'s' * (number > 1)}, newest first, lowest loss in bold.",
            table=evaluations,
            table_class="evaluations",
            bold_row=best_row,
        ),
        Section(
            "Configuration",
            summary=f"All {len(settings)} fields",
            table=TextTable((), rows),
            table_class="settings",
        ),
    ]
    # Metrics of the eval split if it exists.
    final = last_eval or entries[-1]
    return render_report(
        name,
        sections,
        metrics=[
            (metric_display(key, quality).title, _format_value(key, final[key]))
            for key in keys
            if key in final and key not in excluded and "/" not in key  # "/": of one eval set
        ],
        metrics_note=f"{'Eval' if eval_entries else 'Train'} split, step {final['step']:,}",
        facts=facts,
        status=_status(entries, settings),
    )


def _is_of_single_run(entry: MetricEntry) -> bool:
    """Return whether an entry is of one of several parallel runs (RUN/train or RUN/eval)."""
    return "/" in entry["split"]


def _status(entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> Status:
    for entry in entries:
        for key in ("loss", "grad_norm"):
            value = entry.get(key)
            if value is not None and not math.isfinite(value):
                metric = f"{metric_display(key, {}).title.lower()} {format_number(value)}"
                return Status("failed", f"Diverged at step {entry['step']:,}: {metric}")
    last, steps = _last_step(entries), settings.get("steps")
    progress = [(entry["step"], entry["progress"]) for entry in entries if "progress" in entry]
    if progress and not _ends_with_budget(progress):
        reached = f"Step {last:,}, {progress[-1][1]:.0%} of {steps}"
    elif isinstance(steps, int) and last < steps:
        reached = f"Step {last:,} of {steps:,}, {last / steps:.0%}"
    else:
        return Status("finished", f"Finished, {last:,} steps")
    if _has_ended_early(entries, settings):
        return Status("finished", f"Finished early, {last:,} steps")
    return Status("unfinished", reached)


def _has_ended_early(entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> bool:
    """Return whether `early_stopping` ended the run after its last evaluation."""
    if not settings.get("early_stopping"):
        return False
    names = ("steps", "early_stopping", "best_metric", "greater_is_better")
    config = build_dataclass(Config, {name: settings[name] for name in names if name in settings})
    metric = BestMetric(config.best_metric, config.greater_is_better)
    scores = {
        entry["step"]: metric.comparable({k: v for k, v in entry.items() if v is not None})
        for entry in entries
        if entry["split"] == "eval"
    }
    last = _last_step(entries)
    if last not in scores:
        return False
    best = max(scores, key=scores.__getitem__)
    if scores[best] == -math.inf:
        best = 0
    return sum(step > best for step in scores) >= config.early_stopping


def _ends_with_budget(progress: Sequence[tuple[int, float]]) -> bool:
    """Return whether the last of (step, progress) is within half a step of the time budget."""
    last_step, end = progress[-1]
    earlier = [(step, value) for step, value in progress if step < last_step]
    step, value = earlier[-1] if earlier else (0, 0.0)
    return end >= 1 - (end - value) / (last_step - step) / 2


def _last_step(entries: Sequence[MetricEntry]) -> int:
    return max(entry["step"] for entry in entries)


def _facts(entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    for term, fields in FACTS.items():
        texts = [
            text.format(f"{value:,}" if type(value) is int else value)
            for field, text in fields.items()
            if (value := settings.get(field)) not in (None, False)
        ]
        if term == "Data":
            texts += _data_options(settings)
        facts.append((term, " · ".join(texts)))
    return [*facts, ("Speed", _speed(entries, settings))]


def _data_options(settings: Mapping[str, Any]) -> list[str]:
    """Return the `data` fields that differ from the defaults of the task."""
    try:
        defaults = registry.data_fields()[settings.get("task", Config.task)]
    except InputError:  # a task outside the package that is not on PYTHONPATH
        return []
    return [
        f"{name} {settings[f'data.{name}']}"
        for name, default in defaults.items()
        if name != "dir" and settings.get(f"data.{name}", default) != default
    ]


def _speed(entries: Sequence[MetricEntry], settings: Mapping[str, Any]) -> str:
    train = [entry for entry in entries if entry["split"] == "train"]
    unit = "examples" if any("examples_per_second" in entry for entry in train) else "sequences"
    rates = [entry.get(f"{unit}_per_second") or 0 for entry in train]
    if not any(rates):
        return ""
    speed = f"{format_number(statistics.median(rates))} {unit} per second"
    batch_size, total = settings.get("batch_size"), settings.get("steps")
    # The rates of parallel runs add up, and their number is not recorded.
    if not isinstance(batch_size, int) or any(map(_is_of_single_run, entries)):
        return speed
    rampup = BatchSizeRampup(
        batch_size, settings.get("batch_size_rampup", 1), total if isinstance(total, int) else 1
    )
    counts = [rampup.sequences_before(entry["step"]) for entry in train]
    intervals = zip([0, *counts], counts, rates, strict=False)
    seconds = sum((end - begin) / rate for begin, end, rate in intervals if rate > 0)
    return f"{speed} · {format_duration(seconds)} in training steps"


def _time_note(sessions: Sequence[Session]) -> str:
    restarts = max(len(sessions) - 1, 0)
    return (
        f"From the first start to the last step, with {restarts:,} restart{'s' * (restarts != 1)}. "
        "Lost work is what a restart repeated."
    )


def _time_table(sessions: Sequence[Session]) -> TextTable:
    """Return the parts of the wall time, their duration and share."""
    totals = total_seconds(sessions)
    whole = sum(totals.values())
    rows = [
        (part.replace("_", " "), format_duration(seconds), f"{seconds / whole:.1%}")
        for part, seconds in totals.items()
        if seconds > 0
    ]
    total = [("total", format_duration(whole), "")] if rows else []
    return TextTable(("part", "time", "share"), [*rows, *total])


def _charts(
    entries: Sequence[MetricEntry], keys: Sequence[str], quality: Mapping[str, MetricDisplay]
) -> list[Chart]:
    """Return a chart for each metric that the entries contain."""
    last_step = _last_step(entries)
    return [
        line_chart(metric_display(key, quality), curves, last_step, wide=key == "loss")
        for key in keys
        if (curves := _curves_by_split(entries, key))
    ]


def _curves_by_split(entries: Sequence[MetricEntry], key: str) -> dict[str, list[Point]]:
    """Return the points of a metric for each split that has any."""
    curves: dict[str, list[Point]] = {}
    for entry in entries:
        if entry.get(key) is not None:
            point = Point(entry["step"], float(entry[key]))
            curves.setdefault(entry["split"], []).append(point)
    return curves


def _evaluation_table(
    eval_entries: Sequence[MetricEntry], quality: Mapping[str, MetricDisplay]
) -> tuple[TextTable, int | None]:
    """Return the evaluations, newest first, and the row with the lowest loss."""
    keys = dict.fromkeys(key for entry in eval_entries for key in entry if "/" not in key)
    keys.pop("split", None)
    newest_first = list(reversed(eval_entries))
    rows = [tuple(_format_value(key, entry.get(key)) for key in keys) for entry in newest_first]
    losses = {
        row: entry["loss"]
        for row, entry in enumerate(newest_first)
        if entry.get("loss") is not None and math.isfinite(entry["loss"])
    }
    # The first of equal losses.
    best_row = min(reversed(losses), key=losses.__getitem__, default=None)
    header = tuple(metric_display(key, quality).title for key in keys)
    return TextTable(header, rows), best_row


def _format_value(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    is_percent = metric_display(key, {}).as_percent  # by the name
    return f"{value:,}" if isinstance(value, int) else format_number(value, is_percent)
