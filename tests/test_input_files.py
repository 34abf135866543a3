"""Files of inputs: tables of any column names, and lines in the format of the pipeline."""

from types import SimpleNamespace

import pytest

from bertjax.cli.input_files import input_file_reader
from bertjax.tasks.pipeline import Pipeline
from data_pipelines.errors import InputError


def pipeline_with(columns: str) -> Pipeline:
    return SimpleNamespace(config=SimpleNamespace(data={"columns": columns}))  # type: ignore[return-value]


def test_table_without_a_header_has_the_columns_of_the_run(tmp_path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("7\tgood\n8\tbad\n")
    rows = list(input_file_reader(str(path))(pipeline_with("id+text")))
    assert [row.content for row in rows] == [
        {"id": "7", "text": "good"},
        {"id": "8", "text": "bad"},
    ]
    (row,) = input_file_reader(str(path))(pipeline_with(""))
    assert row.content == {"7": "8", "good": "bad"}
    with pytest.raises(InputError, match="2 fields instead of 3"):
        list(input_file_reader(str(path))(pipeline_with("id+text+more")))


def test_lines_are_those_of_the_pipeline(tmp_path) -> None:
    path = tmp_path / "lines.txt.gz"
    with pytest.raises(InputError, match="no such file"):
        input_file_reader(str(path))
    path = tmp_path / "lines"
    path.write_text('one\n\n{"text": "two"}\n')
    inputs = list(input_file_reader(str(path))(Pipeline))
    assert [item.content for item in inputs] == ["one", {"text": "two"}]
    assert [item.location for item in inputs] == ["line 1", "line 3"]
