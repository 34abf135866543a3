"""The tasks of GLUE (Wang et al. 2018) in their published layout, or from TensorFlow Datasets.

XNLI (Conneau et al. 2018) is MNLI in fifteen languages and read as that: its own files have MNLI's
columns and one of the language, its machine translations others, and in TensorFlow Datasets a
record has the text in every language.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import Columns, Sentences, from_rows
from data_pipelines.finetuning.table import Row, check_bad, read_table, read_tfds_table
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines
from data_pipelines.text.sources import TFDS

_TWO = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_TEST = "test"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
      folder: of its files.
      columns: of its table, in TSV, with the columns of TensorFlow Datasets in `tfds`.
      labels: in the order of their numbers, that of the original BERT; empty for a number.
      metrics: as GLUE counts them, the headline first.
      dev: file without its suffix -> split in TensorFlow Datasets.
      test: name in a submission -> (file, split).
      header: whether the files of the labelled splits have one.
      translated: columns and label of its machine translations, where there are any.
      spelt: other ways in which its labels are written.
    """

    folder: str
    columns: tuple[str, ...]
    label: str
    tfds: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    test: Mapping[str, tuple[str, str]]
    dev: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"dev": "validation"})
    header: bool = True
    translated: tuple[tuple[str, ...], str] | None = None
    spelt: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def target(self) -> str:
        """As in `Columns`."""
        return "class" if self.labels else "number"


def _one(name: str) -> dict[str, tuple[str, str]]:
    return {name: (_TEST, _TEST)}


_PAIR = ("sentence1", "sentence2")
_NLI = ("premise", "hypothesis")
GLUE = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        "label",
        ("sentence",),
        _BINARY,
        ("matthews", "accuracy"),
        _one("CoLA"),
        header=False,
    ),
    "sst2": GlueTask(
        "SST-2", ("sentence",), "label", ("sentence",), _BINARY, ("accuracy",), _one("SST-2")
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        _PAIR,
        _BINARY,
        ("f1", "accuracy"),
        _one("MRPC"),
    ),
    "stsb": GlueTask("STS-B", _PAIR, "score", _PAIR, (), ("pearson", "spearman"), _one("STS-B")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        ("question1", "question2"),
        _BINARY,
        ("f1", "accuracy"),
        _one("QQP"),
    ),
    "mnli": GlueTask(
        "MNLI",
        _PAIR,
        "gold_label",
        _NLI,
        ("contradiction", "entailment", "neutral"),
        ("accuracy",),
        {
            "MNLI-m": ("test_matched", "test_matched"),
            "MNLI-mm": ("test_mismatched", "test_mismatched"),
            "AX": ("diagnostic", "test"),
        },
        {"dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"},
        translated=(("premise", "hypo"), "label"),
        spelt={"contradictory": "contradiction"},
    ),
    "qnli": GlueTask(
        "QNLI",
        ("question", "sentence"),
        "label",
        ("question", "sentence"),
        _TWO,
        ("accuracy",),
        _one("QNLI"),
    ),
    "rte": GlueTask("RTE", _PAIR, "label", _PAIR, _TWO, ("accuracy",), _one("RTE")),
    "wnli": GlueTask("WNLI", _PAIR, "label", _PAIR, _BINARY, ("accuracy",), _one("WNLI")),
}
_LANGUAGE = "language"  # XNLI's column, also of what TensorFlow Datasets gives
# CoLA's labelled files have no header: source, label, the author's mark, sentence.
_COLA = ("source", "label", "mark", "sentence")


def find_glue(name: str) -> GlueTask:
    """The task of a name.

    Raises:
      InputError: there is none.
    """
    if name not in GLUE:
        raise InputError(f"glue task {name!r} is unknown: choose one of {', '.join(GLUE)}.")
    return GLUE[name]


