"""What a workdir or checkpoint says of its run, and whose workdir it is.

config.json is the whole configuration, run.json the step, the data position and the data.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import jax
from etils import epath

from bertjax.config.config import REMOVED_FIELDS, Config, parse_config
from bertjax.mesh import distributed
from bertjax.tasks import registry
from bertjax.tasks.task import Task
from bertjax.version import __version__
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

PARALLEL_RUNS_DIR = "parallel_runs"  # the directory of a sweep's runs, which has no run of its own

# Fields that may differ between the runs that continue each other in one workdir.
RESUMABLE_FIELDS = {
    "gradient_accumulation_steps",
    "checkpoint_every",
    "eval_every",
    "eval_batches",
    "eval_batch_size",
}
RESUMABLE_FIELDS |= {
    "max_to_keep",
    "best_metric",
    "keep_period",
    "log_every",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
}
RESUMABLE_FIELDS |= {
    "profile",
    "tensorboard",
    "data.dir",
    "data.workers",
    "model.remat",
    "model.scan_layers",
}


def claim_workdir(workdir: epath.Path, config: Config, task: Task) -> None:
    """Makes the workdir this run's, where it is nobody's yet; see `check`."""
    if distributed.is_process_0() and not (workdir / "run.json").exists():
        workdir.mkdir(parents=True, exist_ok=True)
        write_run_record(workdir, config, task, 0)
    distributed.sync_processes("workdir")
    check_workdir(workdir, config, task)


def check_workdir(workdir: epath.Path, config: Config, task: Task) -> None:
    """Lets a run begin or go on in a workdir.

    Raises:
      InputError: it belongs to a run with another configuration or other data, or to a sweep.
    """
    if (workdir / PARALLEL_RUNS_DIR).exists():
        raise InputError(
            f"{workdir} holds a sweep: use another --workdir, or go on with `bertjax sweep`."
        )
    if not (workdir / "run.json").exists():
        return
    try:
        raw = json.loads((workdir / "config.json").read_text())
        run = json.loads((workdir / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{workdir} holds no readable run ({error}): use another one.") from error
    for name in sorted(REMOVED_FIELDS & _flatten(raw).keys()):
        raise InputError(
            f"{workdir} holds a run with {name}, which this version of bertjax does not have: "
            "finish it with the version that began it, or use another --workdir."
        )
    if found := config_difference(raw, config, RESUMABLE_FIELDS):
        name, before, now = found
        raise InputError(
            f"{workdir} holds a run with {name}={before!r} and this configuration has {now!r}: use "
            "another --workdir, or that run's configuration."
        )
    if run.get("data_fingerprint") != task.data_fingerprint:
        raise InputError(
            f"{workdir} holds a run on another corpus than {config.data['dir']}: use another "
            "--workdir, or that run's corpus."
        )


def config_difference(
    raw: Mapping[str, Any], config: Config, ignored: Collection[str]
) -> tuple[str, Any, Any] | None:
    """The first field that a configuration does not have as one that was written down.

    Args:
      raw: the latter; fields that are newer than it have their defaults in it.
      free: fields that may differ.
    """
    before, now = map(flatten_config, (parse_config(raw, registry.data_fields()), config))
    # What a person gives comes before what follows from it, as steps do before their schedule.
    for name in sorted(before.keys() | now.keys(), key=lambda name: ("optimizer." in name, name)):
        if name not in ignored and before.get(name) != now.get(name):
            return name, before.get(name), now.get(name)
    return None


def write_run_record(directory: epath.Path, config: Config, task: Task, step: int) -> None:
    """Writes config.json and run.json into a workdir or checkpoint, run.json last."""
    atomic_write_text(directory / "config.json", json.dumps(config.to_dict(), indent=1))
    run = {
        "step": step,
        "rows": config.rampup.sequences_before(step),  # the data position: rows read since step 0
        "data_fingerprint": task.data_fingerprint,
        "data_card": dict(task.data_card),
        "bertjax": __version__,
        "jax": jax.__version__,
    }
    atomic_write_text(directory / "run.json", json.dumps(run, indent=1))


def flatten_config(config: Config) -> dict[str, Any]:
    """The fields of a configuration by their dotted names, as its JSON has them."""
    return _flatten(json.loads(json.dumps(config.to_dict())))


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        nested = isinstance(value, dict)
        found |= _flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return found
