"""Marks of missing labels: which are left out, and which are classes."""

import pytest

from data_pipelines.finetuning.labels import read_labels
from data_pipelines.finetuning.missing_labels import MISSING_MARKS, find_missing_labels

WORDS = {"entailment": 40, "neutral": 30, "contradiction": 30}
IDS = {"0": 40, "1": 30, "2": 30}


@pytest.mark.parametrize(
    "mark", ["-", "?", "N/A", "nan", "NaN", "None", "null", "NA", "<NA>", "--"]
)
def test_find_missing_labels_finds_rare_marks(mark: str) -> None:
    for others in (WORDS, IDS):
        assert find_missing_labels("t", others | {mark: 6}, "auto") == {mark}


@pytest.mark.parametrize("mark", ["-1", "-100"])
def test_find_missing_labels_finds_numbers_beside_class_ids(mark: str) -> None:
    for count in (1, 6, 50):
        assert find_missing_labels("t", IDS | {mark: count}, "auto") == {mark}
    assert find_missing_labels("t", {"0": 40, "1": 30, "-1": 2}, "auto") == {"-1"}
    counts = {"0.0": 40, "1.0": 30, "2.0": 30, f"{mark}.0": 6}  # pandas, with empty cells
    assert find_missing_labels("t", counts, "auto") == {f"{mark}.0"}


def test_find_missing_labels_finds_values_of_programs_and_frequent_marks() -> None:
    for mark in ("NULL", "nan", "<NA>", "#N/A", "\\N"):  # OLID's subtasks have NULL in most rows
        assert find_missing_labels("t", {"TIN": 20, "UNT": 4, mark: 90}, "auto") == {mark}
    assert find_missing_labels("t", {"a": 1, "b": 1, "-": 1}, "auto") == {"-"}


@pytest.mark.parametrize(
    "counts",
    [
        {"FAVOR": 30, "AGAINST": 40, "NONE": 25},  # stance
        {"racism": 10, "sexism": 12, "none": 60},
        {"+": 50, "-": 3},
        {"1": 50, "-1": 3},
        {"-1": 20, "0": 40, "1": 30},  # sentiment
        {"-1": 604, "0": 2879, "1": 1363},
        {"-2": 9, "-1": 20, "0": 40, "1": 30, "2": 8},
        {"yea": 20, "nay": 20, "?": 30},
        {"positive": 20, "negative": 20, "-": 30},
        {".": 30, "!": 30, "?": 10},
        {"-1": 3, "2": 9, "10": 9},
    ],
)
def test_find_missing_labels_keeps_classes(counts: dict[str, int], caplog) -> None:
    assert not find_missing_labels("t", counts, "auto")
    is_clear = "+" in counts or ("1" in counts and "0" not in counts)
    is_clear |= "-2" in counts or "10" in counts
    assert is_clear or "is a class. If it marks missing labels, set data.missing_labels=" in (
        caplog.text
    )


def test_find_missing_labels_follows_the_configuration() -> None:
    counts = WORDS | {"-": 6, "unk": 2}
    assert find_missing_labels("t", counts, "") == set()
    assert find_missing_labels("t", counts, "unk, x") == {"unk"}
    assert find_missing_labels("t", counts, MISSING_MARKS) == {"-"}


def test_read_labels_leaves_out_marks_with_one_line(caplog) -> None:
    cells = ["a", "-", "a", None, float("nan"), " ", "a", "a", "-"]
    rows, locations = [[cell] for cell in cells], [f"t:{i}" for i in range(9)]
    values, marks = read_labels("t", locations, ["label"], rows, "single_label_classification")
    assert values == ["a", None, "a", None, None, None, "a", "a", None] and marks == {"-"}
    (line,) = caplog.messages
    assert line == (
        "t: left out 5 of 9 examples without a label: no value (3), - (2). The first is t:1. If a "
        "mark is a class, set data.missing_labels=''."
    )


def test_read_labels_of_a_regression_leaves_out_marks_and_keeps_minus_one() -> None:
    rows = [["-1"], ["0"], ["nan"], ["?"], ["2.5"]]
    values, _ = read_labels("t", ["t"] * 5, ["score"], rows, "regression")
    assert values == [-1, 0, None, None, 2.5]
