"""SequenceClassificationDataset, and pairs of them, with what is to be said of each, from the rows of a table."""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.table import TableRow, check_bad_rows

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """What of a table is read.

    Attributes:
      text, text_pair: columns of the first and the second text, joined by spaces where several.
      label: of what is to be said; "" where nothing is.
      id: of a name of its own for each example; "" for none.
      eval_set_column: of the set that each example belongs to, such as its language; "" for none.
      problem_type: one of `PROBLEM_TYPES`.
      separator: between labels where they are text.
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
                f"data.problem_type={self.problem_type!r} is unknown: choose one of {', '.join(PROBLEM_TYPES)}."
            )
        if not self.text:
            raise InputError("data.text is empty: name the column of the text.")
        twice = ({*self.text} & {*self.text_pair}) | ({self.label} & {*self.text, *self.text_pair})
        if twice:
            name = min(twice)
            role = "the label" if name == self.label else "the pair"
            raise InputError(f"column {name!r} is the text and {role}: name different ones.")


@dataclasses.dataclass(frozen=True)
class SequenceClassificationDataset:
    """A data set of N examples.

    Attributes:
      name: for messages.
      places: where each stands, for messages.
      texts: the text of each, or the first of two.
      pairs: the second ones; None where there are none.
      values: of each its class, its labels (a tuple) or its number; None where nothing is known.
      ids: their names; None where they have none.
      sets: what each belongs to, such as its language; None where they are one set.
    """

    name: str
    locations: list[str]
    texts: list[str]
    pairs: list[str] | None = None
    values: list[Any] | None = None
    ids: list[str] | None = None
    eval_set_names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def all_texts(self) -> list[str]:
        """The texts, and the second ones after them."""
        return self.texts + (self.pairs or [])

    def part(self, indices: Sequence[int]) -> "SequenceClassificationDataset":
        """Some of the examples, by their numbers."""

        def take(values: list[Any] | None) -> Any:
            return None if values is None else [values[i] for i in indices]

        return SequenceClassificationDataset(
            self.name, *(take(getattr(self, f.name)) for f in dataclasses.fields(self)[1:])
        )

    def split_by_eval_set(
        self, only: Sequence[str] = ()
    ) -> dict[str, "SequenceClassificationDataset"]:
        """The examples of each set, in the order of their names.

        Args:
          only: names of the sets that are wanted, in their order; all where it is empty.
        Raises:
          InputError: there is no such set, or one whose name no file can have.
        """
        numbers: dict[str, list[int]] = {}
        for i, name in enumerate(self.eval_set_names or ()):
            numbers.setdefault(name, []).append(i)
        if odd := [name for name in numbers if "/" in name]:
            raise InputError(
                f"{self.name} has a set {odd[0]!r}, and files are called by sets' names: write "
                'it without "/".'
            )
        for name in only:
            if name not in numbers:
                raise InputError(
                    f"{self.name} has nothing of {name!r}, which data.eval_sets names, but "
                    f"{', '.join(sorted(numbers))}: name some of these."
                )
        return {name: self.part(numbers[name]) for name in only or sorted(numbers)}

    def split_by_text(
        self, share: float
    ) -> tuple["SequenceClassificationDataset", "SequenceClassificationDataset"]:
        """The examples in two parts, the second of about `share` of them.

        The part follows from an example's text alone, so that no order or later addition moves one
        to the other side, and none is on both.

        Raises:
          InputError: a part would be empty.
        """
        sides: tuple[list[int], list[int]] = ([], [])
        for i, text in enumerate(self.texts):
            content = text if self.pairs is None else f"{text}\0{self.pairs[i]}"
            digest = hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=8)
            sides[int.from_bytes(digest.digest()) < share * 2**64].append(i)
        if not all(sides):
            raise InputError(
                f"{self.name} has too few examples ({len(self)}) to hold out {share:.0%} of them: "
                "give a dev file with data.eval_file=FILE."
            )
        return self.part(sides[0]), self.part(sides[1])


def from_rows(
    name: str,
    rows: Iterable[TableRow],
    columns: TableColumns,
    labeled: bool,
    max_bad_fraction: float | None = None,
) -> SequenceClassificationDataset:
    """The examples of the rows of a table.

    Args:
      max_bad_fraction: share of the rows that may be without text, and are left out; None where each row
        needs an answer.
    Raises:
      InputError: a column is missing, more texts are empty, there is no label or not a finite
        number where one should be, or an id comes twice.
    """
    found = SequenceClassificationDataset(
        name,
        [],
        [],
        [] if columns.text_pair else None,
        [] if labeled else None,
        [] if columns.id else None,
        [] if columns.eval_set_column else None,
    )
    seen: dict[str, str] = {}
    bad: list[str] = []
    for row in rows:
        if max_bad_fraction is not None and (
            column := row.first_blank_column((*columns.text, *columns.text_pair))
        ):
            bad.append(
                f"{row.place}: column {column!r} is empty: leave the row out, or write its text"
            )
            continue
        found.locations.append(row.place)
        found.texts.append(row.text(columns.text))
        if found.pairs is not None:
            found.pairs.append(row.text(columns.text_pair))
        if found.values is not None:
            found.values.append(_value(row, columns))
        if found.ids is not None:
            own = row.text((columns.id,))
            if own in seen:
                raise InputError(f"{row.place}: id {own!r} is that of {seen[own]}: name it apart.")
            seen[own] = row.place
            found.ids.append(own)
        if found.eval_set_names is not None:
            found.eval_set_names.append(row.text((columns.eval_set_column,)))
    if max_bad_fraction is not None:
        check_bad_rows(bad, len(bad) + len(found), max_bad_fraction)
    return found


def _value(row: TableRow, columns: TableColumns) -> Any:
    value = row.value(columns.label)
    if columns.problem_type == "multi_label_classification":
        parts = value.split(columns.label_separator) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise InputError(
                f"{row.place}: column {columns.label!r} is {value!r}: write labels with "
                f"{columns.label_separator!r} between them, or a list."
            )
        names = (_name(row, columns, part) for part in parts)
        return tuple(dict.fromkeys(filter(None, names)))
    text = _name(row, columns, value)
    if not text:
        raise InputError(
            f"{row.place}: column {columns.label!r} is empty: leave the row out, or write its "
            "label."
        )
    if columns.problem_type == "single_label_classification":
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _MAX_FLOAT32:
        raise InputError(
            f"{row.place}: column {columns.label!r} is {text!r}, which is no finite number: mend "
            "it, or set problem_type=single_label_classification."
        )
    return number


def _name(row: TableRow, columns: TableColumns, value: Any) -> str:
    """The text of one label; several, or what is neither text nor number, are none."""
    if value is None or isinstance(value, str | int | float):
        return label_text(value)
    several = (
        isinstance(value, list | tuple) and columns.problem_type != "multi_label_classification"
    )
    fix = (
        "write one label, or set problem_type=multi_label_classification"
        if several
        else "write its name or its number"
    )
    raise InputError(f"{row.place}: column {columns.label!r} is {value!r}: {fix}.")


def label_text(value: Any) -> str:
    """The name of a label as it is compared: "1" for 1, 1.0 and " 1 "; "" for none, or NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def label_names(
    data: SequenceClassificationDataset, *others: SequenceClassificationDataset
) -> tuple[str, ...]:
    """The names of all classes or labels of data sets, in an order that their rows do not decide.

    By size where all are whole numbers, else by their text.

    Raises:
      InputError: there are not two.
    """
    found: set[str] = set()
    for value in itertools.chain.from_iterable(each.values or () for each in (data, *others)):
        found.update(value if isinstance(value, tuple) else (value,))
    if len(found) < 2:
        only = f"all have {min(found)!r}" if found else "there is no label at all"
        raise InputError(f"{data.name} has nothing to tell apart ({only}): give two labels.")
    whole = all(_is_whole(name) for name in found)
    return tuple(sorted(found, key=(lambda name: (int(name), name)) if whole else None))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def make_target(
    data: SequenceClassificationDataset, labels: Sequence[str], problem_type: str
) -> Target:
    """What a model is to say of each example, of weight 1.

    Args:
      labels: the names of classes; empty for numbers.
    Raises:
      InputError: an example has a label that is not among them.
    """
    dtype = np.int32 if problem_type == "single_label_classification" else np.float32
    size = (
        (len(data), len(labels)) if problem_type == "multi_label_classification" else (len(data),)
    )
    values = np.zeros(size, dtype)
    if data.values is None:
        return Target("example", values, np.zeros(len(data), np.float32))
    numbers = {name: i for i, name in enumerate(labels)}
    for i, value in enumerate(data.values):
        if problem_type == "regression":
            values[i] = value
            continue
        for name in value if isinstance(value, tuple) else (value,):
            if name not in numbers:
                some = ", ".join(map(repr, labels[:5])) + (" ..." if len(labels) > 5 else "")
                raise InputError(
                    f"{data.locations[i]}: label {name!r} is none that was trained ({some}): mend "
                    "it, or train with it."
                )
            if problem_type == "multi_label_classification":
                values[i, numbers[name]] = 1
            else:
                values[i] = numbers[name]
    return Target("example", values, np.ones(len(data), np.float32))


def class_weights(spec: str, labels: Sequence[str], classes: np.ndarray) -> np.ndarray:
    """The weight of each class, float32 [C].

    Args:
      spec: "" for 1, "balanced" for N / (C * examples of the class), or "label=weight,..." of
        which those left out are 1.
      classes: int32 [N], of the training examples.
    Raises:
      InputError: a name is no label, or a weight no positive number.
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
                f"data.class_weights={part!r} must be LABEL=WEIGHT, of {', '.join(labels[:8])}, or "
                "balanced."
            )
        weights[labels.index(name)] = weight
    return weights


def split_column_names(text: str) -> tuple[str, ...]:
    """The names in "a+b"."""
    return tuple(filter(None, text.split("+")))
