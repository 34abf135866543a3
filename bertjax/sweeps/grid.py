"""The runs of a sweep: every combination of values of some fields, with several seeds each."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.config.config import Config, MeshConfig
from bertjax.steps.parallel_runs import ParallelStepFunctions
from data_pipelines.errors import InputError


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      point: the values that it tries, by the fields' last names.
      config: its whole configuration, on one device.
    """

    point: Mapping[str, str]
    config: Config

    @property
    def at(self) -> str:
        """The values, such as "learning_rate=5e-5 batch_size=16"."""
        return " ".join(f"{name}={value}" for name, value in self.point.items()) or "as configured"

    @property
    def name(self) -> str:
        """Its own among all runs of the sweep."""
        values = [*self.point.items(), ("seed", self.config.seed)]
        return ",".join(f"{name}={value}" for name, value in values)


def make_trials(
    load: Callable[[Mapping[str, str]], Config], grid: Sequence[str], seeds: int
) -> list[Trial]:
    """The runs of a grid, seed by seed within each combination.

    Args:
      load: the configuration with some fields overridden, by their dotted names.
      grid: of each field "FIELD=VALUE,VALUE,...".
      seeds: of each combination, counted from the configuration's.
    Raises:
      InputError: a field comes twice or has no value, or as `load`.
    """
    fields: dict[str, list[str]] = {}
    for each in grid:
        name, _, text = each.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not values or name in fields:
            raise InputError(f"--grid {each} must be FIELD=VALUE,VALUE,..., each field once.")
        if name in ("seed", "task"):
            raise InputError(f"--grid {each}: a sweep has one task, and seeds by --seeds N.")
        fields[name] = list(dict.fromkeys(values))
    if seeds < 1:
        raise InputError(f"--seeds {seeds} must be at least 1.")
    short = {name: name.rpartition(".")[2] for name in fields}
    if len(set(short.values())) < len(short):
        short = {name: name for name in fields}
    trials = []
    for tried in itertools.product(*fields.values()):
        config = load(dict(zip(fields, tried, strict=True)))
        point = dict(zip(short.values(), tried, strict=True))
        for seed in range(config.seed, config.seed + seeds):
            own = dataclasses.replace(config, seed=seed, mesh=MeshConfig(1, 1, 1))
            trials.append(Trial(point, own))
    return trials


def group_by_shape(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The runs in groups that one program trains: they differ in `Together.VARIED` alone."""
    groups: dict[str, list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        fields: dict[str, Any] = trial.config.to_dict()
        for name in ParallelStepFunctions.PER_RUN_FIELDS:
            section, _, field = name.rpartition(".")
            (fields[section] if section else fields).pop(field)
        groups[json.dumps(fields, sort_keys=True)].append(trial)
    return list(groups.values())
