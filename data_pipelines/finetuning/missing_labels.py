"""Marks of missing labels, such as "-" in SNLI: which of them are classes is decided by counts."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

# Marks in lower case: signs that hardly name a class; words that may; and numbers beside class ids.
_VALUES = ("#n/a", "nan", "<na>", "null", "\\n")  # written by programs for no value
_SIGNS = ("-", "--", "?", "n/a")
_WORDS = ("none", "na", "nil")
_IDS = ("-1", "-100")
MISSING_MARKS = ",".join((*_VALUES, *_SIGNS, *_WORDS, *_IDS))
_log = logging.getLogger("data_pipelines")


def find_missing_labels(
    name: str, counts: Mapping[str, int], spec: str, is_regression: bool = False
) -> set[str]:
    """Return the names that mark a missing label; log marks that are taken for classes.

    With "auto", a name such as "nan" is a mark, one such as "-" if its examples are no more than
    the mean of the other classes, and a word such as "none" if they are fewer than half of the
    smallest class.
    Beside numbers both are marks. -1 and -100 are marks beside class ids from 0. Beside 0 and 1
    alone, where -1 may be negative sentiment, it is one if it is rarer than a fifth of the smaller.

    Args:
      name: name of the data set.
      counts: number of examples of each name.
      spec: `data.missing_labels`: "auto", or the marks joined by commas.
      is_regression: labels are numbers; only names that are none are marks.
    """
    if spec != "auto":
        marks = {mark.strip().lower() for mark in spec.split(",")} - {""}
        return {label for label in counts if label.lower() in marks}
    known = _VALUES + _SIGNS + _WORDS + (() if is_regression else _IDS)
    # pandas writes -1 as -1.0 if the column also has empty cells.
    candidates = {label for label in counts if label.lower().removesuffix(".0") in known}
    others = {label: count for label, count in counts.items() if label not in candidates}
    if not others or is_regression:
        return candidates
    missing = {label for label in candidates if _is_missing(label, counts[label], others)}
    for label in sorted(candidates - missing):
        if not _is_plus_or_minus(label, others):
            _log.warning(
                "%s: label %r of %d examples is a class. If it marks missing labels, set "
                "data.missing_labels=%s.",
                name,
                label,
                counts[label],
                label,
            )
    return missing


def _is_plus_or_minus(label: str, others: Mapping[str, int]) -> bool:
    opposites = {"-": "+", "-1": "1"}
    return opposites.get(label) in others and not (label == "-1" and "0" in others)


def _is_missing(label: str, count: int, others: Mapping[str, int]) -> bool:
    is_rare = count < min(others.values()) / 2
    label = label.removesuffix(".0")
    if label in _IDS:
        ids = {other.removesuffix(".0") for other in others}
        is_class_id = "0" in ids and all(other.isdecimal() for other in ids)
        is_rare = count < min(others.values()) / 5
        return is_class_id and (label == "-100" or len(others) > 2 or is_rare)
    if _is_plus_or_minus(label, others):
        return False
    if label.lower() in _VALUES or all(_is_number(other) for other in others):
        return True
    if label.lower() in _WORDS:
        return is_rare
    if not any(map(str.isalnum, "".join(others))):
        return False  # all labels are signs, such as those of punctuation
    return count <= sum(others.values()) / len(others)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def log_missing_labels(
    name: str,
    locations: Sequence[str],
    labels: Sequence[str],
    num_examples: int,
    may_be_classes: bool = True,
) -> None:
    """Log how many examples are left out because they have no label.

    Args:
      name: name of the data set.
      locations: location of each of these examples.
      labels: mark of each, "" for no value.
      num_examples: number of all examples.
      may_be_classes: a label may have the name of a mark.
    """
    counts = Counter(label or "no value" for label in labels)
    marks = ", ".join(f"{label} ({count})" for label, count in counts.most_common(5))
    fix = " If a mark is a class, set data.missing_labels=''."
    if not any(labels) or not may_be_classes:
        fix = ""
    _log.warning(
        "%s: left out %d of %d examples without a label: %s. The first is %s.%s",
        name,
        len(labels),
        num_examples,
        marks,
        locations[0],
        fix,
    )
