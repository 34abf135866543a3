"""Data sets of sequence classification: rows, labels, eval splits and truncation."""

import dataclasses
import math
import random

import numpy as np
import pytest
from conftest import sample_pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import (
    TRUNCATION_MODES,
    check_truncation,
    encode,
    truncated_pair_lengths,
)
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    class_weights,
    from_rows,
    label_names,
    label_text,
    make_target,
    split_column_names,
)
from data_pipelines.finetuning.table import TableRow, read_table
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(sample_pieces(), cased=False)
WORDS = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve"]  # one token each
CLASS = TableColumns(("text",), label="label")
LABELS = dataclasses.replace(CLASS, problem_type="multi_label_classification")
NUMBER = dataclasses.replace(CLASS, problem_type="regression")


def read(
    rows: list[dict], columns: TableColumns = CLASS, labeled: bool = True
) -> SequenceClassificationDataset:
    table_rows = [TableRow(f"t.csv line {i}", values) for i, values in enumerate(rows, 2)]
    return from_rows("t.csv", table_rows, columns, labeled)


def labeled(*labels: object, columns: TableColumns = CLASS) -> SequenceClassificationDataset:
    return read([{"text": f"text {i}", "label": label} for i, label in enumerate(labels)], columns)


def test_from_rows_joins_text_columns() -> None:
    columns = TableColumns(
        split_column_names("title+body"), split_column_names("answer"), "label", "id"
    )
    rows = [{"title": "A ", "body": "b", "answer": "c", "label": 1, "id": 7, "other": None}]
    found = read(rows, columns)
    assert (found.texts, found.pairs, found.values, found.ids) == (["A b"], ["c"], ["1"], ["7"])
    assert found.locations == ["t.csv line 2"] and len(found) == 1


def test_from_rows_without_labels_has_zero_weights() -> None:
    found = read([{"text": "a"}], labeled=False)
    assert found.values is None and found.pairs is None and found.ids is None
    target = make_target(found, ["x", "y"], "single_label_classification")
    assert target.weights.tolist() == [0]


