"""Tables of texts for embeddings, in the layouts of sentence-transformers' data sets."""

import json
import pathlib

import pyarrow
import pytest
from pyarrow import parquet

from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.dataset import EmbeddingsDataset, dataset_from_rows
from data_pipelines.finetuning.table import TableRow, read_table


def read(*rows: dict, **options) -> EmbeddingsDataset:
    table = [TableRow(f"t.csv:{i}", values) for i, values in enumerate(rows, 2)]
    return dataset_from_rows("t.csv", table, **options)


@pytest.mark.parametrize(
    ("row", "texts", "score"),
    [
        ({"anchor": "a", "positive": "b"}, ("a", "b"), None),
        ({"query": "a", "answer": "b"}, ("a", "b"), None),
        ({"positive": "a", "anchor": "b"}, ("a", "b"), None),  # their order counts
        ({"anchor": "a", "positive": "b", "negative": "c"}, ("a", "b", "c"), None),
        ({"q": "a", "p": "b", "negative_1": "c", "negative_2": "d"}, ("a", "b", "c", "d"), None),
        ({"q": "a", "p": "b", "negatives": ["c", "d"]}, ("a", "b", "c", "d"), None),
        ({"sentence1": "a", "sentence2": "b", "score": 0.5}, ("a", "b"), 0.5),
        ({"sentence1": "a", "sentence2": "b", "score": "0.25"}, ("a", "b"), 0.25),
        ({"label": 1, "sentence1": "a", "sentence2": "b"}, ("a", "b"), 1.0),
        ({"sentence": " a "}, ("a",), None),
    ],
)
def test_from_rows_reads_all_columns_in_their_order(row, texts, score) -> None:
    data = read(row)
    assert data.texts == [texts] and data.scores == (None if score is None else [score])
    assert data.all_texts == [*texts] and data.num_texts == len(texts)


def test_from_rows_reads_named_columns_alone() -> None:
    row = {"id": 7, "text": "a", "other": "b", "similarity": "3", "label": "x"}
    data = read(row, columns=("other", "text"), score="similarity")
    assert data.texts == [("b", "a")] and data.scores == [3]
    assert read(row, columns=("other", "text"), reads_scores=False).scores is None
    row = {"premise": "a", "hypothesis": "b", "label": "entailment"}
    assert read(row, reads_scores=False).texts == [("a", "b")]  # the label is no text


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_formats_of_tables_are_read_alike(suffix: str, tmp_path: pathlib.Path) -> None:
    rows = [{"sentence1": "a b", "sentence2": "c", "score": 0.5}] * 2
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        mark = "," if suffix == "csv" else "\t"
        lines = [rows[0].keys(), *(row.values() for row in rows)]
        path.write_text("".join(f"{mark.join(map(str, line))}\n" for line in lines))
    data = dataset_from_rows(str(path), read_table(path))
    assert data.texts == [("a b", "c")] * 2 and data.scores == [0.5, 0.5]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"a": "x", "b": " "}, {}, "t.csv:3: column 'b' is empty. Write its text or delete"),
        ({"a": "x"}, {}, "t.csv:3: no column 'b', only 'a'"),
        ({"a": "x", "b": None}, {}, "t.csv:3: column 'b' is None, not text"),
        ({"a": 7, "b": "x"}, {}, "t.csv:3: column 'a' is 7, not text. Name the columns of the"),
        ({"a": "x", "b": ["y", "z"]}, {}, "t.csv:3: 3 texts, and 2 in the first row. Give each"),
        ({"a": "x", "b": ["y", 1.5, ""]}, {}, r"t.csv:3: column 'b\[2\]' is empty"),
        ({"a": "x", "b": "y"}, {"columns": ("a", "c")}, "t.csv: there is no column 'c', but 'a'"),
        ({"a": "x", "b": "y"}, {"score": "c"}, "t.csv: there is no column 'c', .* data.score="),
        (
            {"a": "x", "b": "y"}, {"columns": ("a", "b"), "score": "b"},
            "data.score='b': this column is also read as text",
        ),
    ],
)  # fmt: skip
def test_from_rows_rejects_rows_without_texts(row, options, message) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        read({"a": "x", "b": "y"}, row, **options)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("high", "t.csv:3: column 'score' is 'high', not a finite number"),
        ("nan", "t.csv:3: column 'score' is 'nan', not a finite number"),
        (None, "t.csv:3: column 'score' is None, not a finite number"),
        (True, "t.csv:3: column 'score' is True, not a finite number"),
    ],
)
def test_from_rows_rejects_scores_that_are_no_numbers(score, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        read({"a": "x", "b": "y", "score": 1}, {"a": "x", "b": "y", "score": score})


def test_from_rows_rejects_scores_of_other_than_pairs() -> None:
    with pytest.raises(InputError, match=r"^t.csv: scores in 'label' and 3 texts, a, b, c\. Name"):
        read({"a": "x", "b": "y", "c": "z", "label": 1})
    with pytest.raises(InputError, match=r"^t.csv: has no column but 'score'\. Give columns"):
        read({"score": 1})
