"""Points of a sweep that Optuna proposes from the scores of earlier ones.

The proposals of a round are a function of the options and of all earlier scores. So an interrupted
search resumes as if it had not been interrupted.
"""

import dataclasses
import logging
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.config import Config
from bertjax.sweeps.grid import (
    Trial,
    check_distinct,
    check_num_trials,
    make_point,
    parse_grid,
    short_names,
)
from data_pipelines.errors import InputError

_DIGITS = 3  # a range of numbers has 100 to 1,000 values
# Evaluations are at the same stage within 0.05 of the steps: intervals are rounded up to steps.
_TOLERANCE = 0.05
_TPE_REPEATS = 20  # in a row, until points are drawn at random
_MIN_CURVES = 5  # as the runs before Optuna's MedianPruner begins

_log = logging.getLogger("bertjax")


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, integers if `is_int`, uniform or uniform in their logarithm."""

    low: float
    high: float
    is_int: bool
    is_log: bool


def parse_range(entry: str) -> tuple[str, Range]:
    """Return the field and the range of "FIELD=LOW..HIGH" or "FIELD=LOW..HIGH:log".

    Raises:
      InputError: the text is malformed, or the range has no or no positive numbers.
    """
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    match = re.fullmatch(rf"([\w.]+)=({number})\.\.({number})(:log)?", entry)
    if not match:
        raise InputError(f"--range={entry}: not FIELD=LOW..HIGH or FIELD=LOW..HIGH:log.")
    name, low, high, scale = match.groups()
    is_int = all(re.fullmatch(r"[-+]?\d+", text) for text in (low, high))
    interval = Range(float(low), float(high), is_int, scale is not None)
    width = interval.high - interval.low
    if not (interval.low < interval.high and math.isfinite(width)):
        raise InputError(f"--range={entry}: {low} is not below {high}. Swap or change them.")
    if interval.is_log and interval.low <= 0:
        raise InputError(f"--range={entry}: a logarithm needs positive numbers. Raise {low}.")
    return name, interval


class _Outcome(NamedTuple):
    """Outcome of a point.

    Attributes:
      params: its parameters.
      score: mean score of its runs; None if most have failed.
      pruned_at: percentage of the steps, if no run has ended well and one was pruned.
    """

    params: dict[str, Any]
    score: float | None
    pruned_at: int | None = None


class MedianPruning:
    """End of runs whose best score so far is worse than the median of earlier runs at this stage.

    It is the rule of Optuna's `MedianPruner` with `n_min_trials=5`. That class finds evaluations by
    their steps, but runs of other batch sizes are evaluated at other steps.

    Args:
      curves: progress (fraction of its steps) -> score of each earlier run that neither failed nor
        was pruned, the larger the better.
    """

    def __init__(self, curves: Sequence[Mapping[float, float]]) -> None:
        self._curves = [curve for curve in curves if curve]

    def is_pruned(self, curve: Mapping[float, float]) -> bool:
        """Return whether a run with these scores so far ends."""
        if -math.inf in curve.values():
            return True
        progress, scores = max(curve), list[float]()
        for earlier in self._curves:
            nearest = min(earlier, key=lambda p: abs(p - progress))
            if abs(nearest - progress) <= _TOLERANCE and earlier[nearest] > -math.inf:
                scores.append(earlier[nearest])
        return len(scores) >= _MIN_CURVES and max(curve.values()) < float(np.median(scores))


class Search:
    """Points that a sampler of Optuna proposes, with several seeds each.

    Args:
      load: returns the configuration with some fields replaced, by their dotted names.
      sampler: "random" or "tpe" (Bergstra et al. 2011).
      ranges: "FIELD=LOW..HIGH[:log]" for each field with a range.
      grid: "FIELD=VALUE,VALUE,..." for each field with choices.
      num_points: points of the whole search.
      seeds: runs of each point.
      prunes: whether runs end that are worse than the median of earlier ones.

    Attributes:
      prunes: as given.
      num_runs: runs of the whole search.

    Raises:
      InputError: an option is invalid, or Optuna is not installed.
    """

    def __init__(
        self,
        load: Callable[[Mapping[str, str]], Config],
        sampler: str,
        ranges: Sequence[str],
        grid: Sequence[str],
        num_points: int,
        seeds: int,
        prunes: bool = False,
    ) -> None:
        self.prunes = prunes
        self._load, self._sampler, self._seeds = load, sampler, seeds
        self._optuna = _import_optuna()
        self._num_points, self.num_runs = num_points, num_points * seeds
        choices = parse_grid(grid)
        self._space: dict[str, Any] = {
            name: self._optuna.distributions.CategoricalDistribution(values)
            for name, values in choices.items()
        }
        for entry in ranges:
            name, found = parse_range(entry)
            if name in self._space or name in ("seed", "task"):
                raise InputError(
                    f"--range={entry}: names a field that is given twice, or seed or task. "
                    "Remove it."
                )
            kind = "IntDistribution" if found.is_int else "FloatDistribution"
            low, high = (int if found.is_int else float)(found.low), found.high
            self._space[name] = getattr(self._optuna.distributions, kind)(
                low, (int if found.is_int else float)(high), log=found.is_log
            )
        if not self._space:
            raise InputError(f"--search={sampler}: nothing to choose. Add --range or --grid.")
        if num_points < 1:
            raise InputError(f"--trials={num_points}: no point. Use at least 1.")
        check_num_trials(num_points, seeds)
        self._short = short_names(self._space)
        texts = self._texts(self._propose([], 1)[0])
        load(texts)  # the fields exist
        for name, values in choices.items():
            check_distinct(self._point(texts | {name: value})[0] for value in values)

    def restore(self, runs: Iterable[str]) -> list[Trial]:
        """Return the trials of points that were proposed before.

        Args:
          runs: names of some runs of each point, in the order of the proposals.

        Raises:
          InputError: a run is none of this search.
        """
        trials: dict[str, Trial] = {}
        for run in runs:
            if run in trials:
                continue
            values = dict(item.partition("=")[::2] for item in run.split(","))
            known = values.keys() == {*self._short.values(), "seed"}
            texts = {name: values.get(short, "") for name, short in self._short.items()}
            if known and all(map(self._contains, texts, texts.values())):
                trials |= {trial.name: trial for trial in self._point(texts)}
            if run not in trials:
                raise InputError(
                    f"--search={self._sampler}: --workdir holds the run {run!r}, which is none of "
                    "this search. Use another directory, or the options of that search; --trials "
                    "may grow."
                )
        return list(trials.values())

    def propose(
        self,
        trials: Sequence[Trial],
        scores: Mapping[str, float],
        num_runs: int,
        pruned: Mapping[str, float] = MappingProxyType({}),
    ) -> list[Trial]:
        """Return the trials of the next round, none at the end of the search.

        A point has the mean score of its runs. A pruned run counts with its last score, and a
        failed one with the worst score of all runs: without them unstable points would look best.
        A point has failed if most of its runs have.

        Args:
          trials: all trials so far.
          scores: run -> its score, the larger the better; -inf for one that failed.
          num_runs: runs that are trained at once.
          pruned: pruned run -> the fraction of its steps at which it ended. Optuna ranks points
            that were pruned behind complete ones.
        """
        points = [trials[i : i + self._seeds] for i in range(0, len(trials), self._seeds)]
        history = [self._outcome(point, scores, pruned) for point in points]
        count = min(max(1, num_runs // self._seeds), self._num_points - len(points))
        if count <= 0:
            return []
        proposals = self._propose(history, count)
        if not proposals:
            _log.warning(
                "--trials=%d: the space has only %d points.", self._num_points, len(points)
            )
        return [trial for params in proposals for trial in self._point(self._texts(params))]

    def _outcome(
        self, point: Sequence[Trial], scores: Mapping[str, float], pruned: Mapping[str, float]
    ) -> _Outcome:
        """Return the outcome of a point; see `propose`."""
        params = {
            name: self._parse(name, point[0].point[short]) for name, short in self._short.items()
        }
        finite = [trial.name for trial in point if scores[trial.name] > -math.inf]
        if 2 * len(finite) < len(point):
            return _Outcome(params, None)
        worst = min(score for score in scores.values() if score > -math.inf)
        score = float(np.mean([max(scores[trial.name], worst) for trial in point]))
        if any(name not in pruned for name in finite):
            return _Outcome(params, score)
        return _Outcome(params, score, round(100 * max(pruned[name] for name in finite)))

    def _propose(self, history: Sequence[_Outcome], count: int) -> list[dict[str, Any]]:
        """Return parameters of new points that differ from one another and from earlier ones."""
        samplers = self._optuna.samplers
        study = self._optuna.create_study(direction="maximize")
        for outcome in history:
            study.add_trial(self._create_trial(outcome))
        seen, proposals = {self._key(o.params) for o in history}, list[dict[str, Any]]()
        # Without a score TPE would model the first failed points as the good ones.
        is_random = self._sampler == "random" or all(o.score is None for o in history)
        # TPE repeats points of a small space, of which chance finds the last ones.
        repeats = attempt = 0
        while len(proposals) < count and repeats < _TPE_REPEATS + 20 * (len(seen) + count):
            # Seeded by the number of the point, so that no state of a sampler has to be kept.
            seed = 1000 * (len(history) + len(proposals)) + attempt
            study.sampler = (
                samplers.RandomSampler(seed)
                if is_random or repeats >= _TPE_REPEATS
                else samplers.TPESampler(seed=seed, constant_liar=True)
            )
            trial = study.ask(self._space)
            texts = self._texts(trial.params)
            params = {name: self._parse(name, texts[name]) for name in self._space}
            attempt += 1
            repeats += 1
            if (key := self._key(params)) in seen:
                # A running trial would be modelled in every later proposal.
                study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                seen.add(key)
                proposals.append(params)
                repeats = 0
        return proposals

    def _create_trial(self, outcome: _Outcome) -> Any:
        """Return an outcome as a trial of Optuna.

        TPE ignores trials in the state FAIL, and would propose points that fail again and again. It
        ranks pruned trials without intermediate values behind all others.
        """
        states, is_pruned = self._optuna.trial.TrialState, outcome.pruned_at is not None
        is_complete = outcome.score is not None and not is_pruned
        return self._optuna.trial.create_trial(
            params=outcome.params,
            distributions=self._space,
            value=outcome.score if is_complete else None,
            intermediate_values={outcome.pruned_at: outcome.score} if is_pruned else {},
            state=states.COMPLETE if is_complete else states.PRUNED,
        )

    def _parse(self, name: str, text: str) -> Any:
        space = self._space[name]
        if hasattr(space, "choices"):
            return text
        return int(text) if isinstance(space.low, int) else float(text)

    def _contains(self, name: str, text: str) -> bool:
        space = self._space[name]
        if hasattr(space, "choices"):
            return text in space.choices
        try:
            number = float(text)
        except ValueError:
            return False
        return bool(space.low <= number <= space.high)

    def _text(self, name: str, value: Any) -> str:
        """Return a value as short text, exactly where rounding leaves its range."""
        if not isinstance(value, float):
            return str(value)
        space = self._space[name]
        decimals = _DIGITS - 1 - math.floor(math.log10(space.high - space.low))
        if space.log:
            digits = max(_DIGITS, decimals + math.floor(math.log10(space.low)) + 1)
            rounded = f"{value:.{digits}g}"
        else:
            rounded = repr(round(value, decimals) + 0.0).removesuffix(".0")  # no "-0"
        return rounded if self._contains(name, rounded) else repr(value)

    def _texts(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {name: self._text(name, value) for name, value in params.items()}

    def _key(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(self._texts(params).values())

    def _point(self, texts: Mapping[str, str]) -> list[Trial]:
        point = {self._short[name]: text for name, text in texts.items()}
        return make_point(self._load(texts), point, self._seeds)


def _import_optuna() -> types.ModuleType:
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise  # missing import inside the module
        raise InputError(
            "--search: there is no module optuna. Run `pip install 'bertjax[search]'`."
        ) from None
    logging.getLogger("optuna").setLevel(logging.WARNING)
    module: types.ModuleType = optuna
    return module
