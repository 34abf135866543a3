"""Titles of metrics in reports, and the losses that a report shows."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.html.charts import MetricDisplay
from bertjax.model.heads import HEADS

PERFORMANCE_METRICS = {
    "learning_rate": MetricDisplay("Learning rate", floor=0, smooth=False),
    "grad_norm": MetricDisplay("Gradient norm"),
    "sequences_per_second": MetricDisplay("Sequences per second", floor=0),
    "examples_per_second": MetricDisplay("Examples per second", floor=0),
    "input_wait_fraction": MetricDisplay("Time waiting for input", as_percent=True, floor=0),
    "goodput": MetricDisplay("Goodput", as_percent=True, floor=0, smooth=False),
    "mfu": MetricDisplay("Model FLOP utilization", as_percent=True, floor=0),
}
# Training logs the mean of the loss over steps, but that of a term over its tokens or examples:
# they differ by up to 0.5% in token classification. Evaluations differ by rounding.
_MAX_DIFFERENCE = 0.01


def quality_metrics(names: Iterable[str]) -> dict[str, MetricDisplay]:
    """Return the displays of the metrics of some heads, losses first.

    Heads give one name different titles, such as `accuracy`: only those of the run count.

    Args:
      names: names of the metrics of a run. A head is one of the run if they have its loss.
    """
    losses = {name.rpartition("/")[2] for name in names if name.endswith("_loss")}
    titles = [
        item
        for head in HEADS.values()
        if losses & head.metric_titles.keys()
        for item in head.metric_titles.items()
    ]
    titles.sort(key=lambda item: not item[0].endswith("_loss"))
    return {"loss": MetricDisplay("Loss")} | {
        name: MetricDisplay(title, as_percent=name.endswith("accuracy"), floor=floor)
        for name, (title, floor) in titles
    }


def metric_display(key: str, quality: Mapping[str, MetricDisplay]) -> MetricDisplay:
    """Return the display of a metric; by default its name is the title.

    Args:
      key: name of the metric.
      quality: displays of `quality_metrics`.
    """
    default = MetricDisplay(key.replace("_", " ").capitalize(), as_percent=key.endswith("accuracy"))
    return {**quality, **PERFORMANCE_METRICS}.get(key, default)


def sole_loss_terms(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of the loss's only term, which repeats the loss, also those of eval sets.

    It is empty if the loss has several terms.

    Args:
      entries: metric -> value of several steps or runs, under names METRIC or SET/METRIC.
    """
    terms = {key for entry in entries for key in entry if key.endswith("_loss")}
    if len({key.rpartition("/")[2] for key in terms}) > 1:
        return set()
    return {key for key in terms if _repeats_loss(entries, key)}


def _repeats_loss(entries: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return whether a term equals the loss, but for `_MAX_DIFFERENCE`, in most entries."""
    eval_set, slash, _ = key.rpartition("/")
    pairs = [(entry.get(f"{eval_set}{slash}loss"), entry.get(key)) for entry in entries]
    if any((loss is None) != (term is None) for loss, term in pairs):
        return False
    differences = [
        _relative_difference(loss, term)
        for loss, term in pairs
        if loss is not None and term is not None
    ]
    return statistics.median(differences or [0.0]) <= _MAX_DIFFERENCE


def _relative_difference(loss: float, term: float) -> float:
    if not (math.isfinite(loss) and math.isfinite(term)):
        return 0.0 if math.isfinite(loss) == math.isfinite(term) else math.inf
    largest = max(abs(loss), abs(term))
    return abs(loss - term) / largest if largest else 0.0
