"""Which checkpoint of a run is the best by a score of its evaluations.

Checkpoints alone say so, each with its own scores: a run that is killed has nothing to remember.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epath

SCORES_FILE = "scores.json"  # of a checkpoint that was evaluated when it was saved
_LOWER_IS_BETTER = re.compile(r"(loss|perplexity|mse)$")


def write_scores(checkpoint: epath.Path, scores: Mapping[str, float]) -> None:
    """Writes those that are finite numbers; no other can be the best."""
    finite = {name: float(value) for name, value in scores.items() if math.isfinite(value)}
    (checkpoint / SCORES_FILE).write_text(json.dumps(finite))


def read_scores(checkpoint: epath.Path) -> dict[str, float]:
    """The scores of a checkpoint; empty where it was not evaluated, or they cannot be read."""
    return _read(checkpoint / SCORES_FILE)


def read_best_metric_name(checkpoint: epath.Path) -> str:
    """The score by which the run of a checkpoint keeps its best one; "" where it keeps none."""
    name: str = _read(checkpoint / "config.json").get("best_metric", "")
    return name


def comparable_score(name: str, scores: Mapping[str, float]) -> float:
    """A score such that more is better; -inf where there is none, or it is no finite number."""
    value = scores.get(name, math.nan)
    if not math.isfinite(value):
        return -math.inf
    return -value if _LOWER_IS_BETTER.search(name) else value


def find_best(name: str, checkpoints: Iterable[epath.Path]) -> epath.Path | None:
    """The best by a score, of equals the first; None where no checkpoint has it."""
    merits = (
        {path: comparable_score(name, read_scores(path)) for path in checkpoints} if name else {}
    )
    best = max(merits, key=lambda path: merits[path], default=None)
    return best if best is not None and merits[best] > -math.inf else None


def _read(path: epath.Path) -> dict[str, Any]:
    """An object of JSON; empty where there is none, as in a checkpoint that is damaged."""
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
