"""Records of the models that a run was initialized from and learns from, and their history."""

import json
from typing import Any, Protocol

from etils import epath

from bertjax.config.loading import read_run_record
from bertjax.formats.detection import find_format
from bertjax.mesh import distributed
from bertjax.workdir.model_records import RECORD_FILES
from data_pipelines.hub import find_commit, is_hub
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

_HISTORY_SCHEMA = {"history": [str]}  # of init.json
_RUN_SCHEMA = {"task": str, "init": str, "data": {"dir": str, "objective?": str}}


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
