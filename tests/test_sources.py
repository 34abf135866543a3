"""Documents of every kind of input, and errors of inputs that cannot be read."""

import bz2
import functools
import gzip
import json
import lzma
import os
import pathlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tfds_datasets import tiny_builder

from data_pipelines.errors import InputError
from data_pipelines.text.sources import ReadOptions, read_documents, resolve_inputs

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": functools.partial(lzma.compress, preset=0),
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
every_compression = pytest.mark.parametrize("suffix", COMPRESS)
DOCUMENTS = [["One line.", "Zwei Zeilen: ä, 語."], ["Another document."]]


def save(path: pathlib.Path, content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return str(path)


def text_of(documents: list[list[str]]) -> str:
    return "\n\n".join("\n".join(document) for document in documents) + "\n"


def read(*inputs: str, **read_options: Any) -> list[list[str]]:
    return list(read_documents(inputs, ReadOptions(**read_options)))


lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20)


# Text files


@given(st.lists(lines))
def test_documents_are_blocks_of_stripped_lines(
    tmp_path_factory: pytest.TempPathFactory, written: list[str]
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    expected: list[list[str]] = [[]]
    for line in written:
        line = line.removeprefix("\ufeff") if line is written[0] else line
        if line.strip():
            expected[-1].append(line.strip())
        elif expected[-1]:
            expected.append([])
    assert read(save(path, "\n".join(written))) == [document for document in expected if document]


@every_compression
def test_read_documents_decompresses_files(tmp_path: pathlib.Path, suffix: str) -> None:
    assert read(save(tmp_path / f"a.txt{suffix}", text_of(DOCUMENTS))) == DOCUMENTS


@every_compression
def test_read_documents_reads_documents_larger_than_a_block(
    tmp_path: pathlib.Path, suffix: str
) -> None:
    documents = [[f"{i} é{'x' * (i * 37 % 5000)}" for i in range(n)] for n in (1, 300, 2)]
    documents.append(["y" * 1_000_000])
    assert read(save(tmp_path / f"a.txt{suffix}", text_of(documents))) == documents


@pytest.mark.parametrize(
    "text", ["One line.\nTwo.\n\nThree.", "\n\n\nOne line. \r\n\tTwo.\r\n \t\r\n\n\n Three.\n\n\n"]
)
def test_several_blank_lines_separate_documents(tmp_path: pathlib.Path, text: str) -> None:
    assert read(save(tmp_path / "a.txt", text)) == [["One line.", "Two."], ["Three."]]


@pytest.mark.parametrize("text", ["", "\n", " \n\n\t\n", "\ufeff"])
def test_empty_files_have_no_documents(tmp_path: pathlib.Path, text: str) -> None:
    assert read(save(tmp_path / "a.txt", text)) == []


def test_read_documents_removes_a_byte_order_mark(tmp_path: pathlib.Path) -> None:
    assert read(save(tmp_path / "a.txt", "\ufeffOne.")) == [["One."]]


def test_only_line_feeds_and_carriage_returns_end_lines(tmp_path: pathlib.Path) -> None:
    line = "a\vb\fc\x1cd\x85e\u2028f"
    assert read(save(tmp_path / "a.txt", line)) == [[line]]


@every_compression
@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("length", [3, 65_530, 65_531, 65_535, 65_536])
def test_read_documents_accepts_line_ends_of_all_systems(
    tmp_path: pathlib.Path, end: str, length: int, suffix: str
) -> None:
    documents = [["a" * length, "b"], ["c" * length], ["d", "e"]] * 2
    text = text_of(documents).replace("\n", end)
    assert read(save(tmp_path / f"a.txt{suffix}", text)) == documents
    lines = [[line] for document in documents for line in document]
    assert read(str(tmp_path / f"a.txt{suffix}"), documents="lines") == lines


def test_documents_end_with_their_file(tmp_path: pathlib.Path) -> None:
    paths = [save(tmp_path / name, "text without an end") for name in ("a.txt", "b.txt")]
    assert len(read(*paths)) == 2


@every_compression
def test_memory_does_not_depend_on_file_size(tmp_path: pathlib.Path, suffix: str) -> None:
    peaks = []
    for documents in (10_000, 40_000):
        text = "".join(f"{os.urandom(50).hex()}\n\n" for _ in range(documents))
        path = save(tmp_path / f"{documents}.txt{suffix}", text)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_documents([path])) == documents
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


