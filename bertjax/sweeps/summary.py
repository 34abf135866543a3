"""The summary of a sweep, and the order of its runs."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.checkpointing.retention import BestMetric
from bertjax.errors import CommandError
from bertjax.sweeps.grid import Trial

_log = logging.getLogger("bertjax")


def rank(metric: BestMetric, run: Mapping[str, Any]) -> tuple[bool, float]:
    """Return what runs are compared by: any that did not fail is better than one that did."""
    return not run["failed"], comparable(metric, run["scores"])


def comparable(metric: BestMetric, scores: Mapping[str, float | None]) -> float:
    """Return the metric of a run, the larger the better; -inf if it or the loss is not finite.

    An accuracy of outputs that are NaN is finite. Some evaluations have no loss.

    Args:
      metric: the metric.
      scores: scores, of which recorded ones are None in place of a number that is not finite.
    """
    finite = {name: math.nan if value is None else value for name, value in scores.items()}
    return metric.comparable(finite) if math.isfinite(finite.get("loss", 0.0)) else -math.inf


def summarize(
    trials: Sequence[Trial], results: Mapping[str, Mapping[str, Any]], primary_metric: BestMetric
) -> dict[str, Any]:
    """Return the content of `sweep.json`.

    A run has failed if its loss or the score is not finite, or the task finds its scores
    degenerate.

    Returns:
      `primary_metric` is the name of the score that ranks runs, `best` the name of the best run.
      `points` has a summary of each point of the grid: `label`, `num_runs`, `num_failed`,
      `num_pruned`, and `mean`, `std`, `min` and `max` of the score over the runs that neither
      failed nor were pruned. `runs` has `name`, `point` (label of its point), `seed`, `scores`,
      `failed` and, if it was pruned, `pruned_at`, its last step, of each run.

    Raises:
      CommandError: no run has a finite score.
    """
    name = primary_metric.name
    ranks = {
        run_name: (False, -math.inf) if "pruned_at" in run else rank(primary_metric, run)
        for run_name, run in results.items()
    }
    points = []
    for label in dict.fromkeys(trial.label for trial in trials):
        runs = [results[trial.name] for trial in trials if trial.label == label]
        complete = [run for run in runs if not (run["failed"] or "pruned_at" in run)]
        scores = [run["scores"][name] for run in complete]
        points.append(
            {
                "label": label,
                "num_runs": len(runs),
                "num_failed": sum(run["failed"] for run in runs),
                "num_pruned": sum("pruned_at" in run for run in runs),
                "mean": float(np.mean(scores)) if scores else None,
                "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
                "min": min(scores, default=None),
                "max": max(scores, default=None),
            }
        )
    best = max(ranks, key=ranks.__getitem__)
    if ranks[best] == (False, -math.inf):
        raise CommandError(f"no run has a finite {name}: lower optimizer.learning_rate.")
    if results[best]["failed"]:
        _log.warning("all runs have failed, of which %s has the best %s.", best, name)
    all_runs = [
        {"name": trial.name, "point": trial.label, "seed": trial.config.seed, **results[trial.name]}
        for trial in trials
    ]
    return {"primary_metric": name, "points": points, "best": best, "runs": all_runs}
