"""The record of a run in its workdir and checkpoints, and the check that a workdir is its own.

config.json holds the whole configuration; run.json the step, the data position and the data.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
from etils import epath

from bertjax.config.config import Config
from bertjax.config.loading import parse_config, read_config_dict, read_run_record
from bertjax.mesh import distributed
from bertjax.mesh.agreement import check_agreement
from bertjax.tasks import registry
from bertjax.tasks.task import Task
from bertjax.version import __version__
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

PARALLEL_RUNS_DIR = "parallel_runs"  # in the workdir of a sweep

# Fields that may change when a run is resumed.
RESUMABLE_FIELDS = {
    "best_metric",
    "checkpoint_every",
    "data.dir",
    "data.num_generated",
    "data.workers",
    "early_stopping",
    "eval_batch_size",
    "eval_batches",
    "eval_every",
    "gradient_accumulation_steps",
    "greater_is_better",
    "keep_period",
    "log_every",
    "max_to_keep",
    "metrics",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "model.remat",
    "model.scan_layers",
    "profile",
    "replay_every",
    "sdc_checker",
    "tensorboard",
    "watchdog_minutes",
}

# Fields that may differ between processes: a path to the same data, and threads.
_PROCESS_FIELDS = {"data.dir", "data.workers"}


@contextlib.contextmanager
def claim_workdir(
    lock: WorkdirLock, config: Config, task: Task, other_records: Collection[epath.Path] = ()
) -> Iterator[None]:
    """Record a run in a new workdir; delete new records if the block rejects the run.

    Another configuration may start in a workdir whose run was rejected, for example because a step
    takes too much memory.

    Args:
      lock: lock of the directory of the run, which is held.
      config: resolved configuration.
      task: the task with its data.
      other_records: files that the block may write beside config.json and run.json.

    Raises:
      InputError: see `check_workdir`.
    """
    workdir = lock.workdir
    records = [workdir / "run.json", workdir / "config.json", *other_records]
    new_records: list[epath.Path] = []
    _check_config_file(workdir)
    if distributed.is_process_0():
        new_records = [path for path in records if not path.exists()]
        # What a process left that was killed while it wrote; other commands may write here, too.
        names = "|".join(re.escape(name) for name in ("metrics.jsonl", *(p.name for p in records)))
        for draft in workdir.glob("*.partial"):
            if re.fullmatch(rf"({names})(\.[0-9a-f]{{8}})?\.partial", draft.name):
                draft.unlink(missing_ok=True)
    if records[0] in new_records:
        workdir.mkdir(parents=True, exist_ok=True)
        write_run_record(workdir, config, task, 0)
    distributed.sync_processes("workdir")
    check_workdir(workdir, config, task)
    try:
        yield
    except (InputError, jax.errors.JaxRuntimeError):
        if new_records and not (workdir / "checkpoints").exists():
            with contextlib.suppress(Exception):  # the error of the block is raised
                lock.confirm()
                for path in new_records:
                    path.unlink(missing_ok=True)
        raise


def _check_config_file(workdir: epath.Path) -> None:
    """Raise InputError if config.json is not that of a run, such as a published model's."""
    path = workdir / "config.json"
    if (workdir / "run.json").exists() or not path.exists():
        return
    try:
        fields = read_config_dict(path)
    except InputError:
        fields = {}
    if not {"task", "optimizer"} <= fields.keys():
        raise InputError(
            f"{path}: not that of a run, which would replace it. Use another --workdir."
        )


