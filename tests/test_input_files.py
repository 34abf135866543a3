"""Files of inputs: tables of any column names, and lines in the format of the pipeline."""

from types import SimpleNamespace

import pytest

from bertjax.cli.input_files import input_file_reader
from bertjax.tasks.fill_mask import FillMaskPipeline
from bertjax.tasks.generation.continuation import TextGenerationPipeline
from bertjax.tasks.input_lines import InputLines, InvalidInput
from bertjax.tasks.pipeline import Pipeline, PredictInput
from bertjax.tasks.question_answering.pipeline import QuestionAnsweringPipeline
from bertjax.tasks.token_classification.pipeline import TokenClassificationPipeline
from data_pipelines import log
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


BLANK = "blank. Write an input or delete it."


@pytest.mark.parametrize("name", ["", "lines.jsonl"])
def test_with_invalid_has_an_input_or_an_error_for_every_line(name: str) -> None:
    lines = ["\n", '{"text": "one"}\n', " \n", "{two\n", '{"text": "three"}\n', "\n"]
    inputs = Pipeline.parse_lines(lines, name)
    assert isinstance(inputs, InputLines)
    items = list(inputs.with_invalid())
    assert [item.location for item in items] == [f"line {i}" for i in range(1, 7)]
    assert [item[1] for item in items if isinstance(item, PredictInput)] == [
        {"text": "one"},
        {"text": "three"},
    ]
    errors = [item.error for item in items if isinstance(item, InvalidInput)]
    assert errors[:2] + errors[3:] == [f"line {i}: {BLANK}" for i in (1, 3, 6)]
    assert errors[2].startswith("line 4: not JSON")
    with pytest.raises(InputError, match=r"^line 4: not JSON"):
        list(Pipeline.parse_lines(lines, name))


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt.gz", "notes"])
def test_line_of_a_text_file_that_starts_with_a_brace_is_a_text_unless_an_object(
    name: str, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(log, "_logged", set())
    lines = ["{{Infobox film}}\n", '{"text": "one"}\n', "{two\n"]
    contents = [item.content for item in Pipeline.parse_lines(lines, name)]
    assert contents == ["{{Infobox film}}", {"text": "one"}, "{two"]
    assert caplog.messages == [
        f"{name}: lines that start with a brace and are no JSON objects are texts, the first at "
        "line 1. If all lines are objects, name the file .jsonl."
    ]


def test_blank_lines_in_one_json_list_are_no_inputs() -> None:
    lines = ["[\n", '{"text": "one"},\n', "\n", '{"text": "two"}\n', "]\n", "\n"]
    inputs = Pipeline.parse_lines(lines, "texts.json")
    assert isinstance(inputs, InputLines)
    assert [item.location for item in inputs.with_invalid()] == ["record 1", "record 2"]


def test_blank_lines_between_questions_are_invalid() -> None:
    question = '{"question": "c?", "context": "a"}\n'
    inputs = QuestionAnsweringPipeline.parse_lines(["\n", question, "\n", question])
    assert isinstance(inputs, InputLines)
    errors = [item.error for item in inputs.with_invalid() if isinstance(item, InvalidInput)]
    assert errors == [f"line 1: {BLANK}", f"line 3: {BLANK}"]


def test_blank_lines_of_conll_end_sentences() -> None:
    lines = ["ba\tO\n", "\n", "do\tO\n"]
    inputs = TokenClassificationPipeline.parse_lines(lines, "words.conll")
    assert not isinstance(inputs, InputLines)
    assert [item.content for item in inputs] == [{"words": ["ba"]}, {"words": ["do"]}]


@pytest.mark.parametrize("pipeline", [FillMaskPipeline, TextGenerationPipeline])
def test_models_of_text_read_objects_in_files_of_json_lines_alone(pipeline) -> None:
    lines = ['{"text": "ba [MASK]"}', '{"text": "do"}']
    contents = [item.content for item in pipeline.parse_lines(lines, "texts.jsonl")]
    assert contents == [{"text": "ba [MASK]"}, {"text": "do"}]
    assert [item.content for item in pipeline.parse_lines(lines, "texts.txt")] == lines
