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


@dataclasses.dataclass
class GlueTask:
    """A task of GLUE.

    Attributes:
      folder: directory of its files.
      columns: names of the text columns of its TSV files.
      label: name of the label column of its TSV files.
      labels: class names in the order of their ids, as in google-research/bert; empty for
        regression.
      metrics: GLUE's metrics, the primary one first.
      tfds_columns: names of the text columns in TensorFlow Datasets; by default `columns`.
      dev: file without suffix -> split in TensorFlow Datasets.
      test: name in a submission -> (file without suffix, split in TensorFlow Datasets); by default
        a single test set, named as the folder.
      has_header: False if the files of the labeled splits have no header.
      translated_columns: text columns and label column of its machine translations.
      label_aliases: other spelling of a label -> label.
    """

    folder: str
    columns: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = _ZERO_ONE
    metrics: tuple[str, ...] = ("accuracy",)
    tfds_columns: tuple[str, ...] = ()
    dev: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"dev": "validation"})
    test: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    has_header: bool = True
    translated_columns: tuple[tuple[str, ...], str] | None = None
    label_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tfds_columns = self.tfds_columns or self.columns
        self.test = self.test or {self.folder: ("test", "test")}

    @property
    def problem_type(self) -> str:
        """The problem type, as in `TableColumns`."""
        return "single_label_classification" if self.labels else "regression"


_PAIR = ("sentence1", "sentence2")
_F1 = ("f1", "accuracy")
_COLA_METRICS = ("matthews_correlation", "accuracy")
GLUE = {
    "cola": GlueTask("CoLA", ("sentence",), metrics=_COLA_METRICS, has_header=False),
    "sst2": GlueTask("SST-2", ("sentence",)),
    "mrpc": GlueTask(
        "MRPC", ("#1 String", "#2 String"), "Quality", metrics=_F1, tfds_columns=_PAIR
    ),
    "stsb": GlueTask("STS-B", _PAIR, "score", labels=(), metrics=("pearson", "spearman")),
    "qqp": GlueTask("QQP", ("question1", "question2"), "is_duplicate", metrics=_F1),
    "mnli": GlueTask(
        "MNLI",
        _PAIR,
        "gold_label",
        labels=("contradiction", "entailment", "neutral"),
        tfds_columns=("premise", "hypothesis"),
        dev={"dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"},
        test={
            "MNLI-m": ("test_matched", "test_matched"),
            "MNLI-mm": ("test_mismatched", "test_mismatched"),
            "AX": ("diagnostic", "test"),
        },
        translated_columns=(("premise", "hypo"), "label"),
        label_aliases={"contradictory": "contradiction"},
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), labels=_ENTAILMENT),
    "rte": GlueTask("RTE", _PAIR, labels=_ENTAILMENT),
    "wnli": GlueTask("WNLI", _PAIR),
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
    file_columns = _COLA_COLUMNS if labeled and not task.has_header else ()
    rows = read_table(source, max_bad_fraction, file_columns, keep_quotes=True)
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
        missing_labels="",
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
