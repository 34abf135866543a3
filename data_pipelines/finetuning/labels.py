"""Labels in the cells of a table: names, lists of names, numbers, and columns of 0 and 1."""

import ast
import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.missing_labels import (
    MISSING_MARKS,
    find_missing_labels,
    log_missing_labels,
)

_SEPARATORS = (",", "|", ";")  # of the labels in a cell
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MARKS = MISSING_MARKS.split(",")
_ZERO_ONE = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_NUMPY_STRINGS = re.compile(r"""\[\s*(?:(?:'[^']*'|"[^"]*")\s+)+(?:'[^']*'|"[^"]*")\s*\]""")
_NUMPY_NUMBERS = re.compile(r"\[\s*-?\d+\.?(?:\s+-?\d+\.?)*\s*\]")
_log = logging.getLogger("data_pipelines")


def label_text(value: Any) -> str:
    """Return a label's name: "1" for 1, 1.0 and " 1 ", "" for None and NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def read_labels(
    name: str,
    locations: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    problem_type: str,
    separator: str = "",
    missing_labels: str = "auto",
) -> tuple[list[Any], frozenset[str]]:
    """Read the labels of a table; log how many are missing.

    Args:
      name: name of the file.
      locations: location of each row.
      columns: the column of the labels, or a column of 0 and 1 for each of several labels.
      rows: values of the columns in each row.
      problem_type: single_label_classification, multi_label_classification or regression.
      separator: separator of several labels in a text; "" to choose it by content.
      missing_labels: see `find_missing_labels`.

    Returns:
      Class name, tuple of label names or number of each row, None for a missing one; and the names
      that mark missing labels.

    Raises:
      InputError: a label has another type, or no row has one.
    """
    sets: list[tuple[str, ...] | None]
    marks = set[str]()
    is_regression = problem_type == "regression"
    if len(columns) > 1:
        pairs = zip(locations, rows, strict=True)
        sets = [_read_indicators(location, columns, values) for location, values in pairs]
    else:
        cells = [value for (value,) in rows]
        if problem_type == "multi_label_classification":
            sets = _read_label_sets(name, locations, columns[0], cells, separator)
        else:
            sets = _read_label_names(locations, columns[0], cells)
        counts = Counter(itertools.chain.from_iterable(names or () for names in sets))
        if problem_type == "single_label_classification":
            _warn_of_joined_labels(name, counts)
        marks = find_missing_labels(name, counts, missing_labels, is_regression)
        sets = [
            None if names and len(names) == 1 and names[0] in marks else names for names in sets
        ]
    missing = [i for i, names in enumerate(sets) if names is None]
    first_labels = [
        next((text for text in map(label_text, rows[i]) if text not in ("0", "1")), "")
        for i in missing
    ]
    if missing and len(missing) == len(rows):
        problem = f"is {first_labels[0]!r}, no label" if first_labels[0] else "is empty"
        raise InputError(
            f"{locations[0]}: column {columns[0]!r} {problem}, as in all rows. Give labels, or "
            "predict without them."
        )
    if missing:
        log_missing_labels(name, [locations[i] for i in missing], first_labels, len(rows))
    if problem_type == "multi_label_classification":
        return list(sets), frozenset(marks)
    values: list[Any] = [None if names is None else names[0] for names in sets]
    if is_regression:
        numbered = zip(locations, values, strict=True)
        values = [text and _number(location, columns[0], text) for location, text in numbered]
    return values, frozenset(marks)


def _warn_of_joined_labels(name: str, counts: Counter[str]) -> None:
    """Warn of labels that consist of others, or of fewer parts than there are labels."""
    for separator in (*_SEPARATORS, " "):
        split = {
            label: {part.strip() for part in label.split(separator)}
            for label in counts
            if separator in label
        }
        parts = set[str]().union(*split.values())
        known = (label for label in split if split[label] <= counts.keys())
        joined = next(known, next(iter(split)) if len(parts) < len(split) else None)
        if joined:
            _log.warning(
                "%s: label %r consists of others. If a text may have several, set "
                "data.problem_type=multi_label_classification and data.label_separator='%s'.",
                name,
                joined,
                separator,
            )
            return


def _number(location: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _MAX_FLOAT32:
        raise InputError(
            f"{location}: column {column!r} is {text!r}, not a finite number. Fix it, or set "
            "data.problem_type=single_label_classification."
        )
    return number


def parse_list(text: str) -> list[Any] | None:
    """Return the list in a cell as JSON, Python or NumPy write it; None for other texts.

    Label Studio's {"choices": [...]} is such a list.
    """
    text = text.strip()
    if text in ("set()", "frozenset()"):
        return []
    if text.startswith("frozenset("):
        text = text.removeprefix("frozenset(").removesuffix(")")
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return None
    if _NUMPY_STRINGS.fullmatch(text):  # Python would join strings without a comma between
        return [first or second for first, second in re.findall(r"""'([^']*)'|"([^"]*)\"""", text)]
    if _NUMPY_NUMBERS.fullmatch(text):
        return [float(number) for number in text[1:-1].split()]
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict) and [*value] == ["choices"]:
            value = value["choices"]
        if isinstance(value, set):
            return sorted(value, key=str)
        return list(value) if isinstance(value, list | tuple) else None
    return None