# Unreadable files


@every_compression
@pytest.mark.parametrize("before", ["", "ä" * 521, "line\n\n" * 50_000])
def test_invalid_utf8_is_rejected_with_its_offset(
    tmp_path: pathlib.Path, suffix: str, before: str
) -> None:
    content = before.encode() + b"caf\xe9 au lait\nmore"
    path = save(tmp_path / f"wiki.txt{suffix}", content)
    byte = len(before.encode()) + 3
    with pytest.raises(InputError) as caught:
        read(path)
    expected = f"{path}: byte {byte} is not UTF-8. Convert it to UTF-8."
    assert str(caught.value) == expected


def test_an_incomplete_character_at_the_end_is_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="byte 4 is not UTF-8"):
        read(save(tmp_path / "a.txt", "text語".encode()[:-1]))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_incomplete_compressed_files_are_rejected(
    tmp_path: pathlib.Path, suffix: str, share: float
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    save(path, os.urandom(3000).hex())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"a\.txt.*: incomplete\. Download it again"):
        read(str(path))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_files_with_a_wrong_compression_suffix_are_rejected(
    tmp_path: pathlib.Path, suffix: str
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_text("plain text under the wrong name\n" * 10)
    with pytest.raises(InputError, match=r"a\.txt.*: damaged \(.*\)\. Download it again"):
        read(str(path))


@pytest.mark.parametrize("zeros", [8, 200_000])
@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_concatenated_and_padded_compressed_files_are_read(
    tmp_path: pathlib.Path, suffix: str, zeros: int
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one ") + COMPRESS[suffix](b"two") + b"\0" * zeros)
    assert read(str(path)) == [["one two"]]


def test_zstd_with_a_long_window_is_read(tmp_path: pathlib.Path) -> None:
    """`zstd --long=28` and more write such files."""
    long = zstandard.ZstdCompressionParameters(
        window_log=28, chain_log=6, hash_log=6, min_match=3, strategy=1
    )
    compressor = zstandard.ZstdCompressor(compression_params=long).compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(compressor.compress(b"One.\n") + compressor.flush())
    assert read(str(path)) == [["One."]]


def test_resolve_inputs_rejects_a_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"/none\.txt: no such file\. Name one that exists"):
        resolve_inputs([str(tmp_path / "none.txt")])


def test_resolve_inputs_rejects_a_pattern_without_matches(tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match=r"/\*\.txt: no file matches\. Fix"):
        resolve_inputs([str(tmp_path / "*.txt")])


def test_directories_stand_for_their_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "corpus" / "part").mkdir(parents=True)
    (tmp_path / "corpus" / ".git").mkdir()
    for name in ("b.txt", "part/a.txt", "a.txt.gz", ".git/config", "_SUCCESS", "part/.hidden"):
        save(tmp_path / "corpus" / name, name)
    assert read(str(tmp_path / "corpus")) == [["a.txt.gz"], ["b.txt"], ["part/a.txt"]]


def test_directories_without_files_are_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: directory without files. Name"):
        read(str(tmp_path))


def test_resolve_inputs_rejects_duplicates(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.txt", "text")
    with pytest.raises(InputError, match=r"a\.txt: 2 times in the inputs\. Name it once"):
        resolve_inputs([path, str(tmp_path / "*.txt")])


def test_resolve_inputs_rejects_an_empty_list() -> None:
    with pytest.raises(InputError, match="No input. Name"):
        resolve_inputs([])


# Patterns


def test_files_of_a_pattern_are_sorted_and_inputs_keep_their_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.txt", "c.md", "deep/d.txt", "x[1].txt"):
        save(tmp_path / name, name)

    def names(*inputs: str) -> list[str]:
        return [document[0] for document in read(*(f"{tmp_path}/{name}" for name in inputs))]

    assert names("c.md", "[ab].txt") == ["c.md", "a.txt", "b.txt"]
    assert names("**/d*") == ["deep/d.txt"]
    assert names("*/?.txt", "a.*") == ["deep/d.txt", "a.txt"]
    assert names("x[1].txt") == ["x[1].txt"]


def test_patterns_are_relative_to_the_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.txt", "text")
    monkeypatch.chdir(tmp_path)
    assert read("*.txt") == [["text"]]


# Tables


def write_table(path: pathlib.Path, table: pyarrow.Table) -> str:
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=3)
    else:
        new = pyarrow.ipc.new_stream if path.stem == "stream" else pyarrow.ipc.new_file
        with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return str(path)


