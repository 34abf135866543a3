"""Parquet and Arrow files as documents."""

import io
import json
import pathlib

import numpy as np
import pyarrow
import pytest
from document_files import DOCUMENTS, read
from etils import epath
from pyarrow import parquet

from data_pipelines.errors import InputError
from data_pipelines.text.arrow_tables import read_class_names, read_column, read_rows


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


def test_damaged_offsets_of_a_text_column_are_rejected(tmp_path) -> None:
    path, content = epath.Path(tmp_path / "x.arrow"), io.BytesIO()
    table = pyarrow.table({"text": [f"text {i}" for i in range(50)]})
    with pyarrow.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    offsets = np.arange(51, dtype="<i4") * 6  # the first ones, before "text 10"
    damaged = content.getvalue().replace(offsets[2:4].tobytes(), b"\xff\xff\xff\x7f" * 2)
    assert damaged != content.getvalue()
    path.write_bytes(damaged)
    for read_values in (read_rows, lambda path: read_column(path, "text")):
        with pytest.raises(InputError, match="damaged"):
            list(read_values(path))


class TensorFlowFile:
    """A file with the methods of TensorFlow's `GFile` that are those of Python's files."""

    def __init__(self, file: io.BytesIO) -> None:
        self.read, self.seek, self.tell = file.read, file.seek, file.tell
        self._file = file

    def __enter__(self) -> "TensorFlowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@every_table
def test_tables_in_a_bucket_are_read(tmp_path: pathlib.Path, monkeypatch, name: str) -> None:
    feature = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    table = pyarrow.table({"text": [f"Text {i}." for i in range(10)], "label": [0, 1] * 5})
    table = table.replace_schema_metadata({"huggingface": json.dumps(feature)})
    content = pathlib.Path(write_table(tmp_path / name, table)).read_bytes()
    path = epath.Path(f"gs://bucket/{name}")
    monkeypatch.setattr(type(path), "exists", lambda path: True)
    monkeypatch.setattr(type(path), "open", lambda path, mode: TensorFlowFile(io.BytesIO(content)))
    assert list(read_rows(path)) == table.to_pylist()
    assert list(read_column(path, "text")) == table["text"].to_pylist()
    assert read_class_names(path) == {"label": ["neg", "pos"]}
