"""The tasks of GLUE (Wang et al. 2018) from their published files or TensorFlow Datasets.

XNLI (Conneau et al. 2018) is MNLI in fifteen languages and is read as MNLI. Its files have MNLI's
columns and a column of the language; its machine translations have other columns. Its records in
TensorFlow Datasets hold a text in every language.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    dataset_from_rows,
)
from data_pipelines.finetuning.table import TableRow, read_table, read_tfds_table

_ENTAILMENT = ("entailment", "not_entailment")
_ZERO_ONE = ("0", "1")
_TEST = "test"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    Attributes:
      folder: directory of its files.
      columns: names of the text columns of its TSV files.
      tfds_columns: names of the text columns in TensorFlow Datasets.
      test: name in a submission -> (file without suffix, split in TensorFlow Datasets).
      label: name of the label column of its TSV files.
      labels: class names in the order of their ids, as in google-research/bert; empty for
        regression.
      metrics: GLUE's metrics, the primary one first.
      dev: file without suffix -> split in TensorFlow Datasets.
      has_header: False if the files of the labeled splits have no header.
      translated_columns: text columns and label column of its machine translations.
      label_aliases: other spelling of a label -> label.
    """

    folder: str
    columns: tuple[str, ...]
    tfds_columns: tuple[str, ...]
    test: Mapping[str, tuple[str, str]]
    label: str = "label"
    labels: tuple[str, ...] = _ZERO_ONE
    metrics: tuple[str, ...] = ("accuracy",)
    dev: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"dev": "validation"})
    has_header: bool = True
    translated_columns: tuple[tuple[str, ...], str] | None = None
    label_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def problem_type(self) -> str:
        """The problem type, as in `TableColumns`."""
        return "single_label_classification" if self.labels else "regression"


def _single_test_file(name: str) -> dict[str, tuple[str, str]]:
    return {name: (_TEST, _TEST)}


_PAIR = ("sentence1", "sentence2")
_NLI = ("premise", "hypothesis")
GLUE = {
    "cola": GlueTask(
        folder="CoLA",
        columns=("sentence",),
        tfds_columns=("sentence",),
        metrics=("matthews_correlation", "accuracy"),
        test=_single_test_file("CoLA"),
        has_header=False,
    ),
    "sst2": GlueTask(
        folder="SST-2",
        columns=("sentence",),
        tfds_columns=("sentence",),
        test=_single_test_file("SST-2"),
    ),
    "mrpc": GlueTask(
        folder="MRPC",
        columns=("#1 String", "#2 String"),
        label="Quality",
        tfds_columns=_PAIR,
        metrics=("f1", "accuracy"),
        test=_single_test_file("MRPC"),
    ),
    "stsb": GlueTask(
        folder="STS-B",
        columns=_PAIR,
        label="score",
        tfds_columns=_PAIR,
        labels=(),
        metrics=("pearson", "spearman"),
        test=_single_test_file("STS-B"),
    ),
    "qqp": GlueTask(
        folder="QQP",
        columns=("question1", "question2"),
        label="is_duplicate",
        tfds_columns=("question1", "question2"),
        metrics=("f1", "accuracy"),
        test=_single_test_file("QQP"),
    ),
    "mnli": GlueTask(
        folder="MNLI",
        columns=_PAIR,
        label="gold_label",
        tfds_columns=_NLI,
        labels=("contradiction", "entailment", "neutral"),
        test={
            "MNLI-m": ("test_matched", "test_matched"),
            "MNLI-mm": ("test_mismatched", "test_mismatched"),
            "AX": ("diagnostic", "test"),
        },
        dev={"dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"},
        translated_columns=(("premise", "hypo"), "label"),
        label_aliases={"contradictory": "contradiction"},
    ),
    "qnli": GlueTask(
        folder="QNLI",
        columns=("question", "sentence"),
        tfds_columns=("question", "sentence"),
        labels=_ENTAILMENT,
        test=_single_test_file("QNLI"),
    ),
    "rte": GlueTask(
        folder="RTE",
        columns=_PAIR,
        tfds_columns=_PAIR,
        labels=_ENTAILMENT,
        test=_single_test_file("RTE"),
    ),
    "wnli": GlueTask(
        folder="WNLI",
        columns=_PAIR,
        tfds_columns=_PAIR,
        test=_single_test_file("WNLI"),
    ),
}
_LANGUAGE = "language"  # XNLI's column, which rows of TensorFlow Datasets get too
_COLA_COLUMNS = ("source", "label", "mark", "sentence")  # its labeled files have no header


def find_glue_task(name: str) -> GlueTask:
    """Return the task of a name.

    Raises:
      InputError: the name is unknown.
    """
    if name not in GLUE:
        raise InputError(f"glue={name!r}: unknown task. Choose one of {', '.join(GLUE)}.")
    return GLUE[name]


