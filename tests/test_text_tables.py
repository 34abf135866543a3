"""Tables of text: CSV and TSV as input of pre-training."""

import pathlib
import time
from collections.abc import Iterator

import pytest
from document_files import every_compression, read, save

from data_pipelines.errors import InputError
from data_pipelines.text import tables

DOCUMENTS = [["Tea, and bread.", "It was old."], ['He said "no".'], ["Rain; wind | sea."]] * 3
CSV = """id,text,label\n""" + "".join(
    '{},"{}",x\n'.format(i, "\n".join(lines).replace('"', '""'))
    for i, lines in enumerate(DOCUMENTS)
)


@every_compression
@pytest.mark.parametrize("documents", ["blocks", "lines", "wrapped"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a"])
def test_csv_is_read_by_its_column(
    tmp_path: pathlib.Path, suffix: str, name: str, documents: str, caplog
) -> None:
    caplog.set_level("INFO")
    path = save(tmp_path / f"{name}{suffix}", CSV)
    expected = DOCUMENTS if documents != "wrapped" else [[" ".join(lines)] for lines in DOCUMENTS]
    assert read(path, documents=documents) == expected
    (message,) = caplog.messages
    assert "the cells of column 'text' of 'id', 'text', 'label', such as 'Tea, and" in message
    with pytest.raises(InputError, match=r"a table without a column 'body': 'id', 'text', 'label'"):
        read(path, documents=documents, field="body")


@pytest.mark.parametrize(
    "content",
    [
        'text\n"One, two.\nThree."\n"Four, ""five""."\n',  # one column, quoted where needed
        '\n\nsep=;\nid;text\n1;"One, two.\nThree."\n2;"Four, ""five""."\n',  # Excel
        ',text,\n0,"One, two.\nThree.",\n1,"Four, ""five"".",\n',  # pandas's index; a comma
        'id|text\n1|"One, two.\nThree."\n2|"Four, ""five""."\n',
        'id\ttext\n1\t"One, two.\nThree."\n2\tFour, "five".\n',  # an unquoted TSV cell
        '"id"\t"text"\t"n"\n"1"\t"One, two.\nThree."\t"3"\n2\tFour, "five".\t4\n',
    ],
)
def test_dialects_of_tables_are_read(tmp_path: pathlib.Path, content: str) -> None:
    path = save(tmp_path / "a.csv", content)
    assert read(path) == [["One, two.", "Three."], ['Four, "five".']]


def test_quotes_in_tsv_may_be_text(tmp_path: pathlib.Path) -> None:
    cells = ['"Well," he said.', '"Unclosed quote', 'A 5" disk.', '"Whole."', "End."]
    content = "text\tid\n" + "".join(f"{cell}\t{i}\n" for i, cell in enumerate(cells))
    expected = [[cell] for cell in ['"Well," he said.', *cells[1:3], "Whole.", "End."]]
    assert read(save(tmp_path / "a.tsv", content)) == expected
    content = "id\ttext\n" + "".join(f"{i}\t{cell}\n" for i, cell in enumerate(cells))
    assert read(save(tmp_path / "b.tsv", content)) == expected


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "id,body\n1,One.\n", "'id', 'body'"),
        ("a.csv", 'review\n"One, two."\nThree.\n', "'review'"),
        ("a.csv", "1\teng\tOne.\n2\teng\tTwo.\n" * 5, "'1', 'eng', 'One.'"),  # Tatoeba
        ("a.txt", "1\tOne.\n2\tTwo.\n" * 5, "'1', 'One.'"),  # Leipzig
    ],
)
def test_tables_without_the_column_are_rejected(tmp_path, name, content, columns) -> None:
    expected = rf"{name}: a table without a column 'text': {columns}\. Choose one with --field, or"
    for documents in ("blocks", "lines"):
        with pytest.raises(InputError, match=expected):
            read(save(tmp_path / name, content), documents=documents)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("num_lines", [20, 150, 500])