@pytest.mark.parametrize(
    ("columns", "rows", "problem"),
    [
        (CLASS, [{"label": "x"}], "line 2: there is no column 'text', but 'label'"),
        (CLASS, [{"text": "a", "label": "x"}, {"text": "b"}], "line 3: there is no column 'label'"),
        (CLASS, [{"text": " ", "label": "x"}], "line 2: column 'text' is empty"),
        (CLASS, [{"text": "a", "label": " "}], "line 2: column 'label' is empty"),
        (CLASS, [{"text": "a", "label": None}], "line 2: column 'label' is empty"),
        (CLASS, [{"text": "a", "label": math.nan}], "line 2: column 'label' is empty"),
        (
            CLASS,
            [{"text": "a", "label": ["x", "y"]}],
            "line 2: .* is .*: .* set problem_type=multi_label_classification",
        ),
        (CLASS, [{"text": "a", "label": {"x": 1}}], "line 2: column 'label' is .*: write its name"),
        (LABELS, [{"text": "a", "label": 3}], "line 2: column 'label' is 3: write labels with ','"),
        (LABELS, [{"text": "a", "label": [["x"]]}], "line 2: column 'label' is .*: write its name"),
        (NUMBER, [{"text": "a", "label": "nan"}], "line 2: .* 'nan', which is no finite number"),
        (NUMBER, [{"text": "a", "label": "-inf"}], "line 2: .* '-inf', which is no finite number"),
        (NUMBER, [{"text": "a", "label": "1e39"}], "line 2: .* '1e39', which is no finite number"),
        (
            NUMBER,
            [{"text": "a", "label": "good"}],
            "line 2: .* 'good'.*: mend it, or set problem_type=",
        ),
        (
            TableColumns(("text",), ("pair",), "label"),
            [{"text": "a", "label": 1}],
            "no column 'pair'",
        ),
        (
            TableColumns(("text",), label="label", id="id"),
            [{"text": "a", "label": 1, "id": i} for i in (1, 2, 1)],
            "line 4: id '1' is that of t.csv line 2: name it apart",
        ),
    ],
)
def test_from_rows_rejects_bad_rows(columns, rows, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(rows, columns)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"text": ()}, "data.text is empty: name the column"),
        ({"text": ("a",), "label": "a"}, "column 'a' is the text and the label: name different"),
        ({"text": ("a",), "text_pair": ("a",)}, "column 'a' is the text and the pair"),
        ({"text": ("a",), "text_pair": ("b",), "label": "b"}, "column 'b' is the .* and the label"),
        (
            {"text": ("a",), "problem_type": "klass"},
            "data.problem_type='klass' is unknown: choose one of",
        ),
    ],
)
def test_table_columns_reject_conflicts(arguments: dict, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        TableColumns(**arguments)


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
def test_label_text_normalizes_values(value: object, text: str) -> None:
    assert label_text(value) == text


def test_from_rows_reads_label_sets() -> None:
    found = labeled("b, a,b,", ["a", 3, ""], "", [], columns=LABELS)
    assert found.values == [("b", "a"), ("a", "3"), (), ()]
    columns = dataclasses.replace(LABELS, label_separator="|")
    assert labeled("a,b|c", columns=columns).values == [("a,b", "c")]


@given(st.lists(st.sampled_from(["a", "B", "b c", "é", "10", "9", "-1"]), min_size=2), st.randoms())
def test_label_names_do_not_depend_on_row_order(labels: list[str], draw) -> None:
    if len(set(labels)) < 2:
        return
    shuffled = draw.sample(labels, len(labels))
    names = label_names(labeled(*labels))
    assert names == label_names(labeled(*shuffled)) and set(names) == set(labels)
    assert label_names(labeled(*labels, columns=LABELS)) == names


def test_label_names_sorts_integers_by_value() -> None:
    assert label_names(labeled(10, "9", -1, "2")) == ("-1", "2", "9", "10")
    assert label_names(labeled("10", "9", "-")) == ("-", "10", "9")


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
def test_published_files_are_read_completely(
    file: str, text: str, label: str, count: int, classes: int, data_dir
) -> None:
    rows = read_table(data_dir / "classification" / file)
    found = from_rows(file, rows, TableColumns((text,), label=label), True)
    names = label_names(found)
    assert (len(found), len(names)) == (count, classes) and list(names) == sorted(names)
    train, dev = found.split_by_text(0.1)
    assert len(train) + len(dev) == count and not {*train.texts} & {*dev.texts}


def test_label_names_rejects_fewer_than_two() -> None:
    with pytest.raises(InputError, match=r"^t.csv has nothing to tell apart \(all have 'x'\)"):
        label_names(labeled("x", "x"))
    with pytest.raises(InputError, match=r"\(there is no label at all\)"):
        label_names(labeled("", [], columns=LABELS))


texts = st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True)


@settings(deadline=None)
@given(texts, st.lists(st.text(max_size=8), max_size=10), st.floats(0.1, 0.9), st.randoms())
def test_split_by_text_is_stable(first: list[str], more: list[str], share: float, draw) -> None:
    def sides(texts: list[str], pairs: list[str] | None = None) -> tuple[set[str], set[str]] | None:
        locations = [str(i) for i in range(len(texts))]
        try:
            parts = SequenceClassificationDataset(
                "it", locations, texts, pairs, list(texts)
            ).split_by_text(share)
        except InputError:
            return None
        assert all(part.values == part.texts for part in parts)
        return tuple(set(part.texts) for part in parts)

    before, later = sides(first), sides(draw.sample(first + more, len(first + more)))
    if before and later:
        for own, grown in zip(before, later, strict=True):
            assert own <= grown
        assert not later[0] & later[1]


