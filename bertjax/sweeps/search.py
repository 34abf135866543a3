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
from bertjax.sweeps.grid import Trial, check_num_trials, make_point, parse_grid, short_names
from data_pipelines.errors import InputError

_DIGITS = 3  # of proposed numbers


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
    if not -math.inf < interval.low < interval.high < math.inf:
        raise InputError(f"--range={entry}: {low} is not below {high}. Swap or change them.")
    if interval.is_log and interval.low <= 0:
        raise InputError(f"--range={entry}: a logarithm needs positive numbers. Raise {low}.")
    return name, interval


class _Outcome(NamedTuple):
    """Outcome of a point.

    Attributes:
      params: its parameters.
      score: mean score of its runs; None if all have failed.
      pruned_at: last step, if its runs were pruned.
    """

    params: dict[str, Any]
    score: float | None
    pruned_at: int | None = None


class MedianPruning:
    """End of runs whose best score so far is worse than the median of earlier runs at the step.

    It is Optuna's `MedianPruner`, which prunes none of the first five runs.

    Args:
      curves: step -> score of each earlier run that neither failed nor was pruned, the larger the
        better.

    Raises:
      InputError: Optuna is not installed.
    """

    def __init__(self, curves: Sequence[Mapping[int, float]]) -> None:
        optuna = _import_optuna()
        self._study = optuna.create_study(
            direction="maximize", pruner=optuna.pruners.MedianPruner()
        )
        for curve in curves:
            finite = {step: score for step, score in curve.items() if score > -math.inf}
            if finite:
                value = finite[max(finite)]
                self._study.add_trial(
                    optuna.trial.create_trial(value=value, intermediate_values=finite)
                )

    def is_pruned(self, curve: Mapping[int, float]) -> bool:
        """Return whether a run with these scores so far ends."""
        trial = self._study.ask()
        for step, score in curve.items():
            if score == -math.inf:
                return True
            trial.report(score, step)
        pruned: bool = trial.should_prune()
        return pruned


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
        load(self._texts(self._propose([], 1)[0]))  # the fields exist

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
        pruned_steps: Mapping[str, int] = MappingProxyType({}),
    ) -> list[Trial]:
        """Return the trials of the next round, none at the end of the search.

        Args:
          trials: all trials so far.
          scores: run -> its score, the larger the better; -inf for one that failed.
          num_runs: runs that are trained at once.
          pruned_steps: pruned run -> its last step. Optuna ranks them behind complete ones.
        """
        points = [trials[i : i + self._seeds] for i in range(0, len(trials), self._seeds)]
        history = []
        for point in points:
            finite = {t.name: s for t in point if (s := scores[t.name]) > -math.inf}
            complete = [score for name, score in finite.items() if name not in pruned_steps]
            values = complete or [*finite.values()]
            params = {
                name: self._parse(name, point[0].point[short])
                for name, short in self._short.items()
            }
            score = float(np.mean(values)) if values else None
            is_pruned = bool(values) and not complete
            pruned_at = max(pruned_steps[name] for name in finite) if is_pruned else None
            history.append(_Outcome(params, score, pruned_at))
        count = min(max(1, num_runs // self._seeds), self._num_points - len(points))
        proposals = self._propose(history, count) if count > 0 else []
        return [trial for params in proposals for trial in self._point(self._texts(params))]

    def _propose(self, history: Sequence[_Outcome], count: int) -> list[dict[str, Any]]:
        """Return parameters of new points that differ from one another and from earlier ones."""
        samplers = self._optuna.samplers
        study = self._optuna.create_study(direction="maximize")
        for outcome in history:
            study.add_trial(self._create_trial(outcome))
        seen, proposals = {self._key(o.params) for o in history}, list[dict[str, Any]]()
        for attempt in range(100 * count):  # a small space may be exhausted
            # Seeded by the number of the point, so that no state of a sampler has to be kept.
            seed = 1000 * (len(history) + len(proposals)) + attempt
            study.sampler = (
                samplers.RandomSampler(seed)
                if self._sampler == "random"
                else samplers.TPESampler(seed=seed, constant_liar=True)
            )
            trial = study.ask(self._space)
            texts = self._texts(trial.params)
            params = {name: self._parse(name, texts[name]) for name in self._space}
            if (key := self._key(params)) not in seen:
                seen.add(key)
                proposals.append(params)
            if len(proposals) == count:
                break
        return proposals

    def _create_trial(self, outcome: _Outcome) -> Any:
        """Return an outcome as a trial of Optuna."""
        states, score = self._optuna.trial.TrialState, outcome.score
        is_pruned = outcome.pruned_at is not None
        state = states.FAIL if score is None else states.PRUNED if is_pruned else states.COMPLETE
        return self._optuna.trial.create_trial(
            params=outcome.params,
            distributions=self._space,
            value=score if state == states.COMPLETE else None,
            intermediate_values={outcome.pruned_at: score} if is_pruned else {},
            state=state,
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
        rounded = f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)
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