def read_glue(
    name: str,
    source: epath.PathLike,
    labeled: bool,
    max_bad_fraction: float = 0.0,
    eval_set_column: str = "",
) -> SequenceClassificationDataset:
    """Read a file of a task.

    Args:
      name: the task's key in `GLUE`.
      source: the file.
      labeled: False for test files, whose labels are ignored.
      max_bad_fraction: maximal fraction of the rows that may have too few or too many fields, and
        of the others that may have no text. These rows are skipped with a warning.
      eval_set_column: the column that names an example's eval set; "" for a single set.

    Raises:
      InputError: the file does not have the task's columns, or a label is unknown.
    """
    task = find_glue_task(name)
    tsv_columns = _COLA_COLUMNS if labeled and not task.has_header else ()
    rows = read_table(source, max_bad_fraction, tsv_columns)
    columns, label = task.columns, task.label
    if task.translated_columns and rows[0].values.keys() >= {*task.translated_columns[0]}:
        columns, label = task.translated_columns
    return _to_dataset(
        task, str(source), rows, columns, label, labeled, max_bad_fraction, eval_set_column
    )


def read_glue_tfds(
    name: str, source: str, split: str, labeled: bool, eval_set_column: str = ""
) -> SequenceClassificationDataset:
    """Read a split of a task from TensorFlow Datasets.

    Records of TensorFlow Datasets are not in the published order. Unlabeled records are sorted by
    their field "idx", their position in the published file.

    Args:
      name: the task's key in `GLUE`.
      source: `tfds:glue/NAME`, or a builder with the same columns.
      split: name of the split.
      labeled: False for test splits, whose labels are ignored.
      eval_set_column: see `read_glue`.

    Raises:
      InputError: see `read_glue` and `read_tfds_records`.
    """
    task = find_glue_task(name)
    # Tasks whose labels are "0" and "1" have class names in TensorFlow Datasets, in the same order.
    rows = read_tfds_table(source, split, ("label",) if task.labels == _ZERO_ONE else ())
    if rows and isinstance(rows[0].values.get(task.tfds_columns[0]), Mapping):
        rows = list(_split_languages(rows, task.tfds_columns))
    if not labeled:
        rows = _sort_by_idx(f"{source} {split}", rows)
    return _to_dataset(
        task, f"{source} {split}", rows, task.tfds_columns, "label", labeled, 0.0, eval_set_column
    )


def _split_languages(rows: Iterable[TableRow], columns: tuple[str, ...]) -> Iterator[TableRow]:
    """Yield a row for each language of multilingual records.

    A multilingual text is {LANGUAGE: TEXT} or {"language": [...], "translation": [...]}.
    """
    for row in rows:
        texts = {}
        for column in columns:
            by_language = row.value(column)
            if "translation" in by_language:
                pairs = zip(by_language["language"], by_language["translation"], strict=True)
                by_language = dict(pairs)
            texts[column] = by_language
        languages = [set(by_language) for by_language in texts.values()]
        if incomplete := sorted(set.union(*languages) - set.intersection(*languages)):
            raise InputError(
                f"{row.location}: a text in {incomplete[0]!r} is missing. Remove the record."
            )
        for language in sorted(languages[0]):
            values = {column: by_language[language] for column, by_language in texts.items()}
            location = f"{row.location} ({language})"
            yield TableRow(location, {**row.values, **values, _LANGUAGE: language})


def _sort_by_idx(name: str, rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows sorted by "idx"."""
    ordered = sorted(rows, key=lambda row: row.value("idx"))
    if [row.value("idx") for row in ordered] != list(range(len(rows))):
        raise InputError(
            f'{name}: values of "idx" are not 0, 1, 2, ... Give the directory of GLUE\'s files.'
        )
    return ordered


def _to_dataset(
    task: GlueTask,
    name: str,
    rows: list[TableRow],
    columns: tuple[str, ...],
    label: str,
    labeled: bool,
    max_bad_fraction: float,
    eval_set_column: str,
) -> SequenceClassificationDataset:
    text, *text_pair = columns
    table_columns = TableColumns(
        (text,),
        tuple(text_pair),
        label,
        problem_type=task.problem_type,
        eval_set_column=eval_set_column,
    )
    data = dataset_from_rows(name, rows, table_columns, labeled, max_bad_fraction)
    if data.values and task.label_aliases:
        values = [task.label_aliases.get(value, value) for value in data.values]
        data = dataclasses.replace(data, values=values)
    for location, value in zip(data.locations, data.values or (), strict=False):
        if task.labels and value not in task.labels:
            raise InputError(
                f"{location}: label {value!r} is not one of {', '.join(task.labels)}. Give the "
                f"published files of {task.folder}."
            )
    return data
