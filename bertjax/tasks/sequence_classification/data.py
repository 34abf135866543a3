"""Where a task's sentences lie: the files of GLUE, or tables of one's own."""

import dataclasses
from collections.abc import Sequence

from etils import epath

from bertjax.config.config import Config
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, TFDS_SPLITS, find_tables
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.finetuning.glue import find_glue_task, read_glue, read_glue_tfds
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    from_rows,
    split_column_names,
)
from data_pipelines.finetuning.table import TableRow, read_table, read_tfds_table
from data_pipelines.text.sources import TFDS

FIELDS = COMMON_DATA_FIELDS | {
    "glue": field("", 'a task of GLUE, whose columns and labels are known; "" for what follows'),
    "text": field("text", 'column of the text, or several joined by "+"'),
    "text_pair": field("", 'column of a second text, or several; "" for none'),
    "label": field("label", "column of what is to be said"),
    "id": field("", 'a column that names the examples; "" for their numbers'),
    "problem_type": field(
        "single_label_classification",
        "`single_label_classification`, `multi_label_classification` or `regression`",
    ),
    "label_separator": field(",", "between the labels of a text"),
    "eval_set_column": field(
        "", 'column by which a table falls into sets to evaluate on, such as "language"; "" for one'
    ),
    "eval_sets": field(
        "", 'sets of `data.eval_set_column` that are read, joined by "+"; "" for all'
    ),
    "class_weights": field("", '"balanced", or LABEL=WEIGHT,...; "" for the same of all'),
    "eval_fraction": field(
        0.1, "of the training file, held out where there is no file to evaluate on"
    ),
    "truncation": field(
        "head",
        'what is kept of a text over `max_seq_length`: "head", "tail", "head_tail" or "windows"',
    ),
    "max_bad_fraction": field(
        0.0, "share of the rows that may have too few or too many columns, or no text"
    ),
}


def columns_from_config(config: Config) -> TableColumns:
    """What of a table is read.

    Raises:
      InputError: columns are missing or said twice, or there is no such task of GLUE.
    """
    data = config.data
    if data["glue"]:
        task = find_glue_task(data["glue"])
        text, *pair = task.columns
        return TableColumns((text,), tuple(pair), task.label, problem_type=task.problem_type)
    return TableColumns(
        split_column_names(data["text"]),
        split_column_names(data["text_pair"]),
        data["label"],
        data["id"],
        data["problem_type"],
        data["label_separator"],
    )


def read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    """Name and sentences of each data set of a split, "train" or "eval"; MNLI has two of the latter.

    Without a file to evaluate on, a share of the training file is held out of it, by its text. Of
    tables that `data.eval_set_column` divides, each part is a set to evaluate on.

    Raises:
      InputError: a file is missing, or not what the configuration says.
    """
    data = config.data
    if data["eval_sets"] and not data["eval_set_column"]:
        raise InputError(
            f"data.eval_sets={data['eval_sets']!r} chooses among sets that nothing names: set "
            "data.eval_set_column=COLUMN."
        )
    found = _read_sets(config, split)
    if split == "train" or not data["eval_set_column"]:
        return found
    return [
        (part if len(found) == 1 else f"{name}.{part}", own)
        for name, whole in found
        for part, own in whole.split_by_eval_set(split_column_names(data["eval_sets"])).items()
    ]


def _read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data = config.data
    if not 0 <= data["max_bad_fraction"] < 1:
        raise InputError(
            f"data.max_bad_fraction={data['max_bad_fraction']} must be from 0 to below 1."
        )
    if data["glue"] and not data[f"{split}_file"]:
        return _read_glue(config, split)
    if data["dir"].startswith(TFDS):
        part = data[f"{split}_file"] or TFDS_SPLITS[split]
        return [(split, _read(config, split, data["dir"], part))]
    if splits_training_file(config):
        return [(split, _split_training_file(config)[split == "eval"])]
    return [(name, _read(config, split, str(path))) for name, path in find_tables(config, split)]


def splits_training_file(config: Config) -> bool:
    """Whether the sets are parts of the training file, for want of a file to evaluate on."""
    data = config.data
    named = data["eval_file"] or data["glue"] or data["dir"].startswith(TFDS)
    return not named and not find_tables(config, "eval")


def _read_glue(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data, task = config.data, find_glue_task(config.data["glue"])
    files = dict(task.dev) if split == "eval" else {"train": "train"}
    found = []
    for stem, part in files.items():
        name = stem if len(files) > 1 else split
        if data["dir"].startswith(TFDS):
            found.append((name, _read(config, split, data["dir"], part)))
            continue
        if not data["dir"]:
            raise InputError("data.dir is empty: name the directory that holds GLUE's files.")
        path = epath.Path(data["dir"]) / f"{stem}.tsv"
        # The directory of all tasks will do as well.
        if not path.exists():
            path = epath.Path(data["dir"]) / task.folder / f"{stem}.tsv"
        found.append((name, _read(config, split, str(path))))
    return found


def _split_training_file(
    config: Config,
) -> tuple[SequenceClassificationDataset, SequenceClassificationDataset]:
    ((_, path),) = find_tables(config, "train")
    share = config.data["eval_fraction"]
    if not 0 < share < 1:
        raise InputError(f"data.eval_fraction={share} must lie between 0 and 1.")
    return _read(config, "eval", str(path)).split_by_text(share)


def _read(config: Config, split: str, source: str, part: str = "") -> SequenceClassificationDataset:
    """A file, or a part of a source of TensorFlow Datasets."""
    data = config.data
    eval_set_column = data["eval_set_column"] if split == "eval" else ""
    if data["glue"]:
        if part:
            return read_glue_tfds(data["glue"], source, part, True, eval_set_column)
        return read_glue(data["glue"], source, True, data["max_bad_fraction"], eval_set_column)
    rows = read_tfds_table(source, part) if part else read_table(source, data["max_bad_fraction"])
    columns = dataclasses.replace(columns_from_config(config), eval_set_column=eval_set_column)
    name = f"{source} {part}".strip()
    _check_columns(name, rows, columns)
    return from_rows(name, rows, columns, True, data["max_bad_fraction"])


def _check_columns(source: str, rows: Sequence[TableRow], columns: TableColumns) -> None:
    """Refuses a table that has none of a column, naming the field that says which one it is.

    Rows that lack one which others have are refused by their place, when they are read.
    """
    wanted = [("text", name) for name in columns.text] + [
        ("text_pair", name) for name in columns.text_pair
    ]
    wanted += [(one, getattr(columns, one)) for one in ("label", "id", "eval_set_column")]
    for field_name, name in wanted:
        if name and not any(name in row.values for row in rows):
            known = dict.fromkeys(repr(other) for row in rows for other in row.values)
            raise InputError(
                f"{source} has no column {name!r}, but {', '.join(known) or 'none'}: name one with "
                f"data.{field_name}=COLUMN."
            )
