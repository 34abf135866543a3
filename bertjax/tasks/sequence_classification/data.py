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
    "pair": field("", 'column of a second text, or several; "" for none'),
    "label": field("label", "column of what is to be said"),
    "id": field("", 'a column that names the examples; "" for their numbers'),
    "target": field(
        "class", '"class" is one of several, "labels" any number of several, or a "number"'
    ),
    "label_separator": field(",", "between the labels of a text"),
    "by": field(
        "", 'column by which a table falls into sets to evaluate on, such as "language"; "" for one'
    ),
    "only": field("", 'sets of `data.by` that are read, joined by "+"; "" for all'),
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
        return TableColumns((text,), tuple(pair), task.label, target=task.target)
    return TableColumns(
        split_column_names(data["text"]),
        split_column_names(data["pair"]),
        data["label"],
        data["id"],
        data["target"],
        data["label_separator"],
    )


def read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    """Name and sentences of each data set of a split, "train" or "dev"; MNLI has two of the latter.

    Without a file to evaluate on, a share of the training file is held out of it, by its text. Of
    tables that `data.by` divides, each part is a set to evaluate on.

    Raises:
      InputError: a file is missing, or not what the configuration says.
    """
    data = config.data
    if data["only"] and not data["by"]:
        raise InputError(
            f"data.only={data['only']!r} chooses among sets that nothing names: set data.by=COLUMN."
        )
    found = _read_sets(config, split)
    if split == "train" or not data["by"]:
        return found
    return [
        (part if len(found) == 1 else f"{name}.{part}", own)
        for name, whole in found
        for part, own in whole.split_by_eval_set(split_column_names(data["only"])).items()
    ]


def _read_sets(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data = config.data
    if not 0 <= data["max_bad_fraction"] < 1:
        raise InputError(
            f"data.max_bad_fraction={data['max_bad_fraction']} must be from 0 to below 1."
        )
    if data["glue"] and not data[split]:
        return _read_glue(config, split)
    if data["dir"].startswith(TFDS):
        part = data[split] or TFDS_SPLITS[split]
        return [(split, _read(config, split, data["dir"], part))]
    if splits_training_file(config):
        return [(split, _split_training_file(config)[split == "dev"])]
    return [(name, _read(config, split, str(path))) for name, path in find_tables(config, split)]


def splits_training_file(config: Config) -> bool:
    """Whether the sets are parts of the training file, for want of a file to evaluate on."""
    data = config.data
    named = data["dev"] or data["glue"] or data["dir"].startswith(TFDS)
    return not named and not find_tables(config, "dev")


def _read_glue(config: Config, split: str) -> list[tuple[str, SequenceClassificationDataset]]:
    data, task = config.data, find_glue_task(config.data["glue"])
    files = dict(task.dev) if split == "dev" else {"train": "train"}
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
    return _read(config, "dev", str(path)).split_by_text(share)


def _read(config: Config, split: str, source: str, part: str = "") -> SequenceClassificationDataset:
    """A file, or a part of a source of TensorFlow Datasets."""
    data, by = config.data, config.data["by"] if split == "dev" else ""
    if data["glue"]:
        if part:
            return read_glue_tfds(data["glue"], source, part, True, by)
        return read_glue(data["glue"], source, True, data["max_bad_fraction"], by)
    rows = read_tfds_table(source, part) if part else read_table(source, data["max_bad_fraction"])
    columns = dataclasses.replace(columns_from_config(config), by=by)
    name = f"{source} {part}".strip()
    _check_columns(name, rows, columns)
    return from_rows(name, rows, columns, True, data["max_bad_fraction"])


def _check_columns(source: str, rows: Sequence[TableRow], columns: TableColumns) -> None:
    """Refuses a table that has none of a column, naming the field that says which one it is.

    Rows that lack one which others have are refused by their place, when they are read.
    """
    wanted = [("text", name) for name in columns.text] + [("pair", name) for name in columns.pair]
    wanted += [(one, getattr(columns, one)) for one in ("label", "id", "by")]
    for field_name, name in wanted:
        if name and not any(name in row.values for row in rows):
            known = dict.fromkeys(repr(other) for row in rows for other in row.values)
            raise InputError(
                f"{source} has no column {name!r}, but {', '.join(known) or 'none'}: name one with "
                f"data.{field_name}=COLUMN."
            )