def check_workdir(workdir: epath.Path, config: Config, task: Task) -> None:
    """Check that a run may start or resume in a workdir.

    Raises:
      InputError: the workdir holds a run with another configuration or other data, or a sweep.
    """
    if (workdir / PARALLEL_RUNS_DIR).exists():
        raise InputError(
            f"{workdir}: holds a sweep. Use another --workdir, or resume it with `bertjax sweep`."
        )
    if not (workdir / "run.json").exists():
        return
    raw, run = read_config_dict(workdir / "config.json"), read_run_record(workdir)
    if difference := config_difference(raw, config, RESUMABLE_FIELDS):
        name, recorded, value = difference
        raise InputError(
            f"{name}={value!r}: {workdir} holds a run with {name}={recorded!r}. Use another "
            "--workdir, or the configuration of that run."
        )
    if run.get("data_fingerprint") != task.data_fingerprint:
        raise InputError(
            f"data.dir={config.data['dir']}: {workdir} holds a run on other data. Use another "
            "--workdir, or the data of that run."
        )
    if run.get("logits_digest") != logits_digest(task):
        raise InputError(
            f"distill.logits={config.distill.logits}: {workdir} holds a run with other logits. Use "
            "another --workdir, or the file of that run."
        )


def logits_digest(task: Task) -> str | None:
    """Return the digest of the stored logits that a task learns; None without."""
    return task.stored_logits.digest if task.stored_logits else None


def config_difference(
    raw: Mapping[str, Any], config: Config, ignored: Collection[str]
) -> tuple[str, Any, Any] | None:
    """Return the first field that differs: name, recorded value, value; None without one.

    Args:
      raw: a recorded configuration.
      config: the configuration that it is compared with.
      ignored: fields that may differ.
    """
    recorded, values = map(flatten_config, (parse_config(raw, registry.data_fields()), config))
    # Optimizer fields come last: they follow from others, such as a schedule from the steps.
    for name in sorted(recorded | values, key=lambda name: ("optimizer." in name, name)):
        if name not in ignored and recorded.get(name) != values.get(name):
            return name, recorded.get(name), values.get(name)
    return None


def write_run_record(directory: epath.Path, config: Config, task: Task, step: int) -> None:
    """Write config.json and run.json into a workdir or checkpoint, run.json last."""
    atomic_write_text(directory / "config.json", json.dumps(config.to_dict(), indent=1))
    run = {
        "step": step,
        "sequences": config.rampup.sequences_before(step),  # data position: read since step 0
        "data_fingerprint": task.data_fingerprint,
        "logits_digest": logits_digest(task),
        "corpus_descriptions": dict(task.corpus_descriptions),
        "bertjax": __version__,
        "jax": jax.__version__,
        "devices": describe_devices(),
    }
    atomic_write_text(directory / "run.json", json.dumps(run, indent=1))


def comparable_fields(config: Config) -> dict[str, Any]:
    """Return the fields that must be the same in all processes of a run, as `flatten_config`."""
    fields = flatten_config(config)
    return {name: value for name, value in fields.items() if name not in _PROCESS_FIELDS}


def check_processes(config: Config, task: Task) -> None:
    """Check that all processes have the same data and resolved configuration.

    Raises:
      InputError: they differ.
    """
    if jax.process_count() == 1:  # a digest may read all data
        return
    facts: dict[str, Any] = {"digest of the data": task.data_fingerprint}
    facts |= {"labels": list(task.labels), "digest of the logits": logits_digest(task)}
    facts |= {"digest of the tokenizer": task.tokenizer.fingerprint()}
    facts |= {"devices of a process": jax.local_device_count()}
    facts |= {"kind of the devices": jax.local_devices()[0].device_kind}
    check_agreement(facts | comparable_fields(config), distributed.BARRIER_TIMEOUT_SECONDS)


def describe_devices() -> str:
    """Return number and kind of all devices, such as "8 cpu": the bits of a run depend on them."""
    return f"{jax.device_count()} {jax.devices()[0].device_kind}"


def flatten_config(config: Config) -> dict[str, Any]:
    """Return the fields of a configuration by their dotted names, as in its JSON."""
    return flatten(json.loads(json.dumps(config.to_dict())))


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": 1, "c": {}} for {"a": {"b": 1}, "c": {}}."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        nested = value and isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat
