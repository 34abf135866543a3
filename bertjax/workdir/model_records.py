"""Records of the models that a run was initialized from and learns from, with history and commits.

A repository on the Hub may change at any time. All processes of a run read the commit that process
0 found, and a resumed run the recorded one.
"""

import functools
import json
import re
from typing import Any, Protocol

from etils import epath

from bertjax.config.loading import read_run_record
from bertjax.formats.detection import find_format
from bertjax.mesh import distributed
from data_pipelines.hub import find_commit, is_hub, pin_commit
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

# In a workdir: the models that its run was initialized from, and learns from.
RECORD_FILES = {"init": "init.json", "distill.teacher": "teacher.json"}
_HISTORY_SCHEMA = {"history": [str]}  # of init.json
_RUN_SCHEMA = {"task": str, "init": str, "data": {"dir": str, "objective?": str}}
_HASH_DIGITS = 40
_DIGITS_PER_NUMBER = 4  # numbers of 32 bits with a sign are broadcast


class RecordedModel(Protocol):
    """The part of `bertjax.training.initialization.PretrainedModel` that a record states."""

    source: epath.PathLike
    path: epath.Path
    history: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hex digest that changes with the parameters."""


def write_model_record(field: str, model: RecordedModel, workdir: epath.Path) -> None:
    """Record the model that a field names in the workdir of a run."""
    record = workdir / RECORD_FILES[field]
    if distributed.is_process_0() and not record.exists():
        name, source = model.path.name, model.source
        step = int(name) if name.isdigit() and find_format(model.path) == "bertjax" else None
        content: dict[str, Any] = {"path": str(model.path), "step": step, "digest": model.digest}
        content |= {"history": model.history}
        content |= {"hub": str(source), "commit": find_commit(source)} if is_hub(source) else {}
        atomic_write_text(record, json.dumps(content, indent=1))


def read_history(checkpoint: epath.Path) -> tuple[str, ...]:
    """Return what made the parameters of a checkpoint; see `NumpyModel.history`.

    The last line is its run. The others are in its workdir, so that a copy elsewhere lacks them.

    Raises:
      InputError: a record is damaged.
    """
    if not (checkpoint / "run.json").exists():
        return ()
    fix = "Use another checkpoint."
    record, earlier = checkpoint.parent.parent / RECORD_FILES["init"], []
    if checkpoint.parent.name == "checkpoints" and record.exists():
        earlier = read_json_object(record, _HISTORY_SCHEMA, fix)["history"]
    config = read_json_object(checkpoint / "config.json", _RUN_SCHEMA, fix)
    data, step = config["data"], read_run_record(checkpoint)["step"]
    objective = f" ({data['objective']})" if data.get("objective") else ""
    init = config["init"] or "random parameters"
    run = f"{config['task']}{objective}: {step:,} steps on {data['dir']}, initialized from {init}"
    return *earlier, run


def pin_recorded_commits(workdir: epath.PathLike) -> None:
    """Read the models that the records of a workdir name at their recorded commits from now on.

    Raises:
      InputError: a record is damaged.
    """
    for name in RECORD_FILES.values():
        if (record := epath.Path(workdir) / name).exists():
            schema = {"hub?": str, "commit?": str}
            content = read_json_object(record, schema, "Use another --workdir.")
            if content.get("hub") and content.get("commit"):
                pin_commit(content["hub"], content["commit"])


def share_commits(*paths: epath.PathLike) -> None:
    """Read models on the Hub at the commits that process 0 has found, on every process from now on.

    Args:
      paths: models; those that are not on the Hub are ignored. All processes pass the same.

    Raises:
      InputError: a model cannot be downloaded.
    """
    import jax  # arguments are checked without it

    from bertjax.mesh import distributed

    if jax.process_count() == 1:
        return
    for path in dict.fromkeys(filter(is_hub, paths)):
        make, count = functools.partial(_to_numbers, path), _HASH_DIGITS // _DIGITS_PER_NUMBER
        numbers = distributed.broadcast_from_process_0(make, count)
        pin_commit(path, "".join(f"{number:0{_DIGITS_PER_NUMBER}x}" for number in numbers))


def _to_numbers(path: epath.PathLike) -> list[int]:
    digits = re.findall("." * _DIGITS_PER_NUMBER, find_commit(path))
    return [int(part, 16) for part in digits]
