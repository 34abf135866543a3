"""The runs of a sweep: every combination of values of some fields, with several seeds each."""

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.config.config import Config, MeshConfig
from bertjax.steps.parallel_runs import ParallelStepFunctions
from bertjax.workdir.model_records import RECORD_FILES
from data_pipelines.errors import InputError

_MAX_TRIALS = 10_000
_FIELDS_WITH_COMMAS = {
    "loss_weights",
    "init_layers",
    "model.feature_layers",
    "model.label_counts",
    "data.class_weights",
    "data.matryoshka_dims",
    "data.missing_labels",
    "distill.layer_map",
}


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
      InputError: a field is repeated, unknown or has no values, or two combinations of values are
        the same configuration, such as those of 1e-3 and 0.001.
    """
    fields = parse_grid(grid)
    check_num_trials(math.prod(map(len, fields.values())), seeds)
    short = short_names(fields)
    trials = []
    for values_of_point in itertools.product(*fields.values()):
        config = load(dict(zip(fields, values_of_point, strict=True)))
        point = dict(zip(short.values(), values_of_point, strict=True))
        trials += make_point(config, point, seeds)
    check_distinct(trials[::seeds])
    return trials


def check_distinct(trials: Iterable[Trial]) -> None:
    """Check that trials of different points differ in their configurations.

    Raises:
      InputError: two have the same one, such as with the values 1e-3 and 0.001.
    """
    labels: dict[str, str] = {}
    for trial in trials:
        content = json.dumps(trial.config.to_dict(), sort_keys=True)
        if other := labels.get(content):
            raise InputError(
                f"--grid: {other} and {trial.label} are the same configuration. Leave one out."
            )
        labels[content] = trial.label


def parse_grid(grid: Sequence[str]) -> dict[str, list[str]]:
    """Return field -> its values, of "FIELD=VALUE,VALUE,..." for each field.

    Raises:
      InputError: a field is repeated or has no values, its values have commas, or a sweep has one
        value of it.
    """
    fields: dict[str, list[str]] = {}
    for entry in grid:
        name, _, text = entry.partition("=")
        values = [value.strip() for value in text.split(",")]  # "" is a value of some
        if not text.strip() or name in fields:
            raise InputError(f"--grid={entry}: must be FIELD=VALUE,VALUE,... with each field once.")
        if name in _FIELDS_WITH_COMMAS:
            raise InputError(f"--grid={entry}: commas are part of its values. Run one sweep each.")
        if name in ("seed", "task"):
            raise InputError(
                f"--grid={entry}: a sweep has one task and takes its seeds from --seeds N."
            )
        if name in RECORD_FILES:
            raise InputError(f"--grid={entry}: a sweep has one such model. Run one sweep each.")
        if name.startswith("mesh."):
            raise InputError(f"--grid={entry}: each run of a sweep has one device. Leave it out.")
        fields[name] = list(dict.fromkeys(values))
    return fields


def check_num_trials(points: int, seeds: int) -> None:
    """Raise InputError if a sweep has no run or too many."""
    if seeds < 1:
        raise InputError(f"--seeds={seeds}: must be at least 1.")
    if (count := seeds * points) > _MAX_TRIALS:
        raise InputError(f"--seeds={seeds}: {count:,} runs. Use at most {_MAX_TRIALS:,}.")


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """Return field -> the last part of its name, or its name if two fields share that part."""
    names = {name: name.rpartition(".")[2] for name in fields}
    return names if len({*names.values()}) == len(names) else {name: name for name in names}


def make_point(config: Config, point: Mapping[str, str], seeds: int) -> list[Trial]:
    """Return the runs of a point, seed by seed from that of its configuration on.

    Raises:
      InputError: a sweep cannot train the configuration.
    """
    check_parallel(config)
    if config.mesh != MeshConfig():
        raise InputError(f"mesh={config.mesh}: each run of a sweep has one device. Leave it out.")
    return [
        Trial(point, dataclasses.replace(config, seed=seed, mesh=MeshConfig(1, 1, 1)))
        for seed in range(config.seed, config.seed + seeds)
    ]


def check_parallel(config: Config) -> None:
    """Raise InputError if several runs of a configuration cannot share a program."""
    if config.tensorboard_summaries:
        raise InputError(
            f"tensorboard={config.tensorboard!r}: a sweep trains several runs in parallel. "
            "Leave it out, or train one of them alone."
        )
    if config.early_stopping:
        raise InputError(
            f"early_stopping={config.early_stopping}: a sweep trains several runs in one program, "
            "which end together. Remove it, or train one of them alone."
        )
    if config.batch_size_rampup > 1:
        raise InputError(
            f"batch_size_rampup={config.batch_size_rampup}: a sweep trains several runs in one "
            "program, of one batch size. Leave it out."
        )


def group_by_shape(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the runs by shape, which one compiled program trains.

    Runs of a shape differ only in `ParallelStepFunctions.PER_RUN_FIELDS`.
    """
    groups: dict[str, list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        fields: dict[str, Any] = trial.config.to_dict()
        for name in ParallelStepFunctions.PER_RUN_FIELDS:
            section, _, field = name.rpartition(".")
            (fields[section] if section else fields).pop(field)
        groups[json.dumps(fields, sort_keys=True)].append(trial)
    return dict(groups)
