"""What GLUE's server takes: one archive with the test answers of all tasks."""

import collections
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence

from etils import epath

from bertjax.tasks.sequence_classification.task import model_label_names, predict_texts
from bertjax.tasks.task import PredictorProtocol
from data_pipelines.errors import InputError
from data_pipelines.finetuning.glue import GLUE, GlueTask, find_glue_task, read_glue, read_glue_tfds
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.text.sources import TFDS

FILES = tuple(name for task in GLUE.values() for name in task.test)
_RANGE = 0.0, 5.0  # of STS-B's scores


def predict_test_files(predictor: PredictorProtocol, data: str) -> dict[str, str]:
    """The files of a run's task, by their names without suffix: CoLA, MNLI-m, MNLI-mm and AX, ...

    Args:
      opened: a model that was fine-tuned on a task of GLUE.
      data: the directory of GLUE's folders, or `tfds:glue`.
    Raises:
      InputError: it was fine-tuned on something else, or a test file is missing.
    """
    name = predictor.config.data.get("glue", "")
    if not name:
        raise InputError(f"{predictor.path} was not trained on a task of GLUE: leave it out.")
    task, found = find_glue_task(name), {}
    for file, tests in _read_test_sets(name, task, data):
        said = predict_texts(predictor, tests)
        if task.labels:
            names = model_label_names(predictor)
            found[file] = _to_tsv(names[best] for best in said.argmax(axis=1))
        else:
            found[file] = _to_tsv(f"{number:.3f}" for number in said.clip(*_RANGE))
    return found


def predict_majority(name: str, data: str) -> dict[str, str]:
    """The same of a task for which every answer is the most frequent one of its training file.

    Raises:
      InputError: there is no such task, it has numbers, or a file is missing.
    """
    task = find_glue_task(name)
    if not task.labels:
        raise InputError(f"--majority-class {name}: it has numbers and no classes.")
    if data.startswith(TFDS):
        train = read_glue_tfds(name, f"{data}/{name}", "train", True)
    else:
        train = read_glue(name, epath.Path(data) / task.folder / "train.tsv", True)
    counts = collections.Counter(train.values or ())
    most = max(task.labels, key=lambda label: counts[label])
    return {file: _to_tsv([most] * len(tests)) for file, tests in _read_test_sets(name, task, data)}


def build_submission(files: Mapping[str, str]) -> bytes:
    """A `.zip` of all files of a submission.

    Raises:
      InputError: a task is missing; it is named.
    """
    missing = [name for name in FILES if name not in files]
    if missing:
        raise InputError(
            f"the submission lacks {', '.join(missing)}: give a --checkpoint of each, or "
            "answer a task by --majority-class."
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in FILES:
            # Of a fixed time, so that equal answers are equal files.
            packed.writestr(zipfile.ZipInfo(f"{name}.tsv"), files[name])
    return content.getvalue()


def _read_test_sets(
    name: str, task: GlueTask, data: str
) -> Iterable[tuple[str, SequenceClassificationDataset]]:
    for file, (stem, split) in task.test.items():
        if data.startswith(TFDS):
            source = f"{data}/{'ax' if file == 'AX' else name}"
            yield file, read_glue_tfds(name, source, split, False)
            continue
        path = epath.Path(data) / task.folder / f"{stem}.tsv"
        if file == "AX" and not path.exists():  # some keep it beside the tasks
            path = epath.Path(data) / "diagnostic" / "diagnostic.tsv"
        yield file, read_glue(name, path, False)


def _to_tsv(answers: Iterable[str] | Sequence[str]) -> str:
    lines = [f"{number}\t{answer}\n" for number, answer in enumerate(answers)]
    return "".join(["index\tprediction\n", *lines])