every_table = pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow", "a.feather"])


@every_table
def test_rows_of_tables_are_documents(tmp_path: pathlib.Path, name: str) -> None:
    texts = ["\n".join(document) for document in DOCUMENTS] * 5
    table = pyarrow.table({"id": list(range(10)), "body": texts, "meta": [{"lang": "en"}] * 10})
    path = write_table(tmp_path / name, table)
    assert read(path, field="body") == DOCUMENTS * 5
    assert read(path, field="meta.lang") == [["en"]] * 10
    with pytest.raises(
        InputError, match=r"no column 'text', only body, id, meta\.lang\. Choose one with"
    ):
        read(path)
    with pytest.raises(InputError, match="row 0: field 'id' is int, not text"):
        read(path, field="id")


@every_table
def test_rows_without_text_are_bad_records(tmp_path: pathlib.Path, name: str) -> None:
    path = write_table(tmp_path / name, pyarrow.table({"text": ["One.", None, "Two."]}))
    with pytest.raises(InputError, match="row 1: field 'text' is NoneType"):
        read(path)
    assert read(path, max_bad_fraction=0.5) == [["One."], [], ["Two."]]


@every_table
def test_damaged_tables_are_rejected(tmp_path: pathlib.Path, name: str) -> None:
    path = pathlib.Path(write_table(tmp_path / name, pyarrow.table({"text": ["One."] * 100})))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=rf"{name}: damaged"):
        read(str(path))


# JSON lines


@every_compression
@pytest.mark.parametrize("kind", [".jsonl", ".ndjson", ".json", ".00000-of-01024", ".txt"])
def test_json_lines_are_documents(tmp_path: pathlib.Path, kind: str, suffix: str) -> None:
    records = [{"id": i, "text": text_of([document])} for i, document in enumerate(DOCUMENTS)]
    content = "\n".join(map(json.dumps, records)) + "\n\n"
    assert read(save(tmp_path / f"a{kind}{suffix}", content)) == DOCUMENTS


def test_text_that_begins_with_a_brace_is_not_json(tmp_path: pathlib.Path) -> None:
    documents = [["{x} is a set."], ["{y} too."]]
    assert read(save(tmp_path / "a.txt", text_of(documents))) == documents


@every_compression
@pytest.mark.parametrize(
    ("content", "fix"),
    [
        (b"x" * 257 + b"ustar\x0000", "Unpack the archive"),
        (b"PK\x03\x04\x14\0", "Unpack the archive"),
        (b"PAR1\x15\x04\x15", r"uncompressed, with a name that ends in \.parquet"),
        (b"ARROW1\0\0\xff", r"uncompressed, with a name that ends in \.arrow"),
        (b"%PDF-1.7\n", "Extract the text"),
        (gzip.compress(b"text"), r"Let the name of the compressed file end in \.gz"),
        (lzma.compress(b"text"), r"Let the name of the compressed file end in \.xz"),
        (bz2.compress(b"text"), r"Let the name of the compressed file end in \.bz2"),
        (zstandard.compress(b"text"), r"Let the name of the compressed file end in \.zst"),
    ],
    ids=["tar", "zip", "parquet", "arrow", "pdf", "gzip", "xz", "bzip2", "zstd"],
)
def test_binary_files_are_rejected_with_a_fix(
    tmp_path: pathlib.Path, content: bytes, fix: str, suffix: str
) -> None:
    path = save(tmp_path / f"a.txt{suffix}", content)
    with pytest.raises(InputError, match=rf"a\.txt{suffix}: not text\. .*{fix}"):
        read(path)


def test_blank_lines_in_a_field_do_not_end_a_document(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"body": " One.\\n\\n\\tTwo.\\r\\n"}\n{"body": " \\n"}')
    assert read(path, field="body") == [["One.", "Two."], []]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "', "not JSON"),
        ("[1]", "not an object with a field 'text'"),
        ('{"body": "x", "id": 1}', "no field 'text', only body, id. Choose one with --field"),
        ('{"text": 5}', "field 'text' is int, not text"),
        ('{"text": null}', "field 'text' is NoneType, not text"),
        ('{"text": "\\ud800"}', "field 'text' is not Unicode"),
    ],
)
def test_json_lines_without_text_are_rejected(
    tmp_path: pathlib.Path, line: str, message: str
) -> None:
    path = save(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + line)
    with pytest.raises(InputError, match=rf"a\.jsonl:3: {message}"):
        read(path)


