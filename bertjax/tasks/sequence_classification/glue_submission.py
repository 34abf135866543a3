"""Submissions to GLUE's server: one archive with the test predictions of all tasks."""

import collections
import io
import zipfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from etils import epath

from bertjax.config.config import Config
from bertjax.tasks.pipeline import Pipeline, RunFunction
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import GLUE, GlueTask, find_glue_task, read_glue, read_glue_tfds
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.paths import check_file
from data_pipelines.text.tfds import TFDS

FILES = tuple(name for task in GLUE.values() for name in task.test)
_STSB_RANGE = 0.0, 5.0


def glue_task_name(path: epath.PathLike, config: Config) -> str:
    """Return the GLUE task that a model was fine-tuned on.

    Args:
      path: directory of the model, for error messages.
      config: configuration of its run.

    Raises:
      InputError: the model was fine-tuned on something else.
    """
    if config.task != "sequence_classification" or not config.data.get("glue"):
        raise InputError(f"{path}: not fine-tuned on a GLUE task. Leave it out.")
    return str(config.data["glue"])


def add_task(sources: dict[str, str], source: str, name: str, data: str) -> None:
    """Add the files of a task's predictions, before these are computed.

    Args:
      sources: what predicts each file of the submission.
      source: what predicts this task, such as a model's directory.
      name: name of the task.
      data: the directory of GLUE's folders, or `tfds:glue`.

    Raises:
      InputError: a file is predicted twice, the task is unknown, or a test file is missing.
    """
    task = find_glue_task(name)
    for file, (stem, _) in task.test.items():
        if file in sources:
            raise InputError(f"{file}: predicted by {sources[file]} and {source}. Give one.")
        sources[file] = source
        if not data.startswith(TFDS):
            check_file(_test_path(task, file, stem, data))


def check_complete(files: Collection[str]) -> None:
    """Raise InputError if a submission lacks the files of a task."""
    if missing := [name for name in FILES if name not in files]:
        raise InputError(
            f"the submission lacks {', '.join(missing)}. Add a --checkpoint of each, or "
            "--majority-class TASK."
        )


def predict_test_files(
    path: epath.PathLike, pipeline: Pipeline[Any], run: RunFunction, data: str
) -> dict[str, str]:
    """Return the submission files of the task that a model was fine-tuned on.

    Args:
      path: directory of the model, for error messages.
      pipeline: pipeline of the model.
      run: computes the model's outputs.
      data: the directory of GLUE's folders, or `tfds:glue`.

    Returns:
      Contents by file name without suffix, such as CoLA, or MNLI-m, MNLI-mm and AX.

    Raises:
      InputError: the model was fine-tuned on something else, or a test file is missing.
    """
    name = glue_task_name(path, pipeline.config)
    assert isinstance(pipeline, SequenceClassificationPipeline)
    task, files = find_glue_task(name), {}
    for file, dataset in _read_test_sets(name, task, data):
        predictions = pipeline.predict_dataset(run, dataset)
        if task.labels:
            files[file] = _to_tsv(pipeline.labels[best] for best in predictions.argmax(axis=1))
        else:
            files[file] = _to_tsv(f"{value:.3f}" for value in predictions.clip(*_STSB_RANGE))
    return files


def predict_majority(name: str, data: str) -> dict[str, str]:
    """Return the submission files of a task with the most frequent training label everywhere.

    Raises:
      InputError: the task is unknown or a regression, or a file is missing.
    """
    task = find_glue_task(name)
    if not task.labels:
        raise InputError(f"--majority-class={name}: a regression has no classes. Leave it out.")
    if data.startswith(TFDS):
        train = read_glue_tfds(name, f"{data}/{name}", "train", True)
    else:
        train = read_glue(name, epath.Path(data) / task.folder / "train.tsv", True)
    counts = collections.Counter(train.values or ())
    majority = max(task.labels, key=lambda label: counts[label])
    return {
        file: _to_tsv([majority] * len(dataset))
        for file, dataset in _read_test_sets(name, task, data)
    }


def build_submission(files: Mapping[str, str]) -> bytes:
    """Return a zip archive of all files of a submission; raises as `check_complete`."""
    check_complete(files)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            # ZipInfo has a fixed time, so equal predictions give equal archives.
            archive.writestr(zipfile.ZipInfo(f"{name}.tsv"), files[name])
    return content.getvalue()


def _read_test_sets(
    name: str, task: GlueTask, data: str
) -> Iterable[tuple[str, SequenceClassificationDataset]]:
    for file, (stem, split) in task.test.items():
        if data.startswith(TFDS):
            source = f"{data}/{'ax' if file == 'AX' else name}"
            yield file, read_glue_tfds(name, source, split, False)
            continue
        yield file, read_glue(name, _test_path(task, file, stem, data), False)


def _test_path(task: GlueTask, file: str, stem: str, data: str) -> epath.Path:
    path = epath.Path(data) / task.folder / f"{stem}.tsv"
    if file == "AX" and not path.exists():  # some copies keep it beside the tasks
        path = epath.Path(data) / "diagnostic" / "diagnostic.tsv"
    return path


def _to_tsv(labels: Iterable[str]) -> str:
    lines = [f"{number}\t{label}\n" for number, label in enumerate(labels)]
    return "".join(["index\tprediction\n", *lines])
