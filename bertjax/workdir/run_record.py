"""What a checkpoint holds besides its arrays: configuration, vocabulary, labels, calibration and
scores.
"""

import json

from etils import epath

from bertjax.checkpointing.retention import write_scores
from bertjax.config.config import Config
from bertjax.formats.loading import write_labels
from bertjax.tasks.task import Evaluation, Task
from bertjax.workdir.workdir import write_run_record
from data_pipelines.paths import atomic_write_text

CALIBRATION_FILE = "calibration.json"


def write_checkpoint_metadata(
    directory: epath.Path, config: Config, task: Task, step: int, evaluation: Evaluation | None
) -> None:
    """Writes it into a checkpoint.

    Args:
      found: an evaluation of these very arrays; None where there was none.
    """
    task.tokenizer.save(directory)
    if task.labels:
        write_labels(directory, task.labels)
    if evaluation:
        write_scores(directory, evaluation.scores)
    if evaluation and evaluation.calibration:
        atomic_write_text(directory / CALIBRATION_FILE, json.dumps(dict(evaluation.calibration)))
    write_run_record(directory, config, task, step)


def read_calibration(directory: epath.Path) -> dict[str, float]:
    """What was calibrated when the checkpoint was saved; empty where nothing was."""
    if (directory / CALIBRATION_FILE).exists():
        evaluation: dict[str, float] = json.loads((directory / CALIBRATION_FILE).read_text())
        return evaluation
    return {}
