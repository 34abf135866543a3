"""Texts and text pairs with classes, label sets or numbers, read from the rows of a table."""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.table import TableRow, check_bad_rows, check_unique_ids

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The columns of a table that are read, and how.

    Attributes:
      text: columns of the text, joined by spaces.
      text_pair: columns of the second text, joined by spaces; empty for single texts.
      label: column of the label; "" for unlabeled data.
      id: column of the examples' unique ids; "" for none.
      problem_type: one of `PROBLEM_TYPES`.
      label_separator: separator of multiple labels in one text.
      eval_set_column: column that names an example's eval set, such as its language; "" for none.
    """

    text: tuple[str, ...]
    text_pair: tuple[str, ...] = ()
    label: str = ""
    id: str = ""
    problem_type: str = PROBLEM_TYPES[0]
    label_separator: str = ","
    eval_set_column: str = ""

    def __post_init__(self) -> None:
        if self.problem_type not in PROBLEM_TYPES:
            raise InputError(
                f"data.problem_type={self.problem_type!r}: unknown problem type. Choose one of "
                f"{', '.join(PROBLEM_TYPES)}."
            )
        if not self.text:
            raise InputError("data.text='': no text column. Name the column of the text.")
        texts, text_pairs = {*self.text}, {*self.text_pair}
        if shared := (texts & text_pairs) | ({self.label} & (texts | text_pairs)):
            name = min(shared)
            field = "data.label" if name == self.label else "data.text_pair"
            raise InputError(
                f"{field}={name!r}: this column is also read as text. Name another one."
            )


@dataclasses.dataclass(frozen=True)
class SequenceClassificationDataset:
    """A data set of N texts or text pairs.

    Attributes:
      name: name for error messages.
      locations: file and line of each example, for error messages.
      texts: the texts, or the first texts of pairs.
      text_pairs: the second texts; None for single texts.
      values: class name, tuple of label names or number of each example; None if unlabeled.
      ids: unique ids of the examples; None if they have none.
      eval_set_names: name of each example's eval set; None for a single set.
    """

    name: str
    locations: list[str]
    texts: list[str]
    text_pairs: list[str] | None = None
    values: list[Any] | None = None
    ids: list[str] | None = None
    eval_set_names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def all_texts(self) -> list[str]:
        """All texts, then all second texts."""
        return self.texts + (self.text_pairs or [])

    def select(self, indices: Sequence[int]) -> "SequenceClassificationDataset":
        """Return the examples at `indices`."""

        def take(values: list[Any] | None) -> Any:
            return None if values is None else [values[i] for i in indices]

        return SequenceClassificationDataset(
            self.name, *(take(getattr(self, f.name)) for f in dataclasses.fields(self)[1:])
        )

    def split_by_eval_set(
        self, names: Sequence[str] = ()
    ) -> dict[str, "SequenceClassificationDataset"]:
        """Return the examples of each eval set.

        Args:
          names: names of the eval sets to return; empty for all, sorted.

        Raises:
          InputError: an eval set does not exist, or its name cannot be part of a file name.
        """
        indices: dict[str, list[int]] = {}
        for i, name in enumerate(self.eval_set_names or ()):
            indices.setdefault(name, []).append(i)
        for name in indices:
            if "/" in name:
                raise InputError(
                    f'{self.name}: eval set {name!r} gives its name to files. Write it without "/".'
                )
        for name in names:
            if name not in indices:
                raise InputError(
                    f"data.eval_sets={name!r}: not in {self.name}, which has "
                    f"{', '.join(sorted(indices))}. Name some of these."
                )
        return {name: self.select(indices[name]) for name in names or sorted(indices)}

    def train_eval_split(
        self, eval_fraction: float
    ) -> tuple["SequenceClassificationDataset", "SequenceClassificationDataset"]:
        """Return the training examples and the eval split, about `eval_fraction` of all examples.

        The hash of its text decides an example's split. Order and additions do not change it, and
        equal texts are in the same split.

        Raises:
          InputError: a split would be empty.
        """
        splits: tuple[list[int], list[int]] = ([], [])
        for i, text in enumerate(self.texts):
            content = text if self.text_pairs is None else f"{text}\0{self.text_pairs[i]}"
            digest = hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=8)
            splits[int.from_bytes(digest.digest()) < eval_fraction * 2**64].append(i)
        if not all(splits):
            raise InputError(
                f"{self.name}: {len(self)} examples are too few for an eval split of "
                f"{eval_fraction:.0%}. Give an eval file with data.eval_file=FILE."
            )
        return self.select(splits[0]), self.select(splits[1])


def dataset_from_rows(
    name: str,
    rows: Iterable[TableRow],
    columns: TableColumns,
    labeled: bool,
    max_bad_fraction: float | None = None,
) -> SequenceClassificationDataset:
    """Return the examples of a table.

    Args:
      name: name of the data set.
      rows: the rows of the table.
      columns: the columns to read.
      labeled: False to ignore labels.
      max_bad_fraction: maximal fraction of rows without text, which are skipped with a warning.
        None rejects each of them, so that every row has a prediction.

    Raises:
      InputError: a column is missing, too many texts are empty, a label is missing or not a finite
        number, or two examples have the same id.
    """
    kept: list[TableRow] = []
    bad: list[str] = []
    for row in rows:
        texts = (*columns.text, *columns.text_pair)
        if max_bad_fraction is not None and (blank := row.first_blank_column(texts)):
            bad.append(f"{row.location}: column {blank!r} is empty. Write its text, delete the row")
        else:
            kept.append(row)
    check_bad_rows(bad, len(bad) + len(kept), max_bad_fraction or 0.0)
    locations = [row.location for row in kept]
    ids = [row.text((columns.id,)) for row in kept] if columns.id else None
    if ids is not None:
        check_unique_ids(ids, locations, "example")
    set_column = (columns.eval_set_column,)
    return SequenceClassificationDataset(
        name,
        locations,
        [row.text(columns.text) for row in kept],
        [row.text(columns.text_pair) for row in kept] if columns.text_pair else None,
        [_parse_value(row, columns) for row in kept] if labeled else None,
        ids,
        [row.text(set_column) for row in kept] if columns.eval_set_column else None,
    )


def _parse_value(row: TableRow, columns: TableColumns) -> Any:
    """Return the class name, tuple of label names or number of a row."""
    value = row.value(columns.label)
    if columns.problem_type == "multi_label_classification":
        parts = value.split(columns.label_separator) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise InputError(
                f"{row.location}: column {columns.label!r} is {value!r}. Write labels separated "
                f"by {columns.label_separator!r}, or a list."
            )
        names = (_label_name(row, columns, part) for part in parts)
        return tuple(dict.fromkeys(filter(None, names)))
    text = _label_name(row, columns, value)
    if not text:
        raise InputError(
            f"{row.location}: column {columns.label!r} is empty. Write the label or delete the row."
        )
    if columns.problem_type == "single_label_classification":
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _MAX_FLOAT32:
        raise InputError(
            f"{row.location}: column {columns.label!r} is {text!r}, not a finite number. Fix it, "
            "or set data.problem_type=single_label_classification."
        )
    return number


def _label_name(row: TableRow, columns: TableColumns, value: Any) -> str:
    """Return the name of one label; raise InputError for other values than text and numbers."""
    if value is None or isinstance(value, str | int | float):
        return label_text(value)
    fix = "Write the name or number of a label"
    if isinstance(value, list | tuple) and columns.problem_type != "multi_label_classification":
        fix = "Write one label, or set data.problem_type=multi_label_classification"
    raise InputError(f"{row.location}: column {columns.label!r} is {value!r}. {fix}.")


def label_text(value: Any) -> str:
    """Return a label's name: "1" for 1, 1.0 and " 1 ", "" for None and NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def label_names(
    data: SequenceClassificationDataset, *others: SequenceClassificationDataset
) -> tuple[str, ...]:
    """Return the sorted names of all classes or labels; whole numbers are sorted by value.

    Raises:
      InputError: there are fewer than two.
    """
    names: set[str] = set()
    for value in itertools.chain.from_iterable(part.values or () for part in (data, *others)):
        names.update(value if isinstance(value, tuple) else (value,))
    if len(names) < 2:
        problem = f"all examples have label {min(names)!r}" if names else "no example has a label"
        raise InputError(f"{data.name}: {problem}. Give data with two labels or more.")
    all_whole = all(_is_whole(name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all_whole else None))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def make_target(
    data: SequenceClassificationDataset, labels: Sequence[str], problem_type: str
) -> Target:
    """Return the target of a data set: weight 1 for each example, or 0 if it is unlabeled.

    Args:
      data: the examples.
      labels: names of the classes or labels (C), in the order of their ids; unused for regression.
      problem_type: one of `PROBLEM_TYPES`.

    Returns:
      Class ids int32 [N], label sets float32 [N, C] or numbers float32 [N].

    Raises:
      InputError: an example has a label that `labels` does not contain.
    """
    dtype = np.int32 if problem_type == "single_label_classification" else np.float32
    is_multi_label = problem_type == "multi_label_classification"
    values = np.zeros((len(data), len(labels)) if is_multi_label else (len(data),), dtype)
    if data.values is None:
        return Target("example", values, np.zeros(len(data), np.float32))
    label_ids = {name: i for i, name in enumerate(labels)}
    for i, value in enumerate(data.values):
        if problem_type == "regression":
            values[i] = value
            continue
        for name in value if isinstance(value, tuple) else (value,):
            if name not in label_ids:
                some = ", ".join(map(repr, labels[:5])) + (" ..." if len(labels) > 5 else "")
                raise InputError(
                    f"{data.locations[i]}: label {name!r} is not a label of the model ({some}). "
                    "Fix it, or train with this label."
                )
            if is_multi_label:
                values[i, label_ids[name]] = 1
            else:
                values[i] = label_ids[name]
    return Target("example", values, np.ones(len(data), np.float32))


def class_weights(spec: str, labels: Sequence[str], classes: np.ndarray) -> np.ndarray:
    """Return the weight of each class, float32 [C].

    Args:
      spec: "" for 1, "balanced" for N / (C * examples of the class), or "LABEL=WEIGHT,...", where
        labels without a weight get 1.
      labels: names of the classes.
      classes: class ids of the training examples, int32 [N].

    Raises:
      InputError: a name is not a label, or a weight is not a positive number.
    """
    weights = np.ones(len(labels), np.float32)
    if spec == "balanced":
        counts = np.bincount(classes, minlength=len(labels))
        return (len(classes) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)
    for part in filter(None, spec.split(",")):
        name, _, text = part.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if name not in labels or not 0 < weight < math.inf:
            raise InputError(
                f"data.class_weights={part!r}: not LABEL=WEIGHT with a positive weight. Write "
                f"balanced, or weights of {', '.join(labels[:8])}."
            )
        weights[labels.index(name)] = weight
    return weights


def split_column_names(text: str) -> tuple[str, ...]:
    """Return the column names in "a+b"."""
    return tuple(filter(None, text.split("+")))
