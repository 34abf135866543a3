"""The tasks of GLUE (Wang et al. 2018) in their published layout, or from TensorFlow Datasets.

XNLI (Conneau et al. 2018) is MNLI in fifteen languages and read as that: its own files have MNLI's
columns and one of the language, its machine translations others, and in TensorFlow Datasets a
record has the text in every language.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    from_rows,
)
from data_pipelines.finetuning.table import TableRow, check_bad_rows, read_table, read_tfds_table
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines
from data_pipelines.text.sources import TFDS

_ENTAILMENT = ("entailment", "not_entailment")
_ZERO_ONE = ("0", "1")
_TEST = "test"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
      folder: of its files.
      columns: of its table, in TSV, with the columns of TensorFlow Datasets in `tfds_columns`.
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
    tfds_columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    test: Mapping[str, tuple[str, str]]
    dev: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"dev": "validation"})
    has_header: bool = True
    translated_columns: tuple[tuple[str, ...], str] | None = None
    label_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def problem_type(self) -> str:
        """As in `TableColumns`."""
        return "single_label_classification" if self.labels else "regression"


def _single_test_file(name: str) -> dict[str, tuple[str, str]]:
    return {name: (_TEST, _TEST)}


_PAIR = ("sentence1", "sentence2")
_NLI = ("premise", "hypothesis")
GLUE = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        "label",
        ("sentence",),
        _ZERO_ONE,
        ("matthews_correlation", "accuracy"),
        _single_test_file("CoLA"),
        has_header=False,
    ),
    "sst2": GlueTask(
        "SST-2",
        ("sentence",),
        "label",
        ("sentence",),
        _ZERO_ONE,
        ("accuracy",),
        _single_test_file("SST-2"),
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        _PAIR,
        _ZERO_ONE,
        ("f1", "accuracy"),
        _single_test_file("MRPC"),
    ),
    "stsb": GlueTask(
        "STS-B", _PAIR, "score", _PAIR, (), ("pearson", "spearman"), _single_test_file("STS-B")
    ),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        ("question1", "question2"),
        _ZERO_ONE,
        ("f1", "accuracy"),
        _single_test_file("QQP"),
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
        translated_columns=(("premise", "hypo"), "label"),
        label_aliases={"contradictory": "contradiction"},
    ),
    "qnli": GlueTask(
        "QNLI",
        ("question", "sentence"),
        "label",
        ("question", "sentence"),
        _ENTAILMENT,
        ("accuracy",),
        _single_test_file("QNLI"),
    ),
    "rte": GlueTask(
        "RTE", _PAIR, "label", _PAIR, _ENTAILMENT, ("accuracy",), _single_test_file("RTE")
    ),
    "wnli": GlueTask(
        "WNLI", _PAIR, "label", _PAIR, _ZERO_ONE, ("accuracy",), _single_test_file("WNLI")
    ),
}
_LANGUAGE = "language"  # XNLI's column, also of what TensorFlow Datasets gives
# CoLA's labelled files have no header: source, label, the author's mark, sentence.
_COLA = ("source", "label", "mark", "sentence")


def find_glue_task(name: str) -> GlueTask:
    """The task of a name.

    Raises:
      InputError: there is none.
    """
    if name not in GLUE:
        raise InputError(f"glue task {name!r} is unknown: choose one of {', '.join(GLUE)}.")
    return GLUE[name]


def read_glue(
    name: str,
    source: epath.PathLike,
    labeled: bool,
    max_bad_fraction: float = 0.0,
    eval_set_column: str = "",
) -> SequenceClassificationDataset:
    """The examples of a file of a task.

    Args:
      name: of the task, in `GLUE`.
      labelled: False for test files, whose labels are left aside if there are any.
      max_bad_fraction: share of the rows that may be of too few or too many fields, and of those that
        may be without text; they are left out, and counted.
      eval_set_column: the column of the set that an example belongs to, if there are several.
    Raises:
      InputError: the file is not of the task's layout, or a label is none of its.
    """
    task = find_glue_task(name)
    if not task.has_header and labeled:
        rows = _read_without_header(check_file(source), max_bad_fraction)
    else:
        rows = read_table(source, max_bad_fraction)
    columns, label = task.columns, task.label
    if task.translated_columns and rows[0].values.keys() >= {*task.translated_columns[0]}:
        columns, label = task.translated_columns
    return _read_examples(
        task, str(source), rows, columns, label, labeled, max_bad_fraction, eval_set_column
    )


def read_glue_tfds(
    name: str, source: str, split: str, labeled: bool, eval_set_column: str = ""
) -> SequenceClassificationDataset:
    """The same from TensorFlow Datasets, `tfds:glue/NAME` or what has its columns.

    Records lie there in an order of their own; unlabelled ones are given in that of the published
    file, which their "idx" tells.
    """
    task = find_glue_task(name)
    # Classes that have numbers here have names there, and the same order.
    rows = read_tfds_table(source, split, ("label",) if task.labels == _ZERO_ONE else ())
    if rows and isinstance(rows[0].values.get(task.tfds_columns[0]), Mapping):
        rows = list(_split_languages(rows, task.tfds_columns))
    if not labeled:
        rows = _sort_by_idx(f"{source} {split}", rows)
    return _read_examples(
        task, f"{source} {split}", rows, task.tfds_columns, "label", labeled, 0.0, eval_set_column
    )


def _split_languages(rows: Iterable[TableRow], columns: tuple[str, ...]) -> Iterator[TableRow]:
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
            yield TableRow(place, {**row.values, **own, _LANGUAGE: language})


def _sort_by_idx(name: str, rows: Sequence[TableRow]) -> list[TableRow]:
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


def _read_without_header(path: epath.Path, max_bad_fraction: float) -> list[TableRow]:
    rows, bad = [], []

    def refuse(complaint: InputError) -> None:
        raise complaint

    for number, line in enumerate(read_lines(path, refuse), 1):
        if not line.strip():
            continue
        values = line.split("\t")
        place = f"{path} line {number}"
        if len(values) == len(_COLA):
            rows.append(TableRow(place, dict(zip(_COLA, values, strict=True))))
        else:
            bad.append(f"{place} has {len(values)} fields and should have {len(_COLA)}: mend it")
    check_bad_rows(bad, len(rows) + len(bad), max_bad_fraction)
    if not rows:
        raise InputError(f"{path} has no rows: give CoLA's file as it was published.")
    return rows


def _read_examples(
    task: GlueTask,
    name: str,
    rows: list[TableRow],
    columns: tuple[str, ...],
    label: str,
    labeled: bool,
    max_bad_fraction: float,
    eval_set_column: str,
) -> SequenceClassificationDataset:
    text, *pair = columns
    read = TableColumns(
        (text,), tuple(pair), label, problem_type=task.problem_type, eval_set_column=eval_set_column
    )
    found = from_rows(name, rows, read, labeled, max_bad_fraction)
    if found.values and task.label_aliases:
        values = [task.label_aliases.get(value, value) for value in found.values]
        found = dataclasses.replace(found, values=values)
    for place, value in zip(found.locations, found.values or (), strict=False):
        if task.labels and value not in task.labels:
            raise InputError(
                f"{place}: label {value!r} is none of {', '.join(task.labels)}: give the files of "
                f"{task.folder} as they were published."
            )
    return found