def _choose_separator(name: str, cells: Sequence[str]) -> str:
    """Return the separator of the labels in the cells of a column, the only one that they have."""
    examples = {
        separator: next((cell for cell in cells if separator in cell), None)
        for separator in _SEPARATORS
    }
    found = [separator for separator, example in examples.items() if example is not None]
    if len(found) > 1:
        raise InputError(
            f"{name}: labels with {found[0]!r}, such as {examples[found[0]]!r}, and with "
            f"{found[1]!r}, such as {examples[found[1]]!r}. Choose the separator with "
            f"data.label_separator='{found[0]}'."
        )
    if found and found != [","]:
        _log.info("%s: labels are separated by %r, such as %r.", name, found[0], examples[found[0]])
    return found[0] if found else ","


def _read_label_sets(
    name: str, locations: Sequence[str], column: str, cells: Sequence[Any], separator: str
) -> list[tuple[str, ...] | None]:
    """Return the label names in each cell of a column; None for a cell without a value."""
    parsed = [parse_list(cell) if isinstance(cell, str) else cell for cell in cells]
    texts = [
        _strip_brackets(location, column, cell)
        for location, cell, names in zip(locations, cells, parsed, strict=True)
        if isinstance(cell, str) and names is None
    ]
    separator = separator or _choose_separator(name, texts)
    remaining = iter(texts)
    sets: list[tuple[str, ...] | None] = []
    for location, cell, names in zip(locations, cells, parsed, strict=True):
        if names is None and isinstance(cell, str):
            names = next(remaining).split(separator)
        if names is None or names != names:  # NaN
            sets.append(None)
            continue
        if not isinstance(names, list | tuple):
            raise InputError(
                f"{location}: column {column!r} is {cell!r}. Write labels separated by "
                f"{separator!r}, or a list."
            )
        labels = (_label_name(location, column, label, True) for label in names)
        sets.append(tuple(dict.fromkeys(filter(None, labels))))
    _reject_vectors(name, column, [names for names in parsed if isinstance(names, list)])
    if len(sets) > 1 and all(len(names or ()) < 2 for names in sets):
        _log.warning(
            "%s: no text has more than one label. If %.60r is several, set data.label_separator.",
            name,
            max(map(str, cells), key=len),
        )
    return sets


def _strip_brackets(location: str, column: str, cell: str) -> str:
    """Return the text of a cell that is not a list, without brackets around bare names."""
    cell = cell.strip()
    if cell[:1] + cell[-1:] not in ("[]", "{}"):
        return cell
    if cell[0] == "{" or re.search("['\"]", cell):
        raise InputError(
            f"{location}: column {column!r} is {cell!r}, no list of names. Write one as JSON."
        )
    return cell[1:-1]


def _reject_vectors(name: str, column: str, lists: Sequence[list[Any]]) -> None:
    """Raise InputError for lists with a 0 or 1 for each label instead of the labels' names."""
    texts = [[label_text(value) for value in values] for values in lists]
    if (
        len({len(values) for values in texts}) == 1
        and any(len(set(values)) < len(values) for values in texts)
        and all({*values} <= {"0", "1"} for values in texts)
    ):
        raise InputError(
            f"{name}: column {column!r} has vectors of 0 and 1, such as {lists[0]!r}. Write the "
            "names of the labels, or a column of 0 and 1 for each label."
        )


def _read_label_names(
    locations: Sequence[str], column: str, cells: Sequence[Any]
) -> list[tuple[str, ...] | None]:
    """Return the label name in each cell; None for a cell without a value."""
    texts = (
        _label_name(location, column, cell, False)
        for location, cell in zip(locations, cells, strict=True)
    )
    return [(text,) if text else None for text in texts]


def _label_name(location: str, column: str, value: Any, is_element: bool) -> str:
    """Return the name of a label in a cell, or in an element of the list in a cell."""
    is_list = isinstance(value, list | tuple)
    if not is_element and isinstance(value, str):
        is_list = parse_list(value) is not None
    is_infinite = isinstance(value, float) and math.isinf(value)  # as Python's JSON may have it
    if not (is_list or is_infinite) and (value is None or isinstance(value, str | int | float)):
        return label_text(value)
    fix = "Write the name or number of a label"
    if is_list and not is_element:
        fix = "Write one label, or set data.problem_type=multi_label_classification"
    raise InputError(f"{location}: column {column!r} is {value!r}. {fix}.")


def _read_indicators(
    location: str, columns: Sequence[str], values: Sequence[Any]
) -> tuple[str, ...] | None:
    """Return the columns with a 1 in a row; None if one of them has no value."""
    texts = [label_text(value).lower() for value in values]
    if any(text in ("", *_MARKS) for text in texts):
        return None
    for column, text in zip(columns, texts, strict=True):
        if text not in _ZERO_ONE:
            raise InputError(
                f"{location}: column {column!r} is {text!r}. Write 1 for a text with this label "
                "and 0 for others."
            )
    return tuple(itertools.compress(columns, map(_ZERO_ONE.__getitem__, texts)))
