"""Scores of checkpoints, and the policies that decide which checkpoints are kept.

A checkpoint holds the scores of the evaluation it was saved after. The best checkpoint follows from
these files alone, so a run that was killed has no other state to restore.
"""

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath
from orbax.checkpoint import checkpoint_managers

from bertjax.checkpointing.integrity import path_exists, raise_storage_error, retry_reads
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

SCORES_FILE = "scores.json"  # in checkpoints that were saved after an evaluation
# Names of scores, also of users' metrics: error_rate, wer and cer are those of speech recognition.
_LOWER_IS_BETTER = re.compile(
    r"(loss|perplexity|mse|mae|error|error_rate|distance)$|(^|[_/])[wc]er$"
)


def write_scores(checkpoint: epath.Path, scores: Mapping[str, float]) -> None:
    """Write the finite scores; others cannot be the best."""
    finite = {name: float(value) for name, value in scores.items() if math.isfinite(value)}
    atomic_write_text(checkpoint / SCORES_FILE, json.dumps(finite))


def read_scores(checkpoint: epath.Path) -> dict[str, float]:
    """Return the scores of a checkpoint; empty if it has none or they cannot be read."""
    return _read_json(checkpoint / SCORES_FILE, {str: float})


class BestMetric(NamedTuple):
    """The score that checkpoints and runs are compared by.

    Attributes:
      name: name of the score; "" for none.
      greater_is_better: None decides by the name: less is better of losses, errors, distances, wer
        and cer.
    """

    name: str = ""
    greater_is_better: bool | None = None

    @property
    def is_minimized(self) -> bool:
        """True if less is better."""
        if self.greater_is_better is None:
            return bool(_LOWER_IS_BETTER.search(self.name))
        return not self.greater_is_better

    def comparable(self, scores: Mapping[str, float]) -> float:
        """Return the score such that more is better; -inf if it is missing or not finite."""
        value = scores.get(self.name, math.nan)
        if not math.isfinite(value):
            return -math.inf
        return -value if self.is_minimized else value

    def find_best(self, checkpoints: Iterable[epath.Path]) -> epath.Path | None:
        """Return the best checkpoint, the first of equals; None if none has the score."""
        scores = {path: self.comparable(read_scores(path)) for path in checkpoints if self.name}
        best = max(scores, key=lambda path: scores[path], default=None)
        return best if best is not None and scores[best] > -math.inf else None


NO_METRIC = BestMetric()


def read_best_metric(checkpoint: epath.Path) -> BestMetric:
    """Return the score in the checkpoint's configuration, by which its run keeps the best one."""
    schema = {"best_metric": str, "greater_is_better?": bool}
    config = _read_json(checkpoint / "config.json", schema)
    return BestMetric(config.get("best_metric", ""), config.get("greater_is_better"))


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A finished checkpoint, as Orbax's policies read it (`PolicyCheckpointInfo`)."""

    step: int
    metrics: dict[str, Any] | None
    time: datetime.datetime = datetime.datetime.min  # no policy here reads it


@dataclasses.dataclass(frozen=True)
class KeepPeriod(checkpoint_managers.PreservationPolicy):
    """Policy that keeps the first checkpoint at or after each multiple of a period.

    Orbax's `EveryNSteps` keeps exact multiples only, and counts nothing but steps.

    Attributes:
      period: in the unit of `progress_at`.
      progress_at: progress of the run after a number of steps.
    """

    period: float
    progress_at: Callable[[int], float]

    def should_preserve(
        self,
        checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: checkpoint_managers.PreservationContext,
    ) -> Sequence[bool]:
        """Return for each checkpoint, in the order of steps, whether it is kept."""
        passed = [int(self.progress_at(info.step) // self.period) for info in checkpoints]
        return [now > before for before, now in zip([0, *passed], passed, strict=False)]


def make_preservation_policy(
    max_to_keep: int, keep_period: float, progress_at: Callable[[int], float], keeps_best: bool
) -> checkpoint_managers.PreservationPolicy:
    """Return the policy of a run, which may keep the best; see `Checkpointer` for the others."""
    policies: list[checkpoint_managers.PreservationPolicy] = [
        checkpoint_managers.LatestN(max_to_keep)
    ]
    if keep_period:
        policies.append(KeepPeriod(keep_period, progress_at))
    if keeps_best:
        # Orbax keeps the last of equals; the negative step makes the first one the best.
        policies.append(
            checkpoint_managers.BestN(
                get_metric_fn=lambda metrics: metrics["rank"],
                n=1,
                keep_checkpoints_without_metrics=False,
            )
        )
    return checkpoint_managers.AnyPreservationPolicy(policies)


def read_info(step: int, path: epath.Path, best_metric: BestMetric) -> CheckpointInfo:
    """Return a finished checkpoint for the policy; without metrics if it has no such score."""
    score = best_metric.comparable(read_scores(path)) if best_metric.name else -math.inf
    return CheckpointInfo(step, {"rank": (score, -step)} if score > -math.inf else None)


def _read_json(path: epath.Path, schema: Any) -> dict[str, Any]:
    """Return the object in a JSON file; empty if it is missing or damaged.

    Raises:
      UnreadableError: the storage does not answer. The best checkpoint would seem to have no score.
    """

    def read(path: epath.Path) -> dict[str, Any]:
        if not path_exists(path):
            return {}
        try:
            return read_json_object(path, schema, "")
        except InputError as error:  # a running run may delete it
            raise_storage_error(error)
            return {}

    return retry_reads(path, read)
