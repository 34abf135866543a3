"""Tables: formats, locations of rows, and errors."""

import csv
import gzip
import io
import json
import pathlib
import random
import tempfile

import numpy as np
import pyarrow
import pytest
from document_files import COMPRESS, compressed
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet
from tfds_datasets import register_builder

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import (
    TableRow,
    check_bad_rows,
    is_table,
    read_table,
    read_tfds_table,
)

BOM = b"\xef\xbb\xbf"
ROWS = [{"text": "one, two", "label": "a"}, {"text": 'say "three"', "label": "b"}]


def write(path: pathlib.Path, content: str | bytes) -> pathlib.Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def as_csv(rows: list[dict], **options: object) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]), lineterminator="\n", **options)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


def as_tsv(rows: list[dict]) -> str:
    return "".join("\t".join(values) + "\n" for values in (list(rows[0]), *map(dict.values, rows)))


def as_objects(rows: list[dict]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def values_of(path: pathlib.Path, **options: float) -> list[dict]:
    return [row.values for row in read_table(path, **options)]


# Fields as Python's writer of CSV reads them again: it puts no quotes around a lone "\r".
fields = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(fields, fields), min_size=1), st.booleans())
def test_csv_fields_may_contain_commas_quotes_and_line_ends(rows: list, always: bool) -> None:
    rows = [{"text": text, "label": f"l{label}"} for text, label in rows]
    quoting = csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL
    with tempfile.TemporaryDirectory() as folder:
        path = write(pathlib.Path(folder) / "t.csv", as_csv(rows, quoting=quoting))
        assert values_of(path) == rows


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(fields, fields), min_size=1))
def test_tsv_treats_quotes_as_text(rows: list) -> None:
    rows = [
        {name: "".join(text.split("\t")).replace("\n", " ") for name, text in pair}
        for pair in ((("text", f"x{text}"), ("label", label)) for text, label in rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.tsv", "t.txt"):
            assert values_of(write(pathlib.Path(folder) / name, as_tsv(rows))) == rows


def test_read_table_accepts_line_ends_of_all_systems(tmp_path) -> None:
    for number, end in enumerate(("\n", "\r\n", "\r")):
        for name, content in (("csv", as_csv(ROWS)), ("tsv", as_tsv(ROWS))):
            path = write(tmp_path / f"{number}.{name}", content.replace("\n", end))
            assert values_of(path) == ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.ndjson", "t.json", "T.CSV"])
def test_read_table_removes_a_byte_order_mark(name: str, tmp_path) -> None:
    kinds = {"csv": as_csv, "tsv": as_tsv}
    content = kinds.get(name.lower().rpartition(".")[2], as_objects)(ROWS)
    assert values_of(write(tmp_path / name, BOM + content.encode())) == ROWS


@compressed
def test_read_table_decompresses_by_suffix(suffix: str, tmp_path) -> None:
    contents = (("t.csv", as_csv(ROWS)), ("t.tsv", as_tsv(ROWS)), ("t.jsonl", as_objects(ROWS)))
    for name, content in contents:
        path = write(tmp_path / f"{name}{suffix}", COMPRESS[suffix](content.encode()))
        assert values_of(path) == ROWS
        assert is_table(path) == (name != "t.jsonl")


def test_parquet_and_arrow_keep_value_types(tmp_path) -> None:
    rows = [
        {"text": "a", "label": 1, "all": ["x", "y"], "score": 0.5, "sure": True},
        {"text": None, "label": None, "all": [], "score": None, "sure": False},
    ]
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, str(tmp_path / "t.feather"))
    with pyarrow.ipc.new_stream(tmp_path / "t.arrow", table.schema) as sink:
        sink.write_table(table)
    for path in tmp_path.iterdir():
        assert values_of(path) == rows and is_table(path)
        assert [row.location for row in read_table(path)] == [f"{path} row 1", f"{path} row 2"]


def test_rows_have_the_line_as_location(tmp_path) -> None:
    """Several lines of a row have the first line as location, as an editor shows it."""
    path = write(tmp_path / "t.csv", 'text,label\n"a\nb",1\n\nc,2\n"d\n\ne",3\nf,4\n')
    assert [row.location for row in read_table(path)] == [f"{path}:{i}" for i in (2, 5, 6, 9)]
    path = write(tmp_path / "t.tsv", "text\tlabel\na\t1\n\nb\t2\n")
    assert [row.location for row in read_table(path)] == [f"{path}:{i}" for i in (2, 4)]
    path = write(tmp_path / "t.jsonl", '{"text": 1}\n\n{"text": 2}\n')
    assert [row.location for row in read_table(path)] == [f"{path}:{i}" for i in (1, 3)]


def test_csv_fields_may_be_long(tmp_path) -> None:
    rows = [{"text": "word " * 100_000, "label": "a"}]
    assert values_of(write(tmp_path / "t.csv", as_csv(rows))) == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,label\na,1\nb\n", r"t\.csv:3: 1 fields instead of 2\. Fix the row, or"),
        ("t.csv", 'text,label\na,1\n"b"c,2\n', r"t\.csv:3: not CSV .*\. Fix its quotes"),
        ("t.csv", 'text,label\na,1\n"b,2\nc,3\n', r"t\.csv:3: not CSV .*\. Fix its quotes"),
        ("t.csv", "text,text\na,1\n", "two columns 'text'. Rename one"),
        ("t.csv", "text\tlabel\na\t1\n", "tabs between .* for commas. Rename it to end in .tsv"),
        ("t.csv", '"text"\t"label"\n"a"\t"1"\n', "tabs between .* Rename it to end in .tsv"),
        ("t.tsv", "text;label\na;1\n", "semicolons between .* Rename it to end in .csv"),
        ("t.csv", "text|label\na|1\n", "bars between the columns. Write commas"),
        ("t.csv", "text,label\n", "no rows. Give"),
        ("t.csv", "", "no rows. Give"),
        ("t.csv", b"text,label\n\xff\xfe,1\n", "byte 11 is not UTF-8. Convert"),
        ("t.tsv", "text\tlabel\na\tb\t1\n", r"t\.tsv:2: 3 fields instead of 2"),
        ("t.txt", '{"text": "a"}\n{"text": "b"}\n', "a JSON object. Rename it to end in .jsonl"),
        ("t.csv", '{"a": "b", "c": "d"}\n', "a JSON object. Rename it to end in .jsonl"),
        ("t.tsv", "text,label\na,1\n", "commas between .* for tabs. Rename it to end in .csv"),
        (
            "t.jsonl",
            '{"text": 1}\n{"text"\n',
            r"t\.jsonl:2: not JSON .*\. Write one object per line",
        ),
        ("t.jsonl", '{"text": 1}\n[1]\n', r"t\.jsonl:2: list, not a JSON object\. Write one"),
        ("t.jsonl", "\n\n", "no rows. Give"),
        ("t.parquet", "text,label", r"t\.parquet: damaged"),
        ("t.arrow", "text,label", r"t\.arrow: damaged"),
        (
            "t.parquet.gz",
            gzip.compress(b"PAR1", mtime=0),
            r"t\.parquet\.gz: \.parquet inside another compression\. Decompress it",
        ),
        ("t.csv", b"PAR1\x15", "not text. Give Parquet .* ends in .parquet"),
        (
            "t.csv",
            gzip.compress(b"a,b", mtime=0),
            "not text. Let the name of the compressed file end in .gz",
        ),
        (
            "t.xlsx",
            "",
            "unknown table format. Use a file that ends in .csv, .tsv, .jsonl or .parquet",
        ),
        ("t", "", "unknown table format"),
    ],
)
def test_read_table_rejects_other_files(name: str, content: str, message: str, tmp_path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_read_table_rejects_a_missing_file(tmp_path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: no such file\. Name"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r": a directory\. Name a file in it"):
        read_table(tmp_path)


@given(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1))
def test_check_bad_rows_accepts_up_to_the_fraction(
    good: int, bad: int, max_bad_fraction: float
) -> None:
    errors = [f"t.csv:{i}: bad. Fix it" for i in range(bad)]
    if bad <= max_bad_fraction * (good + bad):
        check_bad_rows(errors, good + bad, max_bad_fraction)
    else:
        with pytest.raises(
            InputError, match=r"^t.csv:0: bad. Fix it, or allow .*data\.max_bad_fraction"
        ):
            check_bad_rows(errors, good + bad, max_bad_fraction)


def test_read_table_skips_bad_rows_within_the_fraction(tmp_path) -> None:
    path = write(tmp_path / "t.tsv", "text\tlabel\na\t1\nb\nc\t2\nd\t3\te\n")
    assert values_of(path, max_bad_fraction=0.5) == [
        {"text": "a", "label": "1"},
        {"text": "c", "label": "2"},
    ]
    with pytest.raises(InputError, match=r"t\.tsv:3: 1 fields.*\(2 of 4 rows are bad\)"):
        read_table(path, max_bad_fraction=0.4)


def test_text_joins_columns_and_converts_numbers() -> None:
    row = TableRow("here", {"a": " one ", "b": 2, "c": 2.5})
    assert row.text(("a",)) == "one" and row.text(("a", "b", "c")) == "one 2 2.5"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "column 'a' is empty. Write its text or delete the row."),
        (" \u00a0", "column 'a' is empty"),
        (None, "column 'a' is None, not text"),
        (True, "column 'a' is True, not text"),
        (["x"], "column 'a' is .*, not text. Fix the row"),
        (float("nan"), "column 'a' is nan, not text"),
        (float("inf"), "column 'a' is inf, not text"),
    ],
)
def test_text_rejects_other_values_with_their_location(value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^t.csv:7: {message}"):
        TableRow("t.csv:7", {"a": value}).text(("a",))


@pytest.mark.parametrize("value", ["", " \u00a0", None, float("nan")])
def test_first_blank_column_finds_values_without_text(value: object) -> None:
    assert TableRow("here", {"a": "x", "b": value}).first_blank_column(("a", "b")) == "b"
    for value_with_text in ("x", 0, False, ["x"]):
        assert not TableRow("here", {"a": value_with_text}).first_blank_column(("a", "missing"))


def test_value_names_existing_columns_if_one_is_missing() -> None:
    with pytest.raises(
        InputError, match=r"^here: no column 'c', only 'a', 'b'. Name one of these."
    ):
        TableRow("here", {"a": 1, "b": 2}).text(("c",))
    with pytest.raises(InputError, match=r"only none\. Name"):
        TableRow("here", {}).value("c")


def test_read_table_skips_blank_lines_of_json(tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n \n{"b": [null]}')
    rows = [TableRow(f"{path}:1", {"a": 1}), TableRow(f"{path}:3", {"b": [None]})]
    assert read_table(path) == rows


NUM_MUTATIONS = 40  # 1,000 were run for each format


def mutate_json(draw: random.Random, rows: list[dict], path: pathlib.Path) -> None:
    """Write rows as JSON in a layout that is drawn."""
    layouts = {
        "lines": None,
        "list": rows,
        "data": {"version": "1", "data": rows},
        "columns": {name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]},
        "index": {str(i): row for i, row in enumerate(rows)},
        "split": {"columns": [*rows[0]], "data": [[*row.values()] for row in rows]},
    }
    layout, indent = draw.choice([*layouts]), draw.choice([None, 1])
    if layout == "data" and ".jsonl" in path.name:
        indent = 1  # in one line, it would be a row
    options = {"indent": indent, "ensure_ascii": draw.random() < 0.5}
    value = layouts[layout]
    parts = rows if value is None else [value]
    content = "\n".join(json.dumps(part, **options) for part in parts)
    content = draw.choice(["", "\n"]) + content + draw.choice(["", "\n", "\n\n"])
    data = draw.choice([b"", BOM]) + content.encode()
    data = data.replace(b"\n", draw.choice([b"\n", b"\r\n", b"\r"]))
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))


