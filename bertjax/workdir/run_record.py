"""Files of a checkpoint beside its arrays: configuration, tokenizer, labels, scores."""

import json

from etils import epath

from bertjax.checkpointing.retention import write_scores
from bertjax.config.config import Config
from bertjax.formats.loading import write_labels
from bertjax.tasks.task import Evaluation, Task
from bertjax.workdir.workdir import write_run_record
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

CALIBRATION_FILE = "calibration.json"


def write_checkpoint_metadata(
    directory: epath.Path, config: Config, task: Task, step: int, evaluation: Evaluation | None
) -> None:
    """Write the files into a checkpoint.

    Args:
      directory: the checkpoint.
      config: resolved configuration of the run.
      task: task of the run.
      step: number of updates.
      evaluation: an evaluation of the same parameters; None without one.
    """
    task.tokenizer.save(directory)
    if task.labels:
        write_labels(directory, task.labels)
    if evaluation:
        scores = evaluation.scores
        write_scores(directory, scores)
        if calibration := {name: scores[name] for name in task.calibration if name in scores}:
            atomic_write_text(directory / CALIBRATION_FILE, json.dumps(calibration))
    write_run_record(directory, config, task, step)


def read_calibration(directory: epath.Path) -> dict[str, float]:
    """Return the calibration of a checkpoint; empty without one."""
    path = directory / CALIBRATION_FILE
    return read_json_object(path, {str: float}, "Use another checkpoint.") if path.exists() else {}