def test_split_by_text_keeps_the_fraction() -> None:
    count = 4000
    texts = [f"text {i}" for i in range(count)]
    for pairs in (None, texts[::-1]):
        data = SequenceClassificationDataset("it", texts, texts, pairs, texts, texts)
        train, dev = data.split_by_text(0.1)
        assert len(train) + len(dev) == count and abs(len(dev) - 400) < 80
        assert sorted(train.locations + dev.locations) == sorted(texts)
    assert set(dev.texts) != set(
        SequenceClassificationDataset("it", texts, texts).split_by_text(0.1)[1].texts
    )


def test_split_by_text_is_fixed() -> None:
    texts = [f"text {i}" for i in range(20)]
    assert SequenceClassificationDataset("it", texts, texts).split_by_text(0.1)[1].texts == [
        f"text {i}" for i in (2, 3, 6, 18)
    ]


def test_split_by_text_rejects_empty_part() -> None:
    with pytest.raises(InputError, match=r"t.csv has too few examples \(2\) .*data.eval_file=FILE"):
        labeled("a", "b").split_by_text(0.001)


def test_make_target_uses_label_order() -> None:
    names = ("a", "b", "c")
    assert make_target(labeled("c", "a"), names, "single_label_classification").values.tolist() == [
        2,
        0,
    ]
    label_sets = make_target(
        labeled("c,a", "", columns=LABELS), names, "multi_label_classification"
    )
    assert label_sets.values.tolist() == [[1, 0, 1], [0, 0, 0]]
    regression = make_target(labeled(3, "-0.5", columns=NUMBER), (), "regression")
    assert regression.values.tolist() == [3, -0.5] and regression.weights.tolist() == [1, 1]


def test_make_target_rejects_unknown_label() -> None:
    problem = r"^t.csv line 3: label 'z' is none that was trained \('a', 'b'\): mend it, or"
    for columns in (CLASS, LABELS):
        with pytest.raises(InputError, match=problem):
            make_target(labeled("a", "z", columns=columns), ("a", "b"), columns.problem_type)


def test_class_weights_follow_the_option() -> None:
    labels, classes = ("a", "b", "c=d"), np.array([0, 0, 0, 1])
    assert class_weights("", labels, classes).tolist() == [1, 1, 1]
    assert class_weights("b=2,c=d=0.5", labels, classes).tolist() == [1, 2, 0.5]
    # N / (C * count), as scikit-learn; a class without examples counts as one example.
    found = class_weights("balanced", labels, classes)
    np.testing.assert_allclose(found, [4 / 9, 4 / 3, 4 / 3])
    weights = class_weights("balanced", labels[:2], classes)
    assert weights[classes].mean() == 1


@pytest.mark.parametrize("spec", ["z=2", "a", "a=x", "a=0", "a=-1", "a=nan", "a=inf", "a=1,=2"])
def test_class_weights_reject_bad_options(spec: str) -> None:
    with pytest.raises(InputError, match=r"data.class_weights='.*' must be LABEL=WEIGHT, of a, b"):
        class_weights(spec, ("a", "b"), np.array([0, 1]))


def original_pair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths by google-research/bert's run_classifier.py, one token at a time."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


lengths = st.integers(0, 60)


@given(lengths, lengths, st.integers(0, 70))
def test_truncated_pair_lengths_equal_the_original(a, b, room) -> None:
    assert truncated_pair_lengths(a, b, room) == original_pair_lengths(a, b, room)


