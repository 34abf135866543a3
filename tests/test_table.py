"""Tables are read as they are written, and what is none is refused at its line."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pathlib
import tempfile

import numpy as np
import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet
from tfds_datasets import tiny_builder

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import (
    TableRow,
    check_bad_rows,
    is_table,
    parse_objects,
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


# Fields as a CSV may hold them. Line ends of old Macs and Windows are those of the file system.
fields = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(fields, fields), min_size=1), st.booleans())
def test_csv_holds_commas_quotes_and_line_breaks(rows: list, always: bool) -> None:
    rows = [{"text": text, "label": f"l{label}"} for text, label in rows]
    quoting = csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL
    with tempfile.TemporaryDirectory() as folder:
        path = write(pathlib.Path(folder) / "t.csv", as_csv(rows, quoting=quoting))
        assert values_of(path) == rows


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(fields, fields), min_size=1))
def test_tsv_holds_all_but_tabs_and_line_ends_and_quotes_are_text(rows: list) -> None:
    rows = [
        {name: "".join(text.split("\t")).replace("\n", " ") for name, text in pair}
        for pair in ((("text", f"x{text}"), ("label", label)) for text, label in rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.tsv", "t.txt"):
            assert values_of(write(pathlib.Path(folder) / name, as_tsv(rows))) == rows


def test_line_ends_of_other_systems_are_line_ends(tmp_path) -> None:
    for number, end in enumerate(("\n", "\r\n", "\r")):
        for name, content in (("csv", as_csv(ROWS)), ("tsv", as_tsv(ROWS))):
            path = write(tmp_path / f"{number}.{name}", content.replace("\n", end))
            assert values_of(path) == ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.ndjson", "t.json", "T.CSV"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(name: str, tmp_path) -> None:
    kinds = {"csv": as_csv, "tsv": as_tsv}
    content = kinds.get(name.lower().rpartition(".")[2], as_objects)(ROWS)
    assert values_of(write(tmp_path / name, BOM + content.encode())) == ROWS


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".bz2", bz2.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_compressed_files_are_what_their_name_says(suffix: str, compress, tmp_path) -> None:
    contents = (("t.csv", as_csv(ROWS)), ("t.tsv", as_tsv(ROWS)), ("t.jsonl", as_objects(ROWS)))
    for name, content in contents:
        path = write(tmp_path / f"{name}{suffix}", compress(content.encode()))
        assert values_of(path) == ROWS
        assert is_table(path) == (name != "t.jsonl")


def test_parquet_and_arrow_keep_the_types_of_their_values(tmp_path) -> None:
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
        assert [row.place for row in read_table(path)] == [f"{path} row 1", f"{path} row 2"]


def test_rows_say_at_which_line_they_stand(tmp_path) -> None:
    """Of a row of several lines it is the first, as an editor shows it."""
    path = write(tmp_path / "t.csv", 'text,label\n"a\nb",1\n\nc,2\n"d\n\ne",3\nf,4\n')
    assert [row.place for row in read_table(path)] == [f"{path} line {i}" for i in (2, 5, 6, 9)]
    path = write(tmp_path / "t.tsv", "text\tlabel\na\t1\n\nb\t2\n")
    assert [row.place for row in read_table(path)] == [f"{path} line {i}" for i in (2, 4)]
    path = write(tmp_path / "t.jsonl", '{"text": 1}\n\n{"text": 2}\n')
    assert [row.place for row in read_table(path)] == [f"{path} line {i}" for i in (1, 3)]


def test_a_field_may_be_as_long_as_a_book(tmp_path) -> None:
    rows = [{"text": "word " * 100_000, "label": "a"}]
    assert values_of(write(tmp_path / "t.csv", as_csv(rows))) == rows


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.csv", "text,label\na,1\nb\n", "line 3 has 1 fields where the header has 2: mend"),
        ("t.csv", 'text,label\na,1\n"b"c,2\n', "line 3 is no CSV .*: mend its quotes"),
        ("t.csv", 'text,label\na,1\n"b,2\nc,3\n', "line 3 is no CSV .*: mend its quotes"),
        ("t.csv", "text,text\na,1\n", "has two columns 'text': name them apart"),
        ("t.csv", "text\tlabel\na\t1\n", "has tabs .* says commas: let it end in .tsv"),
        ("t.csv", "text,label\n", "has no rows"),
        ("t.csv", "", "has no rows"),
        ("t.csv", b"text,label\n\xff\xfe,1\n", "byte 11 is not UTF-8; convert"),
        ("t.tsv", "text\tlabel\na\tb\t1\n", "line 2 has 3 fields where the header has 2"),
        ("t.tsv", "text,label\na,1\n", "has commas .* says tabs: let it end in .csv"),
        ("t.jsonl", '{"text": 1}\n{"text"\n', "line 2 is no JSON .*: write an object on it"),
        ("t.jsonl", '{"text": 1}\n[1]\n', "line 2 is list and no JSON object: write one"),
        ("t.jsonl", "\n\n", "has no rows"),
        ("t.parquet", "text,label", r"t\.parquet is damaged"),
        ("t.arrow", "text,label", r"t\.arrow is damaged"),
        (
            "t.parquet.gz",
            gzip.compress(b"PAR1", mtime=0),
            r"t\.parquet\.gz is compressed: .* unpack it",
        ),
        ("t.csv", b"PAR1\x15", "is Parquet, so give it .* ends in .parquet"),
        ("t.csv", gzip.compress(b"a,b", mtime=0), "it is compressed, so let its name end in .gz"),
        ("t.xlsx", "", "is no table by its name: let it end in .csv, .tsv, .jsonl or .parquet"),
        ("t", "", "is no table by its name"),
    ],
)
def test_what_is_no_table_is_refused(name: str, content: str, complaint: str, tmp_path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=complaint) as error:
        read_table(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*none\.csv"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory: name a file in it"):
        read_table(tmp_path)


@given(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1))
def test_no_more_bad_rows_than_allowed_are_left_out(good: int, bad: int, share: float) -> None:
    complaints = [f"line {i} is bad: mend it" for i in range(bad)]
    if bad <= share * (good + bad):
        check_bad_rows(complaints, good + bad, share)
    else:
        with pytest.raises(
            InputError, match=r"^line 0 is bad: mend it, or allow .*data\.max_bad_fraction"
        ):
            check_bad_rows(complaints, good + bad, share)


def test_bad_rows_may_be_left_out(tmp_path) -> None:
    path = write(tmp_path / "t.tsv", "text\tlabel\na\t1\nb\nc\t2\nd\t3\te\n")
    assert values_of(path, max_bad_fraction=0.5) == [
        {"text": "a", "label": "1"},
        {"text": "c", "label": "2"},
    ]
    with pytest.raises(InputError, match=r"line 3 has 1 fields.*\(2 of 4 rows are bad\)"):
        read_table(path, max_bad_fraction=0.4)


def test_text_of_several_columns_is_joined_and_numbers_are_text() -> None:
    row = TableRow("here", {"a": " one ", "b": 2, "c": 2.5})
    assert row.text(("a",)) == "one" and row.text(("a", "b", "c")) == "one 2 2.5"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "column 'a' is empty: leave the row out"),
        (" \u00a0", "column 'a' is empty"),
        (None, "column 'a' is None, which is no text"),
        (True, "column 'a' is True, which is no text"),
        (["x"], "column 'a' is .*, which is no text: mend the row"),
        (float("nan"), "column 'a' is nan, which is no text"),
    ],
)
def test_what_is_no_text_is_refused_where_it_stands(value: object, complaint: str) -> None:
    with pytest.raises(InputError, match=f"^t.csv line 7: {complaint}"):
        TableRow("t.csv line 7", {"a": value}).text(("a",))


@pytest.mark.parametrize("value", ["", " \u00a0", None, float("nan")])
def test_what_holds_nothing_is_blank(value: object) -> None:
    assert TableRow("here", {"a": "x", "b": value}).first_blank_column(("a", "b")) == "b"
    for full in ("x", 0, False, ["x"]):
        assert not TableRow("here", {"a": full}).first_blank_column(("a", "missing"))


def test_a_column_that_is_missing_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"^here: there is no column 'c', but 'a', 'b': name"):
        TableRow("here", {"a": 1, "b": 2}).text(("c",))
    with pytest.raises(InputError, match="but none: name"):
        TableRow("here", {}).value("c")


def test_objects_may_come_from_anywhere() -> None:
    found = list(parse_objects("input", ['{"a": 1}', " ", '{"b": [null]}']))
    assert found == [TableRow("input line 1", {"a": 1}), TableRow("input line 3", {"b": [None]})]


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory) -> None:
    """A data set as the catalogue has it, of which not every column is text."""
    import tensorflow_datasets as tfds

    tiny = tiny_builder(tmp_path_factory.mktemp("tfds"))
    kind = tfds.features.ClassLabel(names=["sad", "glad"])

    class TinyTable(tiny):  # type: ignore[misc, valid-type]
        features = {  # noqa: RUF012
            "text": tfds.features.Text(),
            "label": kind,
            "all": tfds.features.Sequence(kind),
            "answers": tfds.features.Sequence(tfds.features.Text()),
            "score": tfds.features.Scalar(np.float32),
            "raw": tfds.features.Tensor(shape=(), dtype=np.object_),
            "of": {"year": np.int32},
        }
        records = {  # noqa: RUF012
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


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_records_of_the_catalogue_are_rows_as_those_of_json_lines() -> None:
    found = read_tfds_table("tfds:tiny_table", "train")
    assert [row.place for row in found] == [f"tfds:tiny_table train record {i}" for i in (1, 2, 3)]
    wanted = [("one é", "sad", []), ("two", "glad", ["glad"]), ("three", None, ["sad", "glad"])]
    assert [[row.value(name) for name in ("text", "label", "all")] for row in found] == [
        [*each] for each in wanted
    ]
    for row in found:
        assert row.value("answers") == ["x", "y"] and row.value("score") == 0.5
        assert row.value("of") == {"year": 1999}
        with pytest.raises(InputError, match=r"'raw' .* is no text"):
            row.text(("raw",))


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_a_part_of_a_split_is_one_too() -> None:
    (row,) = read_tfds_table("tfds:tiny_table", "train[1:2]")
    assert row.value("text") == "two"
    with pytest.raises(InputError, match="has no split dev, but train"):
        read_tfds_table("tfds:tiny_table", "dev")
    with pytest.raises(InputError, match="TensorFlow Datasets has no tiny_nothing"):
        read_tfds_table("tfds:tiny_nothing", "train")
