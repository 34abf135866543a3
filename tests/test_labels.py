"""Labels in cells: names, lists as their writers write them, columns of 0 and 1."""

import json
import math
import random

import numpy as np
import pytest

from data_pipelines.errors import InputError
from data_pipelines.finetuning.labels import label_text, parse_list, read_labels

MULTI = "multi_label_classification"


def read(cells: list, problem_type: str = MULTI, **options: str) -> list:
    rows = [[cell] for cell in cells]
    locations = [f"t.csv:{i}" for i in range(2, len(rows) + 2)]
    return read_labels("t.csv", locations, ["label"], rows, problem_type, **options)[0]


def read_columns(rows: list, problem_type: str = MULTI) -> list:
    locations = [f"t.csv:{i}" for i in range(2, len(rows) + 2)]
    return read_labels("t.csv", locations, ["toxic", "insult"], rows, problem_type)[0]


SETS = [("joy", "anger"), ("fear",), (), ("joy's", 'an "odd" one', "anger")]
WRITERS = {
    "JSON": lambda names: json.dumps([*names]),
    "Python list": lambda names: repr([*names]),
    "Python tuple": repr,
    "Python set": lambda names: repr(set(names)),
    "frozenset": lambda names: repr(frozenset(names)),
    "NumPy": lambda names: str(np.array([*names])),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_parse_list_reads_lists_of_all_writers(writer: str) -> None:
    for names in SETS:
        text = WRITERS[writer](names)
        assert sorted(parse_list(text) or ()) == sorted(names), text
        assert parse_list(f" {text}\n") == parse_list(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[1, 2]", [1, 2]),
        ("[1 2]", [1, 2]),
        ("['joy'\n 'anger']", ["joy", "anger"]),
        ('{"choices": ["joy", "anger"]}', ["joy", "anger"]),  # Label Studio
        ("[nan]", None),
        ("[joy, anger]", None),
        ("(joy)", None),
        ("('joy')", None),
        ('{"joy": 1}', None),
        ("joy", None),
        ("", None),
        ("[", None),
        ("[" * 10_000 + "]" * 10_000, None),
    ],
)
def test_parse_list_returns_none_for_other_texts(text: str, names: list | None) -> None:
    assert parse_list(text) == names


@pytest.mark.parametrize("separator", [",", "|", ";", ", ", " | "])
def test_read_labels_finds_the_separator(separator: str, caplog) -> None:
    caplog.set_level("INFO")
    cells = [separator.join(names) for names in (("joy", "not joy"), ("joy",), ("a", "b", "c"))]
    assert read(cells) == [("joy", "not joy"), ("joy",), ("a", "b", "c")]
    assert bool(caplog.messages) == ("," not in separator)


def test_read_labels_rejects_two_separators() -> None:
    message = r"^t.csv: labels with ',', such as 'a,b', and with '\|', .* data.label_separator=','"
    with pytest.raises(InputError, match=message):
        read(["a,b", "c|d"])
    assert read(["a,b", "c|d"], separator="|") == [("a,b",), ("c", "d")]


def test_read_labels_accepts_bare_names_in_brackets() -> None:
    assert read(["[joy, anger]", "[fear]", "[]"]) == [("joy", "anger"), ("fear",), ()]


def test_read_labels_warns_if_no_text_has_several_labels(caplog) -> None:
    assert read(["cs.IT math.IT", "cs.LG"]) == [("cs.IT math.IT",), ("cs.LG",)]
    assert "no text has more than one label. If 'cs.IT math.IT' is several, set" in caplog.text
    caplog.clear()
    read(["joy", "anger", "joy,anger"])
    assert not caplog.messages


def test_read_labels_warns_of_classes_that_consist_of_others(caplog) -> None:
    cells = ["27", "3", "27,3", "no"]  # GoEmotions
    assert read(cells, "single_label_classification") == cells
    assert "label '27,3' consists of others. If a text may have several, set" in caplog.text
    caplog.clear()
    read(["a b", "b c", "a c", "c d", "a d"], "single_label_classification")  # AAPD
    assert caplog.text.count("label 'a b' consists of others") == 1
    caplog.clear()
    read(["New York", "Rio", "San Juan"], "single_label_classification")
    assert not caplog.messages
    caplog.clear()
    read(["a", "b,c", "c"], "single_label_classification")
    assert not caplog.messages


@pytest.mark.parametrize(
    ("cells", "problem_type", "message"),
    [
        (["['a', 'b"], MULTI, None),
        (["['a', b']"], MULTI, ":2: .* no list of names. Write one as JSON"),
        (['{"joy": 1, "fear": 0}'], MULTI, ":2: .* no list of names. Write one as JSON"),
        ([[0, 1, 0], [1, 0, 0]], MULTI, ": column 'label' has vectors of 0 and 1, such as"),
        (["[0 1 1]", "[0 0 1]"], MULTI, ": column 'label' has vectors of 0 and 1, such as"),
        (["['a']", "b"], "single_label_classification", ":2: .* Write one label, or set data.prob"),
        ([float("inf"), "b"], "single_label_classification", ":2: .* is inf. Write the name or"),
    ],
)
def test_read_labels_rejects_lists_without_names(cells, problem_type, message) -> None:
    if message is None:
        assert read(cells, problem_type) == [("['a'", "'b")]
        return
    with pytest.raises(InputError, match=f"^t.csv{message}"):
        read(cells, problem_type)


def test_read_labels_reads_a_column_for_each_label(caplog) -> None:
    rows = [["0", "1"], [1, 0.0], [True, "TRUE"], ["0.0", False]]
    assert read_columns(rows) == [("insult",), ("toxic",), ("toxic", "insult"), ()]
    assert not caplog.messages
    assert read_columns([["-1", "-1"], ["", "0"], ["1", "0"]]) == [None, None, ("toxic",)]
    assert "left out 2 of 3 examples without a label: -1 (1), no value (1)" in caplog.text
    with pytest.raises(InputError, match=r"^t.csv:2: column 'insult' is '0.3'. Write 1 for a text"):
        read_columns([["0", "0.3"]])


def mutate(draw: random.Random, names: tuple[str, ...]) -> str:
    """Return a list of names in the style of a writer that is drawn."""
    writer = draw.choice([*WRITERS.values(), lambda names: str([*names]).replace(", ", ",")])
    return draw.choice(["", " "]) + writer(names) + draw.choice(["", " ", "\n"])


NUM_MUTATIONS = 60  # 1,000 were run


def test_read_labels_gives_the_same_sets_for_all_writers() -> None:
    draw = random.Random(0)
    words = ["joy", "it's", "a b", "x,y", "é", "p|q", "1"]
    for _ in range(NUM_MUTATIONS):
        sets = [tuple(draw.sample(words, draw.randrange(4))) for _ in range(5)]
        found = read([mutate(draw, names) for names in sets])
        assert [sorted(names) for names in found] == [sorted(names) for names in sets]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (" 1 ", "1"),
        ("1.0", "1.0"),
        (True, "True"),
        (None, ""),
        (math.nan, ""),
        (0.5, "0.5"),
        ("a b", "a b"),
    ],
)
def test_label_text_normalizes_numbers_and_blanks(value: object, text: str) -> None:
    assert label_text(value) == text