def mutate_parquet(draw: random.Random, rows: list[dict], path: pathlib.Path) -> None:
    """Write rows as Parquet with a compression and a size of row groups that are drawn."""
    codec = draw.choice(["none", "snappy", "gzip", "zstd"])
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, path, compression=codec, row_group_size=draw.randint(1, 5))


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.parquet"])
def test_read_table_gives_the_same_rows_for_all_writers(name: str, tmp_path) -> None:
    draw = random.Random(0)
    rows = [
        {"text": f'"{i}",\té\n\u2028', "label": draw.choice([0, None]), "all": [{"a": i}]}
        for i in range(4)
    ]
    for _ in range(NUM_MUTATIONS):
        names = draw.sample([*rows[0]], 3)
        shuffled = [{name: row[name] for name in names} for row in rows]
        is_parquet = name == "t.parquet"
        path = tmp_path / f"{name}{'' if is_parquet else draw.choice(['', *COMPRESS])}"
        (mutate_parquet if is_parquet else mutate_json)(draw, shuffled, path)
        assert values_of(path) == rows


@pytest.fixture(scope="module")
def tfds_builder(tmp_path_factory) -> None:
    """A TensorFlow Datasets builder with columns of several types."""
    tfds = pytest.importorskip("tensorflow_datasets")

    kind = tfds.features.ClassLabel(names=["sad", "glad"])

    features = {
        "text": tfds.features.Text(),
        "label": kind,
        "all": tfds.features.Sequence(kind),
        "answers": tfds.features.Sequence(tfds.features.Text()),
        "score": tfds.features.Scalar(np.float32),
        "raw": tfds.features.Tensor(shape=(), dtype=np.object_),
        "of": {"year": np.int32},
    }
    records = {
        "train": [
            {
                "text": text,
                "label": label,
                "all": every,
                "answers": ["x", "y"],
                "score": 0.5,
                "raw": b"\xff\xfe",
                "of": {"year": 1999},
            }
            for text, label, every in (
                ("one é", "sad", []),
                ("two", "glad", ["glad"]),
                ("three", -1, ["sad", "glad"]),
            )
        ]
    }
    register_builder(tmp_path_factory.mktemp("tfds"), "TinyTable", features, records)


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_builder")
def test_read_tfds_table_returns_json_values() -> None:
    rows = read_tfds_table("tfds:tiny_table", "train")
    assert [row.location for row in rows] == [
        f"tfds:tiny_table train record {i}" for i in (1, 2, 3)
    ]
    expected = [("one é", "sad", []), ("two", "glad", ["glad"]), ("three", None, ["sad", "glad"])]
    assert [[row.value(name) for name in ("text", "label", "all")] for row in rows] == [
        [*values] for values in expected
    ]
    for row in rows:
        assert row.value("answers") == ["x", "y"] and row.value("score") == 0.5
        assert row.value("of") == {"year": 1999}
        with pytest.raises(InputError, match=r"'raw' .*, not text"):
            row.text(("raw",))


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_builder")
def test_read_tfds_table_accepts_slices_and_rejects_unknown_names() -> None:
    (row,) = read_tfds_table("tfds:tiny_table", "train[1:2]")
    assert row.value("text") == "two"
    with pytest.raises(InputError, match="no split dev, only train"):
        read_tfds_table("tfds:tiny_table", "dev")
    with pytest.raises(InputError, match="tfds:tiny_nothing: unknown to TensorFlow"):
        read_tfds_table("tfds:tiny_nothing", "train")


@pytest.mark.parametrize("text", ["", " \t", "\x00\x01", "\u200b\ufeff\x07 "])
def test_text_of_control_characters_alone_is_empty(text: str) -> None:
    row = TableRow("x.csv:2", {"text": text, "label": "a"})
    assert row.first_blank_column(("text",)) == "text"
    with pytest.raises(InputError, match=r"x\.csv:2: column 'text' is empty"):
        row.text(("text",))
