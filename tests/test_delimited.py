"""CSV and TSV: separators, quotes, headers and columns as their writers leave them."""

import csv
import io
import pathlib
import random

import pytest
from document_files import COMPRESS

from data_pipelines.errors import InputError
from data_pipelines.finetuning.delimited import read_delimited

BOM = b"\xef\xbb\xbf"
ROWS = [
    ["0", 'he said "good", to me', "pos", "1.5"],
    ["1", "two\nlines", "neg", "-2"],
    ["2", "a; b, c", "pos", "0"],
    ["3", "", "neg", "3"],
    ["4", '"all in quotes"', "neg", "1e5"],
]
NAMES = ["id", "text", "label", "score"]


def read(path: pathlib.Path, content: str | bytes, **options) -> tuple[list, list]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    suffix = "." + path.name.split(".")[1]
    names, rows, _, bad = read_delimited(path, suffix, **options)
    assert not bad
    return names, [values for _, values in rows]


def write(rows: list[list[str]], delimiter: str, **options) -> str:
    sink = io.StringIO()
    csv.writer(sink, delimiter=delimiter, lineterminator="\n", **options).writerows(rows)
    return sink.getvalue()


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_read_delimited_reads_quotes_of_writers_of_csv(delimiter, quoting, tmp_path) -> None:
    rows = [NAMES, *([int(row[0]), *row[1:]] for row in ROWS)]
    path = tmp_path / ("t.tsv" if delimiter == "\t" else "t.csv")
    names, values = read(path, write(rows, delimiter, quoting=quoting))
    assert (names, values) == (NAMES, ROWS)


def test_read_delimited_unquotes_tsv_with_one_line_in_the_log(tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    text = 'text\tlabel\nbad\tneg\n"he said ""good"""\tpos\n'
    assert read(tmp_path / "t.tsv", text)[1] == [["bad", "neg"], ['he said "good"', "pos"]]
    assert "1 fields are in quotes, as in CSV, and read without, such as" in caplog.text
    caplog.clear()
    verbatim = read(tmp_path / "t.tsv", text, keep_quotes=True)[1]
    assert verbatim[1] == ['"he said ""good"""', "pos"]
    assert "quotes around fields are read as text, such as" in caplog.text


def test_read_delimited_reads_excels_tabs(tmp_path) -> None:
    """Excel also puts quotes around fields with commas."""
    rows = [f'"Hello, number {i}"\tpos' for i in range(6)]
    text = "\n".join(["text\tlabel", *rows, "Hello\tneg"])
    assert read(tmp_path / "t.txt", text)[1][0] == ["Hello, number 0", "pos"]


@pytest.mark.parametrize(
    "field",
    [
        '"Yes," he said.',  # begins with a quote and does not end with one
        'He said "yes"',
        '"Yes" and "no"',
        '"Yes"',  # needs no quotes
        '"',
        '""',
    ],
)
def test_read_delimited_keeps_quotes_of_texts_in_tsv(field: str, tmp_path) -> None:
    text = f"text\tlabel\n{field}\ta\nb\tb\n"
    assert read(tmp_path / "t.tsv", text)[1] == [[field, "a"], ["b", "b"]]


def test_read_delimited_keeps_quotes_that_begin_and_end_in_two_rows(tmp_path) -> None:
    text = 'text\tlabel\n"It rained,\ta\nand it was cold."\tb\n'
    assert read(tmp_path / "t.tsv", text)[1] == [['"It rained,', "a"], ['and it was cold."', "b"]]


@pytest.mark.parametrize("field", [r'"he said \"x\""', '"all"', '"he ""said"" x"'])
def test_read_delimited_warns_of_other_quotes(field: str, tmp_path, caplog) -> None:
    text = f'text\tlabel\n{field}\ta\n{field}\tb\n{field}\tb\nan odd " one\tc\n'
    assert read(tmp_path / "t.tsv", text)[1][0] == [field, "a"]
    assert "quotes around fields are read as text, such as" in caplog.text


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "sep=,", "sep=\t"])
def test_read_delimited_reads_excels_line_of_the_separator(first: str, tmp_path) -> None:
    delimiter = first.strip('"')[-1]
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\n" + write([NAMES, *ROWS], delimiter))
    names, rows, *_ = read_delimited(path, ".csv")
    assert (names, [values for _, values in rows]) == (NAMES, ROWS)
    assert [number for number, _ in rows] == [3, 4, 6, 7, 8]


def test_read_delimited_leaves_out_columns_without_a_name(tmp_path, caplog) -> None:
    path = tmp_path / "t.csv"
    assert read(path, "v1,v2,,,\nham,a,,,\nspam,b\n") == (
        ["v1", "v2"], [["ham", "a"], ["spam", "b"]],
    )  # fmt: skip
    assert read(path, ",text\n0,a\n1,b\n") == (["text"], [["a"], ["b"]])
    assert not caplog.messages
    assert read(path, "v1,v2,,\nham,a, and b,\n")[1] == [["ham", "a"]]
    assert "1 of their fields have text, such as ' and b' in line 2" in caplog.text


def test_read_delimited_strips_names(tmp_path) -> None:
    assert read(tmp_path / "t.csv", "\ufeff text, label \na,b\n")[0] == ["text", "label"]