def words(count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def rows_of(encoded) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.examples.ids, encoded.examples.starts[1:])]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(3, 24), st.sampled_from(TRUNCATION_MODES))
def test_encode_truncates_as_configured(count: int, max_seq_length: int, truncation: str) -> None:
    text, room = words(count), max_seq_length - 2
    ids = tokens(text)
    found = encode(
        SequenceClassificationDataset("it", ["here"], [text]), TOKENIZER, max_seq_length, truncation
    )
    rows = rows_of(found)
    for row in rows:
        assert len(row) <= max_seq_length
        assert (row[0], row[-1]) == (TOKENIZER.cls_id, TOKENIZER.sep_id)
    assert found.examples.prefix_lengths.tolist() == [len(row) for row in rows]
    assert found.text_indices.tolist() == [0] * len(rows)
    bare = [row[1:-1] for row in rows]
    assert found.num_truncated == (count > room and truncation != "windows")
    if count <= room:
        assert bare == [ids]
    elif truncation == "windows":
        stride = max(1, room - room // 4)
        for number, window in enumerate(bare):
            assert window == ids[number * stride :][:room]
        covered = {
            i for n, window in enumerate(bare) for i in range(n * stride, len(window) + n * stride)
        }
        assert covered == set(range(count))
        assert (len(bare) - 1) * stride + room - stride < count  # no window is redundant
    else:
        head = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
        assert bare == [ids[:head] + ids[count - room + head :]]


def test_encode_keeps_a_quarter_as_head() -> None:
    """Sun et al. 2019 keep 128 of 510 tokens; a quarter is 127."""
    text = words(1000)
    (row,) = rows_of(
        encode(SequenceClassificationDataset("it", ["here"], [text]), TOKENIZER, 512, "head_tail")
    )
    assert row[1:-1] == tokens(text)[:127] + tokens(text)[-383:]


@settings(deadline=None)
@given(
    st.integers(0, 20), st.integers(0, 20), st.integers(5, 30), st.sampled_from(["head", "tail"])
)
def test_encode_truncates_pairs_as_the_original(
    a: int, b: int, max_seq_length: int, truncation: str
) -> None:
    texts = [words(a, 1), words(b, 2)]
    data = SequenceClassificationDataset("it", ["here"], texts[:1], texts[1:])
    found = encode(data, TOKENIZER, max_seq_length, truncation)
    sizes = original_pair_lengths(a, b, max_seq_length - 3)
    parts = [
        tokens(text)[:size] if truncation == "head" else tokens(text)[len(tokens(text)) - size :]
        for text, size in zip(texts, sizes, strict=True)
    ]
    sep = [TOKENIZER.sep_id]
    assert rows_of(found) == [[TOKENIZER.cls_id, *parts[0], *sep, *parts[1], *sep]]
    assert found.examples.prefix_lengths.tolist() == [sizes[0] + 2]
    assert found.num_truncated == (a + b > max_seq_length - 3)


def test_with_target_divides_weights_over_windows() -> None:
    texts = [words(3), words(50), words(20)]
    data = SequenceClassificationDataset("it", texts, texts, None, ["a", "b", "b"])
    encoded = encode(data, TOKENIZER, 10, "windows")
    target = make_target(data, ("a", "b"), "single_label_classification")
    weighted = dataclasses.replace(target, weights=np.array([1, 0.5, 2], np.float32))
    for given_target, sums in ((target, [1, 1, 1]), (weighted, [1, 0.5, 2])):
        label = encoded.with_target("labels", given_target).targets["labels"]
        np.testing.assert_allclose(
            np.bincount(encoded.text_indices, label.weights), sums, rtol=1e-6
        )
        assert label.values.tolist() == target.values[encoded.text_indices].tolist()
    assert np.bincount(encoded.text_indices).tolist() == [1, 8, 3]


def test_encode_rejects_bad_truncation_and_length() -> None:
    with pytest.raises(
        InputError, match=r"data.truncation='middle' is unknown: choose one of head"
    ):
        check_truncation("middle", False)
    for truncation in ("windows", "head_tail"):
        with pytest.raises(
            InputError, match=f"data.truncation={truncation} is not for pairs: choose head"
        ):
            check_truncation(truncation, True)
    for pairs, max_seq_length in ((None, 2), (["b"], 4)):
        with pytest.raises(
            InputError, match=f"max_seq_length={max_seq_length} leaves no room for text: raise"
        ):
            encode(
                SequenceClassificationDataset("it", ["x"], ["a"], pairs),
                TOKENIZER,
                max_seq_length,
                "head",
            )
