"""Texts with labels: reading, label names, splits, targets, class weights, truncation."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import make_target
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    dataset_from_rows,
    label_names,
    split_column_names,
)
from data_pipelines.finetuning.table import TableRow, read_table

CLASS = TableColumns(("text",), label="label")
LABELS = dataclasses.replace(CLASS, problem_type="multi_label_classification")
NUMBER = dataclasses.replace(CLASS, problem_type="regression")


def read(
    rows: list[dict], columns: TableColumns = CLASS, labeled: bool = True
) -> SequenceClassificationDataset:
    table = [TableRow(f"t.csv:{i}", values) for i, values in enumerate(rows, 2)]
    return dataset_from_rows("t.csv", table, columns, labeled)


def labeled(*labels: object, columns: TableColumns = CLASS) -> SequenceClassificationDataset:
    return read([{"text": f"text {i}", "label": label} for i, label in enumerate(labels)], columns)


def test_columns_without_a_header_may_be_named_by_numbers(tmp_path) -> None:
    path = tmp_path / "train.tsv"  # the columns of CoLA
    path.write_text("gj04\t1\t\tOne sang.\ngj04\t0\t*\tSang one.\n")
    names = split_column_names("1+2+3+4")
    data = dataset_from_rows(
        "t", read_table(path, columns=names), TableColumns(("4",), label="2"), True
    )
    assert (data.texts, data.values) == (["One sang.", "Sang one."], ["1", "0"])


def test_ids_are_row_numbers_also_behind_rows_that_the_reader_skipped(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\none,a\ntwo,b,x\nthree,b\n")
    data = dataset_from_rows("t.csv", read_table(path, 0.5), CLASS, True, max_bad_fraction=0.5)
    assert (data.texts, data.ids) == (["one", "three"], ["0", "2"])
    accepted = [{"text": "one", "label": "a", "answer": "reject"}, {"text": "two", "label": "b"}]
    rows = [TableRow(f"t.jsonl:{i}", {"answer": "accept"} | row) for i, row in enumerate(accepted)]
    assert dataset_from_rows("t.jsonl", rows, CLASS, True).ids == ["1"]


def test_ids_are_row_numbers_also_behind_bad_rows() -> None:
    values = [("hello", "a"), ("", "b"), ("foo", "b"), ("bar", None), ("baz", "a")]
    rows = [TableRow(f"t.csv:{i}", {"text": t, "label": y}) for i, (t, y) in enumerate(values, 2)]
    data = dataset_from_rows("t.csv", rows, CLASS, True, max_bad_fraction=0.5)
    assert (data.texts, data.ids) == (["hello", "foo", "baz"], ["0", "2", "4"])


def test_from_rows_joins_columns_of_a_text() -> None:
    columns = TableColumns(
        split_column_names("title+body"), split_column_names("answer"), "label", "id"
    )
    rows = [{"title": "A ", "body": "b", "answer": "c", "label": 1, "id": 7, "other": None}]
    data = read(rows, columns)
    assert (data.texts, data.text_pairs, data.values, data.ids) == (["A b"], ["c"], ["1"], ["7"])
    assert data.locations == ["t.csv:2"] and len(data) == 1


def test_from_rows_ignores_labels_of_unlabeled_data() -> None:
    data = read([{"text": "a"}], labeled=False)
    assert data.values is None and data.text_pairs is None and data.ids is None
    target = make_target(data, ["x", "y"], "single_label_classification")
    assert target.weights.tolist() == [0]


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (CLASS, [{"label": "x"}], ":2: no column 'text', only 'label'"),
        (CLASS, [{"text": "a"}], ":2: no column 'label'"),
        (CLASS, [{"text": " ", "label": "x"}], ":2: column 'text' is empty"),
        (CLASS, [{"text": "a", "label": " "}], ":2: column 'label' is empty"),
        (CLASS, [{"text": "a", "label": None}], ":2: column 'label' is empty"),
        (CLASS, [{"text": "a", "label": math.nan}], ":2: column 'label' is empty"),
        (
            CLASS,
            [{"text": "a", "label": ["x", "y"]}],
            ":2: .* is .*\\. .* set data.problem_type=multi_label_classification",
        ),
        (CLASS, [{"text": "a", "label": {"x": 1}}], ":2: column 'label' is .*. Write the name"),
        (
            LABELS,
            [{"text": "a", "label": 3}],
            ":2: column 'label' is 3. Write labels separated by ','",
        ),
        (LABELS, [{"text": "a", "label": [["x"]]}], ":2: column 'label' is .*. Write the name"),
        (NUMBER, [{"text": "a", "label": "nan"}], ":2: .* 'nan', no label, as in all rows"),
        (NUMBER, [{"text": "a", "label": "-inf"}], ":2: .* '-inf', not a finite number"),
        (NUMBER, [{"text": "a", "label": "1e39"}], ":2: .* '1e39', not a finite number"),
        (
            NUMBER,
            [{"text": "a", "label": "good"}],
            ":2: .* 'good'.* Fix it, or set data.problem_type=",
        ),
        (
            TableColumns(("text",), ("pair",), "label"),
            [{"text": "a", "label": 1}],
            "no column 'pair'",
        ),
        (
            TableColumns(("text",), label="label", id="id"),
            [{"text": "a", "label": 1, "id": i} for i in (1, 2, 1)],
            ":4: id '1' is also at t.csv:2. Give each",
        ),
    ],
)
def test_from_rows_rejects_invalid_rows_with_their_location(columns, rows, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(rows, columns)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": ()}, "data.text='': no text column. Name"),
        (
            {"text": ("a",), "label": "a"},
            "data.label='a': this column is also read as text. Name another",
        ),
        ({"text": ("a",), "text_pair": ("a",)}, "data.text_pair='a': this column is also read"),
        (
            {"text": ("a",), "text_pair": ("b",), "label": "b"},
            "data.label='b': this column is also",
        ),
        (
            {"text": ("a",), "problem_type": "klass"},
            "data.problem_type='klass': unknown problem type. Choose one of",
        ),
    ],
)
def test_table_columns_rejects_invalid_columns(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableColumns(**arguments)


def test_from_rows_reads_separated_and_listed_labels() -> None:
    data = labeled("b, a,b,", ["a", 3, ""], "", [], columns=LABELS)
    assert data.values == [("b", "a"), ("a", "3"), (), ()]
    columns = dataclasses.replace(LABELS, label_separator="|")
    assert labeled("a,b|c", columns=columns).values == [("a,b", "c")]


@given(st.lists(st.sampled_from(["a", "B", "b c", "é", "10", "9", "-1"]), min_size=2), st.randoms())
def test_label_names_do_not_depend_on_the_order_of_rows(labels: list[str], draw) -> None:
    if len(set(labels)) < 2:
        return
    shuffled = draw.sample(labels, len(labels))
    names = label_names(labeled(*labels))
    assert names == label_names(labeled(*shuffled)) and set(names) == set(labels)
    assert label_names(labeled(*labels, columns=LABELS)) == names


def test_label_names_sorts_whole_numbers_by_value() -> None:
    assert label_names(labeled(10, "9", -1, "2")) == ("-1", "2", "9", "10")
    assert label_names(labeled("10", "9", "x")) == ("10", "9", "x")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("file", "text", "label", "count", "classes"),
    [
        ("banking77/train.csv", "text", "category", 10_003, 77),
        ("banking77/test.csv", "text", "category", 3080, 77),
        ("clinc150/train.tsv", "sentence", "label", 15_100, 151),
        ("clinc150/val.tsv", "sentence", "label", 3100, 151),
        ("clinc150/test.tsv", "sentence", "label", 5500, 151),
    ],
)
def test_from_rows_reads_all_examples_of_published_files(
    file: str, text: str, label: str, count: int, classes: int, data_dir
) -> None:
    rows = read_table(data_dir / "classification" / file)
    data = dataset_from_rows(file, rows, TableColumns((text,), label=label), True)
    names = label_names(data)
    assert (len(data), len(names)) == (count, classes) and list(names) == sorted(names)
    train, dev = data.train_eval_split(0.1)
    assert len(train) + len(dev) == count and not {*train.texts} & {*dev.texts}


def test_label_names_rejects_fewer_than_two() -> None:
    with pytest.raises(InputError, match=r"^t.csv: all examples have label 'x'\. Give"):
        label_names(labeled("x", "x"))
    with pytest.raises(InputError, match=r"^t.csv: no example has a label\. Give"):
        label_names(labeled("", [], columns=LABELS))


texts = st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True)


@pytest.mark.seconds
@settings(deadline=None)
@given(texts, st.lists(st.text(max_size=8), max_size=10), st.floats(0.1, 0.9), st.randoms())
def test_train_eval_split_does_not_depend_on_order_and_additions(
    first: list[str], more: list[str], eval_fraction: float, draw
) -> None:
    def sides(texts: list[str], pairs: list[str] | None = None) -> tuple[set[str], set[str]] | None:
        locations = [str(i) for i in range(len(texts))]
        try:
            parts = SequenceClassificationDataset(
                "it", locations, texts, pairs, list(texts)
            ).train_eval_split(eval_fraction)
        except InputError:
            return None
        assert all(part.values == part.texts for part in parts)
        return tuple(set(part.texts) for part in parts)

    before, later = sides(first), sides(draw.sample(first + more, len(first + more)))
    if before and later:
        for split, later_split in zip(before, later, strict=True):
            assert split <= later_split
        assert not later[0] & later[1]


def test_train_eval_split_returns_about_the_fraction() -> None:
    count = 4000
    texts = [f"text {i}" for i in range(count)]
    for pairs in (None, texts[::-1]):
        data = SequenceClassificationDataset("it", texts, texts, pairs, texts, texts)
        train, dev = data.train_eval_split(0.1)
        assert len(train) + len(dev) == count and abs(len(dev) - 400) < 80
        assert sorted(train.locations + dev.locations) == sorted(texts)
    assert set(dev.texts) != set(
        SequenceClassificationDataset("it", texts, texts).train_eval_split(0.1)[1].texts
    )


def test_train_eval_split_is_stable() -> None:
    texts = [f"text {i}" for i in range(20)]
    assert SequenceClassificationDataset("it", texts, texts).train_eval_split(0.1)[1].texts == [
        f"text {i}" for i in (2, 3, 6, 18)
    ]


def test_train_eval_split_keeps_the_row_numbers() -> None:
    texts = [f"text {i}" for i in range(20)]
    for part in SequenceClassificationDataset("it", texts, texts).train_eval_split(0.1):
        assert part.texts == [texts[int(number)] for number in part.ids]


def test_train_eval_split_rejects_too_few_examples() -> None:
    with pytest.raises(InputError, match=r"t.csv: 2 examples are too few .*data.eval_file=FILE"):
        labeled("a", "b").train_eval_split(0.001)


def test_make_target_uses_the_order_of_labels() -> None:
    names = ("a", "b", "c")
    assert make_target(labeled("c", "a"), names, "single_label_classification").values.tolist() == [
        2,
        0,
    ]
    label_sets = make_target(
        labeled("c,a", "", columns=LABELS), names, "multi_label_classification"
    )
    assert label_sets.values.tolist() == [[1, 0, 1], [0, 0, 0]]
    numbers = make_target(labeled(3, "-0.5", columns=NUMBER), (), "regression")
    assert numbers.values.tolist() == [3, -0.5] and numbers.weights.tolist() == [1, 1]


def test_make_target_rejects_unknown_labels_with_their_location() -> None:
    message = r"^t.csv:3: label 'z' is not a label of the model \('a', 'b'\)\. Fix it, or"
    for columns in (CLASS, LABELS):
        with pytest.raises(InputError, match=message):
            make_target(labeled("a", "z", columns=columns), ("a", "b"), columns.problem_type)


def test_from_rows_reads_a_column_for_each_label() -> None:
    columns = dataclasses.replace(LABELS, label="toxic+insult+threat")
    rows = [{"text": "a", "toxic": 0, "insult": 1, "threat": 0}] * 2
    data = read([*rows, {"text": "b", "toxic": "-1", "insult": "-1", "threat": "-1"}], columns)
    assert data.values == [("insult",)] * 2 and label_names(data) == ("toxic", "insult", "threat")
    named = [{"text": "a", "toxic+insult+threat": "x,y"}]
    assert read(named, columns).values == [("x", "y")]


def test_from_rows_leaves_out_missing_labels_and_keeps_row_numbers() -> None:
    data = labeled("a", "-", "b", "a", "b", None)
    assert data.values == ["a", "b", "a", "b"] and data.ids == ["0", "2", "3", "4"]
    assert data.texts == ["text 0", "text 2", "text 3", "text 4"]
    assert data.missing_labels == {"-"}
    assert read([{"text": "a", "label": "-"}] * 3, labeled=False).texts == ["a"] * 3


def test_from_rows_accepts_an_empty_column_of_a_joined_text() -> None:
    columns = TableColumns(("title", "body"), label="label")
    rows = [{"title": "A", "body": value, "label": "x"} for value in ("b", "", None, math.nan)]
    assert read(rows, columns).texts == ["A b", "A", "A", "A"]
    with pytest.raises(InputError, match=r"^t.csv:2: columns 'title', 'body' are empty\."):
        read([{"title": " ", "body": None, "label": "x"}], columns)


def test_from_rows_takes_a_field_that_a_row_lacks_as_empty(caplog) -> None:
    columns = TableColumns(("title", "body"), label="label")
    rows = [{"title": "A", "label": "x"}, {"body": "b", "label": "y"}, {"title": "A", "body": "b"}]
    data = read(rows, columns)
    assert (data.texts, data.values, data.ids) == (["A", "b"], ["x", "y"], ["0", "1"])
    assert "left out 1 of 3 examples without a label" in caplog.text


def test_from_rows_leaves_out_answers_that_are_not_accepted(caplog) -> None:
    answers = ("accept", "reject", "ignore", "accept")
    rows = [{"text": "a", "label": "x", "answer": answer} for answer in answers]
    assert len(read(rows)) == 2 and "left out 2 of 4 rows" in caplog.text
    assert len(read([row | {"answer": "yes"} for row in rows])) == 4


def test_from_rows_keeps_answers_that_are_the_label() -> None:
    answers = ["accept", "reject", "accept", "reject"]
    rows = [{"text": "a", "answer": answer} for answer in answers]
    data = read(rows, dataclasses.replace(CLASS, label="answer"))
    assert data.values == answers and data.ids is None


def test_label_names_warns_of_labels_that_differ_in_case(caplog) -> None:
    assert label_names(labeled("Good", "good", "bad")) == ("Good", "bad", "good")
    assert "labels differ in upper and lower case only: Good, good" in caplog.text
    assert label_names(labeled("1.0", "1", "0")) == ("0", "1", "1.0")
    assert "labels differ in '.0' only: 1, 1.0" in caplog.text


def test_train_eval_split_evaluates_a_text_of_few_repeated_ones() -> None:
    data = read([{"text": f"{i % 3}", "label": "x"} for i in range(60)])
    train, dev = data.train_eval_split(0.001 + 1 / 60)
    assert len(train) == 40 and len({*dev.texts}) == 1