def read_glue(
    name: str, source: epath.PathLike, labelled: bool, skip_bad: float = 0.0, by: str = ""
) -> Sentences:
    """The examples of a file of a task.

    Args:
      name: of the task, in `GLUE`.
      labelled: False for test files, whose labels are left aside if there are any.
      skip_bad: share of the rows that may be of too few or too many fields, and of those that
        may be without text; they are left out, and counted.
      by: the column of the set that an example belongs to, if there are several.
    Raises:
      InputError: the file is not of the task's layout, or a label is none of its.
    """
    task = find_glue(name)
    if not task.header and labelled:
        rows = _without_header(check_file(source), skip_bad)
    else:
        rows = read_table(source, skip_bad)
    columns, label = task.columns, task.label
    if task.translated and rows[0].values.keys() >= {*task.translated[0]}:
        columns, label = task.translated
    return _checked(task, str(source), rows, columns, label, labelled, skip_bad, by)


def read_glue_tfds(name: str, source: str, split: str, labelled: bool, by: str = "") -> Sentences:
    """The same from TensorFlow Datasets, `tfds:glue/NAME` or what has its columns.

    Records lie there in an order of their own; unlabelled ones are given in that of the published
    file, which their "idx" tells.
    """
    task = find_glue(name)
    # Classes that have numbers here have names there, and the same order.
    rows = read_tfds_table(source, split, ("label",) if task.labels == _BINARY else ())
    if rows and isinstance(rows[0].values.get(task.tfds[0]), Mapping):
        rows = list(_each_language(rows, task.tfds))
    if not labelled:
        rows = _as_published(f"{source} {split}", rows)
    return _checked(task, f"{source} {split}", rows, task.tfds, "label", labelled, 0.0, by)


def _each_language(rows: Iterable[Row], columns: tuple[str, ...]) -> Iterator[Row]:
    """A row for each language of records whose texts are in several.

    A text is {LANGUAGE: TEXT}, or {"language": [...], "translation": [...]}.
    """
    for row in rows:
        texts = {}
        for column in columns:
            given = row.value(column)
            if "translation" in given:
                given = dict(zip(given["language"], given["translation"], strict=True))
            texts[column] = given
        languages = [set(given) for given in texts.values()]
        if odd := sorted(set.union(*languages) - set.intersection(*languages)):
            raise InputError(
                f"{row.place}: of {odd[0]!r} there is not every text: leave the record out."
            )
        for language in sorted(languages[0]):
            own = {column: given[language] for column, given in texts.items()}
            place = f"{row.place} ({language})"
            yield Row(place, {**row.values, **own, _LANGUAGE: language})


def _as_published(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows in the order of their "idx"."""
    numbered = sorted(rows, key=lambda row: row.value("idx"))
    if [row.value("idx") for row in numbered] != list(range(len(rows))):
        raise InputError(
            f'{name}: "idx" of its records does not count them from 0: give the directory of '
            "GLUE's files."
        )
    return numbered


def is_tfds(source: epath.PathLike) -> bool:
    """Whether a source is a data set of TensorFlow Datasets and no path."""
    return str(source).startswith(TFDS)


def _without_header(path: epath.Path, skip_bad: float) -> list[Row]:
    rows, bad = [], []

    def refuse(complaint: InputError) -> None:
        raise complaint

    for number, line in enumerate(read_lines(path, refuse), 1):
        if not line.strip():
            continue
        values = line.split("\t")
        place = f"{path} line {number}"
        if len(values) == len(_COLA):
            rows.append(Row(place, dict(zip(_COLA, values, strict=True))))
        else:
            bad.append(f"{place} has {len(values)} fields and should have {len(_COLA)}: mend it")
    check_bad(bad, len(rows) + len(bad), skip_bad)
    if not rows:
        raise InputError(f"{path} has no rows: give CoLA's file as it was published.")
    return rows


def _checked(
    task: GlueTask,
    name: str,
    rows: list[Row],
    columns: tuple[str, ...],
    label: str,
    labelled: bool,
    skip_bad: float,
    by: str,
) -> Sentences:
    text, *pair = columns
    read = Columns((text,), tuple(pair), label, target=task.target, by=by)
    found = from_rows(name, rows, read, labelled, skip_bad)
    if found.values and task.spelt:
        values = [task.spelt.get(value, value) for value in found.values]
        found = dataclasses.replace(found, values=values)
    for place, value in zip(found.places, found.values or (), strict=False):
        if task.labels and value not in task.labels:
            raise InputError(
                f"{place}: label {value!r} is none of {', '.join(task.labels)}: give the files of "
                f"{task.folder} as they were published."
            )
    return found