def test_tables_with_long_cells_are_tables(tmp_path: pathlib.Path, name: str, num_lines) -> None:
    """Cells of 20 lines, and those that the end of the first lines cuts."""
    delimiter = "," if name == "a.csv" else "\t"
    document = [f"Paragraph {i}, with some text, and more." for i in range(num_lines)]
    rows = [f'{i}{delimiter}"{chr(10).join(document)}"\n' for i in range(50)]
    path = save(tmp_path / name, f"id{delimiter}body\n" + "".join(rows))
    with pytest.raises(InputError, match=r"a table without a column 'text': 'id', 'body'"):
        read(path)
    assert read(path, field="body") == [document] * 50


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize(
    "text",
    [
        "Tea, and bread.\n\nRain, and wind.\n",
        "Tea, a drink of leaves\nBread, a food of dough\nRain, a kind of water\n" * 4,
        "A line.\n\tAn indented line.\n",
        "\tOne.\n\tTwo.\n\tThree.\n\tFour.\n\tFive.\n\tSix.\n",
        "One line, with the word text, and commas.\n",
        '"Quoted," she said, "on every line."\n"Yes," he said, "I see."\n' * 9,
        "text\n",
        "1,234\n\n5,678\n\n9,000\n\n1,234\n\n1,234\n\n1,234\n\n1,234\n\n",
    ],
)
def test_text_is_no_table(tmp_path: pathlib.Path, name: str, text: str) -> None:
    expected = [block.split("\n") for block in text.strip("\n").split("\n\n")]
    expected = [[line.strip() for line in block] for block in expected]
    assert read(save(tmp_path / name, text)) == expected


@pytest.mark.parametrize("later", ["", '1800,"Quoted."\n', '1800,"Quoted.\nTwice."\n'])
def test_an_open_quote_damages_its_own_row_alone(tmp_path: pathlib.Path, later: str) -> None:
    rows = [f"{i},Text {i}.\n" for i in range(2000)]
    rows[1000] = '1000,"He said hello\n'
    rows[1800] = later or rows[1800]
    path = save(tmp_path / "a.csv", "id,text\n" + "".join(rows))
    with pytest.raises(InputError, match=r"a\.csv:1002: not a row \(.*\)\. Fix its quotes\."):
        read(path)
    expected = [[f"Text {i}."] for i in range(2000)]
    expected[1800] = ["Quoted.", "Twice."] if "Twice" in later else expected[1800]
    expected[1800] = ["Quoted."] if later == '1800,"Quoted."\n' else expected[1800]
    del expected[1000]
    assert [d for d in read(path, max_bad_fraction=0.01) if d] == expected


def test_an_open_quote_takes_the_memory_of_a_document(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "MAX_DOCUMENT_BYTES", 1 << 20, raising=False)
    row = "1,A row without quotes.\n"
    num_rows = 0

    def lines() -> Iterator[str]:
        nonlocal num_rows
        yield from ("id,text", '1,"He said hello')
        for num_rows in range(100_000):  # noqa: B007 (read by the test)
            yield row.strip()

    header = tables.Header(",", ("id", "text"))
    rows = tables.read_rows("a.csv", lines(), header, "text")
    number, error = next(rows)
    assert number == 2 and str(error) == "a.csv:2: not a row (an open quote). Fix its quotes."
    assert num_rows < 20_000
    assert next(rows) == (3, {"text": "A row without quotes."})
    assert sum(1 for _ in rows) == 99_999
    whole = "A line of a cell.\n" * 10_000
    path = save(tmp_path / "a.csv", f'id,text\n1,"{whole}"\n2,Two.\n')
    assert [len(document) for document in read(path)] == [10_000, 1]


def test_open_quotes_of_tsv_take_linear_time(tmp_path: pathlib.Path) -> None:
    seconds = []
    for count in (2_000, 16_000):
        path = save(tmp_path / f"{count}.tsv", "id\ttext\n" + '1\t"He said\n' * count)
        start = time.process_time()
        assert read(path) == [['"He said']] * count
        seconds.append(time.process_time() - start)
    assert seconds[1] < 24 * seconds[0]


def test_damaged_rows_are_bad_records(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.csv", "id,text\n1,One.\n2,Two, too.\n" + "3,Three.\n" * 18)
    with pytest.raises(InputError, match=r"a\.csv:3: 3 cells instead of 2\. Fix the row\."):
        read(path)
    assert [d for d in read(path, max_bad_fraction=0.1) if d] == [["One."], *[["Three."]] * 18]
    path = save(tmp_path / "b.csv", 'id,text\n1,One.\n\n2,"Two" too.\n3,Three.\n')
    with pytest.raises(InputError, match=r"b\.csv:4: not a row \(.*\)\. Fix its quotes\."):
        read(path)
    path = save(tmp_path / "c.csv", "text,text\n1,2\n")
    with pytest.raises(InputError, match=r"c\.csv: two columns 'text'"):
        read(path)