def test_field_names_may_have_a_path(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"doc": {"text": "One."}}\n{"doc.text": "Two."}\n')
    assert read(path, field="doc.text") == [["One."], ["Two."]]


# Bad records

BAD = ['{"text": "One."}', "{", '{"text": 3}', '{"body": ""}', '{"text": "\\ud800"}', "[]", "\xff"]


def test_bad_records_are_skipped_up_to_the_fraction(tmp_path: pathlib.Path, caplog) -> None:
    lines = [*BAD, *['{"text": "Two."}'] * 93]
    path = save(tmp_path / "a.jsonl", "\n".join(lines).encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.jsonl:2: not JSON|byte \d+ is not UTF-8"):
        read(path)
    assert [d for d in read(path, max_bad_fraction=0.06) if d] == [["One."], *[["Two."]] * 93]
    assert "6 of 100 records are bad and skipped. The first: " in caplog.text
    with pytest.raises(
        InputError, match=r"6 of 100 .* more than max_bad_fraction=0\.05\. The first"
    ):
        read(path, max_bad_fraction=0.05)


def test_reading_stops_early_with_too_many_bad_records(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", "{\n" * 100_000)
    with pytest.raises(InputError, match=r"1,001 of 1,001 records are bad"):
        read(path, max_bad_fraction=0.01)


def test_bad_lines_of_text_are_skipped(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.txt", b"One.\ncaf\xe9\nTwo.\n\nThree.\n")
    assert read(path, max_bad_fraction=0.5) == [["One.", "Two."], ["Three."]]


def test_long_documents_are_logged(tmp_path: pathlib.Path, caplog) -> None:
    path = save(tmp_path / "a.txt", "A line.\n" * 20_000)
    assert len(read(path)) == 1
    assert "a document has more than 10000 lines. A blank line ends a document" in caplog.text
    assert caplog.text.count("--documents lines") == 1
    caplog.clear()
    assert len(read(path, documents="lines")) == 20_000 and not caplog.text


def test_read_options_reject_invalid_values() -> None:
    with pytest.raises(InputError, match="documents='pages': unknown unit. Choose blocks or lines"):
        ReadOptions(documents="pages")
    with pytest.raises(InputError, match="max_bad_fraction=2: not a fraction. It must be"):
        ReadOptions(max_bad_fraction=2)


@pytest.fixture(scope="module")
def tfds_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two small TensorFlow Datasets builders, registered by their class names."""
    from tensorflow_datasets.public_api import features as kinds

    tiny = tiny_builder(tmp_path_factory.mktemp("tfds"))
    texts = [{"text": "\n\n".join(lines), "number": i} for i, lines in enumerate(DOCUMENTS)]

    class TinyText(tiny):  # type: ignore[misc, valid-type]
        features = {"text": kinds.Text(), "number": np.int64}  # noqa: RUF012
        records = {"train": texts}  # noqa: RUF012

    class TinyTest(TinyText):
        records = {"test": texts}  # noqa: RUF012

    assert TinyText.name == "tiny_text"
    assert TinyTest.name == "tiny_test"


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_home")
def test_records_of_tfds_are_documents() -> None:
    documents = read("tfds:tiny_text")
    assert sorted(documents) == sorted(DOCUMENTS)
    assert read("tfds:tiny_text") == documents


@pytest.mark.usefixtures("tfds_home")
@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("tfds:tiny_text", "body", "record 0: no field 'body', only number, text"),
        ("tfds:tiny_text", "number", "record 0: field 'number' is int64, not text"),
        ("tfds:tiny_test", "text", "tfds:tiny_test: no split train, only test"),
        ("tfds:no_such_data", "text", "tfds:no_such_data: unknown to TensorFlow Datasets"),
        ("tfds:tiny_text/odd", "text", "tfds:tiny_text/odd: unknown to TensorFlow Datasets"),
    ],
)
def test_unknown_names_in_tfds_are_rejected(source: str, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(source, field=field)
