"""Texts and text pairs with classes, label sets or numbers, read from the rows of a table."""

import dataclasses
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.labels import read_labels
from data_pipelines.finetuning.table import (
    TableRow,
    accepted_rows,
    check_bad_rows,
    check_unique_ids,
)

_log = logging.getLogger("data_pipelines")

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The columns of a table that are read, and how.

    Attributes:
      text: columns of the text, joined by spaces.
      text_pair: columns of the second text, joined by spaces; empty for single texts.
      label: column of the label; "" for unlabeled data. Multiple labels may have a column of 0 and
        1 each, joined by "+".
      id: column of the examples' unique ids; "" for none.
      problem_type: one of `PROBLEM_TYPES`.
      label_separator: separator of multiple labels in one text; "" to choose it by content.
      missing_labels: "auto", or marks of missing labels, joined by commas.
      eval_set_column: column that names an example's eval set, such as its language; "" for none.
    """

    text: tuple[str, ...]
    text_pair: tuple[str, ...] = ()
    label: str = ""
    id: str = ""
    problem_type: str = PROBLEM_TYPES[0]
    label_separator: str = ""
    missing_labels: str = "auto"
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
        labels = {self.label, *split_column_names(self.label)}
        if shared := (texts & text_pairs) | (labels & (texts | text_pairs)):
            name = min(shared)
            field = "data.label" if name in labels else "data.text_pair"
            raise InputError(
                f"{field}={name!r}: this column is also read as text. Name another one."
            )

    def label_columns(self, known: Collection[str]) -> tuple[str, ...]:
        """Return the columns that stand for a label each; none if one of `known` has all labels."""
        names = split_column_names(self.label)
        is_multi_label = self.problem_type == "multi_label_classification"
        return names if is_multi_label and len(names) > 1 and self.label not in known else ()


@dataclasses.dataclass(frozen=True)
class SequenceClassificationDataset:
    """A data set of N texts or text pairs.

    Attributes:
      name: name for error messages.
      locations: file and line of each example, for error messages.
      texts: the texts, or the first texts of pairs.
      text_pairs: the second texts, None for a single text; None if all texts are single.
      values: class name, tuple of label names or number of each example; None if unlabeled.
      ids: unique ids of the examples; None if they have none.
      eval_set_names: name of each example's eval set; None for a single set.
      label_columns: the labels, if each has a column of its own.
      missing_labels: marks in the label column whose examples were left out.
    """

    name: str
    locations: list[str]
    texts: list[str]
    text_pairs: Sequence[str | None] | None = None
    values: list[Any] | None = None
    ids: list[str] | None = None
    eval_set_names: list[str] | None = None
    label_columns: tuple[str, ...] = ()
    missing_labels: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def all_texts(self) -> list[str]:
        """All texts, then all second texts."""
        return self.texts + [text for text in self.text_pairs or () if text is not None]

    def select(self, indices: Sequence[int]) -> "SequenceClassificationDataset":
        """Return the examples at `indices`; without ids these become their ids."""
        parts: dict[str, Any] = {
            field.name: [value[i] for i in indices]
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), list)
        }
        parts.setdefault("ids", [str(i) for i in indices])
        return dataclasses.replace(self, **parts)

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
        equal texts are in the same split. If few texts are repeated and none would be evaluated,
        the one with the lowest hash is.

        Raises:
          InputError: a split would be empty.
        """
        hashes = []
        for i, text in enumerate(self.texts):
            content = text if self.text_pairs is None else f"{text}\0{self.text_pairs[i]}"
            digest = hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=8)
            hashes.append(int.from_bytes(digest.digest()))
        limit = eval_fraction * 2**64
        lowest = min(hashes, default=0)
        if lowest >= limit and len({*hashes}) < len(self) and eval_fraction * len(self) >= 1:
            limit = lowest + 1
        splits: tuple[list[int], list[int]] = ([], [])
        for i, value in enumerate(hashes):
            splits[value < limit].append(i)
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

    Examples without a label are left out with a warning, see `missing_labels.py`. So are those
    that annotators of Prodigy rejected, unless their answer is the label. Ids are row numbers, also
    behind rows that were left out.

    Args:
      name: name of the data set.
      rows: the rows of the table.
      columns: the columns to read.
      labeled: False to ignore labels.
      max_bad_fraction: maximal fraction of rows without text, which are skipped with a warning.
        None rejects each of them, so that every row has a prediction.

    Raises:
      InputError: a column is missing, too many texts are empty, no example has a label, a label is
        not a finite number, or two examples have the same id.
    """
    rows = list(rows)
    optional = {columns.label}
    for names in (columns.text, columns.text_pair):
        optional.update(names if len(names) > 1 else ())
    optional &= {name for row in rows for name in row.values}
    for row in rows:  # a row of JSON may lack a field without a value
        row.values.update(dict.fromkeys(optional - row.values.keys()))
    kept: list[TableRow] = []
    bad: list[str] = []
    skips_rejected = labeled and "answer" not in split_column_names(columns.label)
    for row in accepted_rows(name, rows) if skips_rejected else rows:
        blank = _blank_text(row, columns) if max_bad_fraction is not None else ""
        if blank:
            bad.append(f"{row.location}: column {blank!r} is empty. Write its text, delete the row")
        else:
            kept.append(row)
    check_bad_rows(bad, len(bad) + len(kept), max_bad_fraction or 0.0)
    ids = [row.text((columns.id,)) for row in kept] if columns.id else None
    if ids is None:
        numbers = {id(row): i if row.number is None else row.number for i, row in enumerate(rows)}
        kept_numbers = [numbers[id(row)] for row in kept]
        if kept_numbers != [*range(len(kept))]:
            ids = [str(number) for number in kept_numbers]
    locations = [row.location for row in kept]
    if ids is not None:
        check_unique_ids(ids, locations, "example")
    set_column = (columns.eval_set_column,)
    data = SequenceClassificationDataset(
        name,
        locations,
        [row.text(columns.text) for row in kept],
        [row.text(columns.text_pair) for row in kept] if columns.text_pair else None,
        None,
        ids,
        [row.text(set_column) for row in kept] if columns.eval_set_column else None,
    )
    return _add_labels(data, kept, columns) if labeled else data


def _add_labels(
    data: SequenceClassificationDataset, rows: Sequence[TableRow], columns: TableColumns
) -> SequenceClassificationDataset:
    """Return the examples that have a label, with it."""
    label_columns = columns.label_columns({name for row in rows for name in row.values})
    names = label_columns or (columns.label,)
    values, marks = read_labels(
        data.name,
        data.locations,
        names,
        [[row.value(column) for column in names] for row in rows],
        columns.problem_type,
        columns.label_separator,
        columns.missing_labels,
    )
    data = dataclasses.replace(
        data, values=values, label_columns=label_columns, missing_labels=marks
    )
    labeled_rows = [i for i, value in enumerate(values) if value is not None]
    return data if len(labeled_rows) == len(rows) else data.select(labeled_rows)


def _blank_text(row: TableRow, columns: TableColumns) -> str:
    """Return the first column of a text without content; "" if both texts have some."""
    for names in (columns.text, columns.text_pair):
        if names and all(row.first_blank_column((name,)) for name in names):
            return names[0]
    return ""


def label_names(
    data: SequenceClassificationDataset, *others: SequenceClassificationDataset
) -> tuple[str, ...]:
    """Return the sorted names of all classes or labels; whole numbers are sorted by value.

    Labels with a column of their own are in the order of the columns.

    Raises:
      InputError: there are fewer than two.
    """
    if data.label_columns:
        return data.label_columns
    names: set[str] = set()
    for value in itertools.chain.from_iterable(part.values or () for part in (data, *others)):
        names.update(value if isinstance(value, tuple) else (value,))
    for problem, fold in (("upper and lower case", str.casefold), ("'.0'", _without_fraction)):
        counts = Counter(map(fold, names))
        if twins := sorted(name for name in names if counts[fold(name)] > 1):
            _log.warning("%s: labels differ in %s only: %s.", data.name, problem, ", ".join(twins))
    if len(names) < 2:
        problem = f"all examples have label {min(names)!r}" if names else "no example has a label"
        raise InputError(f"{data.name}: {problem}. Give data with two labels or more.")
    all_whole = all(_is_whole(name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all_whole else None))


def _without_fraction(name: str) -> str:
    return name.removesuffix(".0")


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def split_column_names(text: str) -> tuple[str, ...]:
    """Return the column names in "a+b"."""
    return tuple(filter(None, text.split("+")))
