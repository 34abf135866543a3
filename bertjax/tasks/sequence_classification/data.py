"""Data sets of sequence classification: the files of GLUE, or other tables."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.config import Config
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    LABEL_SMOOTHING,
    TFDS_SPLITS,
    find_tables,
    require_directory,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.finetuning.glue import find_glue_task, read_glue, read_glue_tfds
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    dataset_from_rows,
    split_column_names,
)
from data_pipelines.finetuning.table import (
    TableRow,
    describe_missing_column,
    read_table,
    read_tfds_table,
)
from data_pipelines.text.tfds import TFDS

_SET_BY_GLUE = (
    *("text", "text_pair", "label", "columns", "id"),
    *("problem_type", "label_separator", "missing_labels"),
)
FIELDS = COMMON_DATA_FIELDS | {
    "glue": field("", 'GLUE task, which sets columns and labels; "" for the columns below'),
    "text": field("text", 'column of the text; several joined by "+"'),
    "text_pair": field("", 'column of the second text; several joined by "+"; "" for none'),
    "label": field("label", 'column of the label; columns of 0 and 1 for labels joined by "+"'),
    "columns": field("", 'names of the columns of files without a header, joined by "+"'),
    "id": field("", 'column of the example id; "" for the row number'),
    "problem_type": field(
        "single_label_classification",
        "`single_label_classification`, `multi_label_classification` or `regression`",
    ),
    "label_smoothing": LABEL_SMOOTHING,
    "label_separator": field(
        "", 'separator of the labels of a text (multi-label); "" chooses one of , | ; by content'
    ),
    "missing_labels": field(
        "auto", 'marks of missing labels, such as "-,nan"; "auto" knows -, ?, nan, None, -1, ...'
    ),
    "eval_set_column": field(
        "", 'column that divides a table into eval sets, such as "language"; "" for one set'
    ),
    "eval_sets": field(
        "", 'values of `data.eval_set_column` to evaluate, joined by "+"; "" for all'
    ),
    "class_weights": field("", '"balanced", or LABEL=WEIGHT,...; "" for equal weights'),
    "eval_fraction": field(
        0.1, "share of the training file that is evaluated if there is no eval file, in (0, 1)"
    ),
    "truncation": field(
        "head",
        'part kept of a text over `max_seq_length`: "head", "tail", "head_tail" or "windows"',
    ),
    "max_bad_fraction": field(
        0.0, "largest share of rows with a wrong number of columns or without text, in [0, 1)"
    ),
}


def _check_not_read(data: Mapping[str, Any], names: Iterable[str], reason: str) -> None:
    for name in names:
        if (value := data[name]) != FIELDS[name].default:
            raise InputError(f"data.{name}={value!r}: not read, as {reason}. Leave it out.")


def columns_from_config(config: Config) -> TableColumns:
    """Return the columns to read.

    Raises:
      InputError: a column is missing or named twice, the GLUE task is unknown, or a field is set
        that the others leave without effect.
    """
    data = config.data
    if data["glue"]:
        _check_not_read(data, _SET_BY_GLUE, f"glue={data['glue']} sets the columns")
        task = find_glue_task(data["glue"])
        text, *pair = task.columns
        return TableColumns((text,), tuple(pair), task.label, problem_type=task.problem_type)
    if (problem_type := data["problem_type"]) != "multi_label_classification":
        _check_not_read(data, ("label_separator",), f"problem_type={problem_type} has one label")
    if data["dir"].startswith(TFDS):
        _check_not_read(data, ("columns",), f"dir={data['dir']} has named columns")
    return TableColumns(
        split_column_names(data["text"]),
        split_column_names(data["text_pair"]),
        data["label"],
        data["id"],
        data["problem_type"],
        data["label_separator"],
        data["missing_labels"],
    )


def read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    """Return name and examples of each data set of a split, "train" or "eval".

    MNLI has two eval sets. Without an eval file, a share of the training file is evaluated, which a
    hash of the text selects. `data.eval_set_column` divides a table into eval sets.

    Raises:
      InputError: a file is missing, or does not have the configured columns.
    """
    data = config.data
    if data["eval_sets"] and not data["eval_set_column"]:
        raise InputError(
            f"data.eval_sets={data['eval_sets']!r}: no column divides the eval set. Set "
            "data.eval_set_column=COLUMN."
        )
    sets = _read_sets(config, split)
    if split == "train" or not data["eval_set_column"]:
        return sets
    names = split_column_names(data["eval_sets"])
    return [
        (part_name if len(sets) == 1 else f"{name}.{part_name}", part)
        for name, whole in sets
        for part_name, part in whole.split_by_eval_set(names).items()
    ]


def _read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data = config.data
    if not 0 <= data["max_bad_fraction"] < 1:
        raise InputError(
            f"data.max_bad_fraction={data['max_bad_fraction']}: not in [0, 1). Choose a share."
        )
    if data["glue"] and not data[f"{split}_file"]:
        return _read_glue(config, split)
    if data["dir"].startswith(TFDS):
        tfds_split = data[f"{split}_file"] or TFDS_SPLITS[split]
        return [(split, _read(config, split, data["dir"], tfds_split))]
    if splits_training_file(config):
        return [(split, _split_training_file(config)[split == "eval"])]
    return [(name, _read(config, split, str(path))) for name, path in find_tables(config, split)]


def read_unlabeled(config: Config) -> SequenceClassificationDataset:
    """Return the texts of `distill.unlabeled`; their labels and ids are not read.

    Raises:
      InputError: the file is missing, or does not have the columns of the texts.
    """
    path, data = config.distill.unlabeled, config.data
    rows = read_table(path, data["max_bad_fraction"], split_column_names(data["columns"]))
    columns = dataclasses.replace(columns_from_config(config), id="", label="")
    _check_columns(path, rows, columns)
    return dataset_from_rows(path, rows, columns, False, data["max_bad_fraction"])


def splits_training_file(config: Config) -> bool:
    """Return whether the sets are parts of the training file, as there is no eval file."""
    data = config.data
    has_eval_data = data["eval_file"] or data["glue"] or data["dir"].startswith(TFDS)
    return not has_eval_data and not find_tables(config, "eval")


def _read_glue(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data, task = config.data, find_glue_task(config.data["glue"])
    files = dict(task.dev) if split == "eval" else {"train": "train"}
    sets = []
    for stem, tfds_split in files.items():
        name = stem if len(files) > 1 else split
        if data["dir"].startswith(TFDS):
            sets.append((name, _read(config, split, data["dir"], tfds_split)))
            continue
        directory = require_directory(config)
        path = directory / f"{stem}.tsv"
        if not path.exists():  # data.dir may also be the directory of all tasks
            path = directory / task.folder / f"{stem}.tsv"
        sets.append((name, _read(config, split, str(path))))
    return sets


def _split_training_file(
    config: Config,
) -> tuple[SequenceClassificationDataset, SequenceClassificationDataset]:
    ((_, path),) = find_tables(config, "train")
    fraction = config.data["eval_fraction"]
    if not 0 < fraction < 1:
        raise InputError(f"data.eval_fraction={fraction}: not in (0, 1). Choose a share.")
    return _read(config, "eval", str(path)).train_eval_split(fraction)


def _read(
    config: Config, split: str, source: str, tfds_split: str = ""
) -> SequenceClassificationDataset:
    """Read a file, or a split of a source of TensorFlow Datasets."""
    data = config.data
    eval_set_column = data["eval_set_column"] if split == "eval" else ""
    max_bad_fraction = data["max_bad_fraction"]
    if data["glue"]:
        if tfds_split:
            return read_glue_tfds(data["glue"], source, tfds_split, True, eval_set_column)
        return read_glue(data["glue"], source, True, max_bad_fraction, eval_set_column)
    if tfds_split:
        rows: Sequence[TableRow] = read_tfds_table(source, tfds_split)
    else:
        # A number to predict, and 0 and 1 in columns of their own, may have class names too.
        class_columns = {eval_set_column}
        if data["problem_type"] != "regression":
            class_columns.add(data["label"])
        names = split_column_names(data["columns"])
        rows = read_table(source, max_bad_fraction, names, class_columns=class_columns)
    columns = dataclasses.replace(columns_from_config(config), eval_set_column=eval_set_column)
    name = f"{source} {tfds_split}".strip()
    _check_columns(name, rows, columns)
    # Writers of JSON may omit null. Of the joined columns of a text, each may be empty.
    joined = dict.fromkeys(
        name for names in (columns.text, columns.text_pair) if len(names) > 1 for name in names
    )
    rows = [row._replace(values=joined | row.values) for row in rows]
    return dataset_from_rows(name, rows, columns, True, max_bad_fraction)


def _check_columns(source: str, rows: Sequence[TableRow], columns: TableColumns) -> None:
    """Reject a table without one of the columns, naming the field that sets it.

    A row without a column that other rows have is rejected with its location when it is read.
    """
    known = {name for row in rows for name in row.values}
    labels = columns.label_columns(known) or (columns.label,)
    if (
        columns.label not in {*known, ""}
        and len(labels) == 1
        and known.issuperset(parts := split_column_names(columns.label))
    ):
        raise InputError(
            f"data.label={columns.label!r}: {len(parts)} columns. Set "
            "data.problem_type=multi_label_classification."
        )
    fields = [("text", name) for name in columns.text]
    fields += [("text_pair", name) for name in columns.text_pair]
    fields += [("label", name) for name in labels]
    fields += [(name, getattr(columns, name)) for name in ("id", "eval_set_column")]
    for field_name, column in fields:
        if column and column not in known:
            problem = describe_missing_column(rows, column, f"data.{field_name}")
            raise InputError(f"{source}: {problem}")
