"""JSON files in all layouts in which rows are written."""

import json
from typing import Any

import pytest

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_object, read_json_records

ROWS = [{"text": "a\nb", "label": 1}, {"text": "é", "label": None}]
COLUMNS = {name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in ROWS[0]}


def read(text: str, name: str = "t.json", **options: Any) -> list[dict]:
    return [
        record if isinstance(record, dict) else parse_object(location, record)
        for location, record in read_json_records(name, text.split("\n"), **options)
    ]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        {"version": 1, "data": ROWS},
        {"schema": {"fields": []}, "data": ROWS},
        COLUMNS,
        {str(i): row for i, row in enumerate(ROWS)},
        {"columns": ["text", "label"], "index": [0, 1], "data": [[*r.values()] for r in ROWS]},
    ],
)
def test_read_json_records_reads_one_value_with_all_rows(value: object, indent, caplog) -> None:
    caplog.set_level("INFO")
    for text in (json.dumps(value, indent=indent), f"\n{json.dumps(value, indent=indent)}\n\n"):
        assert read(text) == ROWS
    assert ", 2 rows." in caplog.text


def test_read_json_records_reads_objects_over_several_lines() -> None:
    assert read("\n".join(json.dumps(row, indent=2) for row in ROWS)) == ROWS
    lines = ",\n".join(map(json.dumps, ROWS))
    assert read(f"[{lines}]") == read(f"[\n{lines}\n]\n") == ROWS


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a", "entities": [{"start": 0}]},
        {"words": ["a", "b"], "tags": ["O", "O"]},
        {"premise": {"en": "a", "de": "b"}, "hypothesis": {"en": "c", "de": "d"}},
        {"text": "a", "items": [{"start": 0}]},
        {"text": "a", "columns": ["x"], "data": 5},
        {"text": "a", "columns": 5, "data": [[1]]},
        {"id": 1, "examples": [{"text": "x"}], "context": "c", "question": "q", "choices": ["a"]},
    ],
)
def test_read_json_records_keeps_one_row_with_nested_values(row: dict) -> None:
    for indent in (None, 1):
        assert read(json.dumps(row, indent=indent)) == [row]


@pytest.mark.parametrize("key", ["data", "rows", "records", "examples", "items"])
def test_read_json_records_keeps_one_row_with_a_list_of_objects(key: str) -> None:
    row = {"id": 1, "body": "a", key: [{"start": 0}]}
    for name in ("t.jsonl", "t.ndjson", "T.JSONL", "t.jsonl.gz"):
        assert read(f"\n{json.dumps(row)}\n", name) == [row]
    for indent in (None, 1):
        assert read(json.dumps(row, indent=indent), text_fields=("body",)) == [row]
        assert read(json.dumps(row, indent=indent)) == row[key]
    wrapped = json.dumps({"version": 1, key: ROWS}, indent=1)
    assert read(wrapped, "t.jsonl") == ROWS  # several lines are no JSON lines


def test_read_json_records_reads_json_lines_one_at_a_time() -> None:
    lines = iter(['{"a": 1}', "", '{"b"', "[1]", '{"c": 2}'])
    records = read_json_records("t.jsonl", lines)
    assert next(records) == ("t.jsonl:1", '{"a": 1}') and next(lines) == "[1]"
    damaged = [*read_json_records("t.jsonl", ['{"b"', '{"a": 1}'])]
    assert damaged == [("t.jsonl:1", '{"b"'), ("t.jsonl:2", '{"a": 1}')]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[\n{"a": 1},\n{"a" 2}\n]',
            r"^t\.json:3: not JSON .*\. Fix the file, or write one object",
        ),
        ('[\n{"a": 1}\n', r"^t\.json:2: not JSON"),
        ('\n[{"a": 1}]\n[2]', r"^t\.json:2: list, not a JSON object\. Write one object per line"),
        ('[{"a": 1}, 2]', r"^t\.json record 2: int, not a JSON object"),
        ('["a", 1]', r"^t\.json:1: list, not a JSON object"),
        ("[" * 100_000 + "\n", r"^t\.json:1: not JSON"),
        ("[\n" * 100_000, r"^t\.json: not JSON \(it is nested too deeply\)"),
        ("text", r"^t\.json:1: not JSON .* Write one object per line"),
    ],
)
def test_read_json_records_rejects_other_values(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)