def test_read_delimited_leaves_out_spaces_before_quotes(tmp_path, caplog) -> None:
    path = tmp_path / "t.csv"
    with caplog.at_level("INFO"):
        assert read(path, 'text, label\n"a, ""b""", "c, d"\n')[1] == [['a, "b"', "c, d"]]
    assert "spaces before quotes are left out, as before ' \"c'" in caplog.text
    assert read(path, 'label,text\na, "b" he said\n')[1] == [["a", ' "b" he said']]


def test_read_delimited_names_separators_of_files_without_a_header(tmp_path) -> None:
    with pytest.raises(InputError, match=r"semicolons between .* Rename it to end in \.csv"):
        read(tmp_path / "t.txt", "I am sad;sadness\nI, too;joy\n", columns=["text", "label"])
    assert read(tmp_path / "t.txt", "text, or more\na\nb\n")[1] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("a,b\n1,2\n1\n", ":3: 1 fields instead of 2. Fix the row"),
        (",a,b\n0,1,2\n1,2\n", ":3: 2 fields instead of 3. Fix the row"),
        ("a,b,\n1,2,,\n", ":2: 4 fields instead of 3. Fix the row"),
        (
            "a,b\n1,2\na,b\n",
            ":3: repeats the first line. Delete the row if that is a header, name the columns if "
            "not with data.columns",
        ),
    ],
)
def test_read_delimited_returns_errors_of_bad_rows(content: str, error: str, tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert read_delimited(path, ".csv").bad == [f"{path}{error}"]


def test_read_delimited_names_columns_without_a_header(tmp_path) -> None:
    content = '"3","Wall St.","Bears"\n'
    columns = ["label", "title", "text"]
    assert read(tmp_path / "t.csv", content, columns=columns) == (
        columns, [["3", "Wall St.", "Bears"]],
    )  # fmt: skip


def test_read_delimited_rejects_two_columns_of_a_name(tmp_path) -> None:
    with pytest.raises(InputError, match=r"two columns 'a'\. Rename one"):
        read(tmp_path / "t.csv", "a, a,b\n1,2,3\n")


NUM_MUTATIONS = 40  # 1,000 were run for each format


def mutate(draw: random.Random, delimiter: str, order: list[int]) -> tuple[str, bytes, str]:
    """Return suffix and content of a file with the same rows in another writer's style.

    The third value is the line end of the file, also of lines within a field.
    """
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    rows = [[row[i] for i in order] for row in (NAMES, *ROWS)]
    if draw.random() < 0.3:
        rows = [["" if number == 0 else str(number), *row] for number, row in enumerate(rows)]
    if delimiter != "\t" and draw.random() < 0.3:
        rows = [[*row, "", ""] for row in rows]
    if quoting == csv.QUOTE_NONNUMERIC:
        is_score = [name in ("id", "score") for name in rows[0]]
        for row in rows[1:]:
            for i, is_number in enumerate(is_score):
                row[i] = Raw(row[i]) if is_number else row[i]
    content = write(rows, delimiter, quoting=quoting)
    if delimiter == ";" and draw.random() < 0.3:
        content = f"sep=;\n{content}"
    content = content.rstrip("\n") + draw.choice(["", "\n", "\n\n", "\n\n\n"])
    data = draw.choice([b"", BOM]) + content.encode()
    end = draw.choice(["\n", "\r\n", "\r"])
    suffix = draw.choice(["", *COMPRESS])
    return suffix, COMPRESS.get(suffix, bytes)(data.replace(b"\n", end.encode())), end


class Raw(float):
    """Number that a writer of CSV writes as its text."""

    def __new__(cls, text: str) -> "Raw":
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_read_delimited_gives_the_same_rows_for_all_writers(delimiter, tmp_path) -> None:
    draw = random.Random(0)
    for _ in range(NUM_MUTATIONS):
        order = draw.sample(range(len(NAMES)), len(NAMES))
        suffix, data, end = mutate(draw, delimiter, order)
        name = "t.tsv" if delimiter == "\t" else "t.csv"
        names, rows = read(tmp_path / f"{name}{suffix}", data)
        assert sorted(names) == sorted(NAMES)
        expected = [[field.replace("\n", end) for field in row] for row in ROWS]
        assert [[row[names.index(name)] for name in NAMES] for row in rows] == expected, data


@pytest.mark.parametrize("row_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_read_delimited_keeps_the_line_ends_within_fields(tmp_path, name: str, row_end) -> None:
    """A writer of CSV adds its own line ends behind rows alone."""
    delimiter = "," if name == "t.csv" else "\t"
    rows = [["text", "n"], ["a\r\nb\n\nc\rd\r\n", "1"], ["e", "2"], ["\r", "3"]]
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter=delimiter, lineterminator=row_end, quoting=csv.QUOTE_ALL)
    writer.writerows(rows)
    path = tmp_path / name
    path.write_bytes(sink.getvalue().encode())
    table = read_delimited(path, path.suffix)
    assert [values for _, values in table.rows] == rows[1:]
    assert [number for number, _ in table.rows] == [2, 8, 9]
