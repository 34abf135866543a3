"""The runs of a sweep: every combination of values of some fields, with several seeds each."""

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.config.config import Config, MeshConfig
from bertjax.steps.parallel_runs import ParallelStepFunctions
from data_pipelines.errors import InputError

_MAX_TRIALS = 10_000


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      point: its values of the grid's fields, by the last part of the fields' names.
      config: its configuration, on one device.
    """

    point: Mapping[str, str]
    config: Config

    @property
    def label(self) -> str:
        """The values as text, such as "learning_rate=5e-5 batch_size=16"."""
        return " ".join(f"{name}={value}" for name, value in self.point.items()) or "as configured"

    @property
    def name(self) -> str:
        """Unique name in the sweep, such as "learning_rate=5e-5,seed=1"."""
        values = [*self.point.items(), ("seed", self.config.seed)]
        return ",".join(f"{name}={value}" for name, value in values)


def make_trials(
    load: Callable[[Mapping[str, str]], Config], grid: Sequence[str], seeds: int
) -> list[Trial]:
    """Return the runs of a grid, seed by seed within each combination of values.

    Args:
      load: returns the configuration with some fields replaced, by their dotted names.
      grid: "FIELD=VALUE,VALUE,..." for each field.
      seeds: number of seeds of each combination, counted from that of the configuration.

    Raises:
      InputError: a field is repeated, unknown or has no values.
    """
    fields: dict[str, list[str]] = {}
    for entry in grid:
        name, _, text = entry.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not values or name in fields:
            raise InputError(f"--grid={entry}: must be FIELD=VALUE,VALUE,... with each field once.")
        if name in ("seed", "task"):
            raise InputError(
                f"--grid={entry}: a sweep has one task and takes its seeds from --seeds N."
            )
        fields[name] = list(dict.fromkeys(values))
    if seeds < 1:
        raise InputError(f"--seeds={seeds}: must be at least 1.")
    if (count := seeds * math.prod(map(len, fields.values()))) > _MAX_TRIALS:
        raise InputError(f"--seeds={seeds}: {count:,} runs. Use at most {_MAX_TRIALS:,}.")
    short_names = {name: name.rpartition(".")[2] for name in fields}
    if len(set(short_names.values())) < len(short_names):
        short_names = {name: name for name in fields}
    trials = []
    for values_of_point in itertools.product(*fields.values()):
        config = load(dict(zip(fields, values_of_point, strict=True)))
        point = dict(zip(short_names.values(), values_of_point, strict=True))
        for seed in range(config.seed, config.seed + seeds):
            on_one_device = dataclasses.replace(config, seed=seed, mesh=MeshConfig(1, 1, 1))
            trials.append(Trial(point, on_one_device))
    return trials


def group_by_shape(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group the runs that one compiled program trains.

    Runs of a group differ only in `ParallelStepFunctions.PER_RUN_FIELDS`.
    """
    groups: dict[str, list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        fields: dict[str, Any] = trial.config.to_dict()
        for name in ParallelStepFunctions.PER_RUN_FIELDS:
            section, _, field = name.rpartition(".")
            (fields[section] if section else fields).pop(field)
        groups[json.dumps(fields, sort_keys=True)].append(trial)
    return list(groups.values())
