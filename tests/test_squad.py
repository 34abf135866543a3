"""Data sets in SQuAD's layout and the errors of other layouts."""

import csv
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from tfds_datasets import register_builder

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    read_squad,
    read_squad_tfds,
)


def write(path: pathlib.Path, content: Any) -> pathlib.Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def layout(*questions: dict, passage: str = "Paris is large.") -> dict:
    return {"data": [{"paragraphs": [{"context": passage, "qas": list(questions)}]}]}


def question(name: str = "q", **fields: Any) -> dict:
    return {"id": name, "question": "Where?", "answers": []} | fields


def row(**fields: Any) -> dict:
    """A question as a row, as transformers reads it."""
    answers = {"text": ["Paris"], "answer_start": [0]}
    content = {"id": "q", "context": "Paris is large.", "question": "Where?", "answers": answers}
    return {"data": [content | fields]}


def test_read_squad_reads_passages_and_answers(tmp_path) -> None:
    answers = [{"text": "Paris", "answer_start": 0}, {"text": "large", "answer_start": 9}]
    data = read_squad(write(tmp_path / "f.json", layout(question(answers=answers))))
    (parsed,) = data.questions
    assert (parsed.id, parsed.text, parsed.passage) == ("q", "Where?", "Paris is large.")
    assert [(answer.text, answer.start) for answer in parsed.answers] == [
        ("Paris", 0),
        ("large", 9),
    ]
    assert data.version == 1


def test_read_squad_keeps_offsets_in_csv_with_line_ends_of_windows(tmp_path) -> None:
    passage = "\r\n".join(f"Line {i}: the answer is 7 here and 7 there." for i in range(40))
    start = passage.index("7 there", 1500)
    answers = json.dumps({"text": ["7"], "answer_start": [start]})
    with (tmp_path / "f.csv").open("w", newline="") as file:
        rows = ["id", "context", "question", "answers"], ["q", passage, "How many?", answers]
        csv.writer(file).writerows(rows)
    (parsed,) = read_squad(tmp_path / "f.csv").questions
    assert parsed.passage == passage and parsed.answers == (Answer("7", start),)


def test_read_squad_keeps_offsets_in_csv_whose_line_ends_were_converted(tmp_path) -> None:
    """The offsets count "\\n", which Git writes as "\\r\\n" on Windows."""
    passage = "\n".join(f"Line {i}: the answer is 7 here and 7 there." for i in range(40))
    start = passage.index("7 there", 1500)
    answers = json.dumps({"text": ["7 there"], "answer_start": [start]}).replace('"', '""')
    text = f'id,context,question,answers\nq,"{passage}",How many?,"{answers}"\n'
    (tmp_path / "f.csv").write_bytes(text.replace("\n", "\r\n").encode())
    (parsed,) = read_squad(tmp_path / "f.csv").questions
    assert parsed.passage == passage and parsed.answers == (Answer("7 there", start),)


def test_read_squad_detects_version_2_by_is_impossible(tmp_path) -> None:
    fields = question(is_impossible=True)
    assert read_squad(write(tmp_path / "f.json", layout(fields))).version == 2


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "version", "count"), [("dev-v1.1.json", 1, 10_570), ("dev-v2.0.json", 2, 11_873)]
)
def test_read_squad_reads_all_questions_of_published_files(name, version, count, data_dir) -> None:
    data = read_squad(data_dir / "squad" / name)
    assert (data.version, len(data.questions)) == (version, count)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"f\.json:1: not JSON \(column 2"),
        (7, "top level: no field 'data'"),
        ({"version": 1, "qas": []}, "top level: no field 'data', only 'version', 'qas'"),
        ([], "no questions. Give"),
        ([{"story": "x"}], r"f\.json: \[0\]: no field 'paragraphs', only 'story'"),
        ({"data": {}}, "top level: field 'data' is not a list"),
        ({"data": [{"title": "x"}]}, r"data\[0\]: no field 'paragraphs'"),
        (layout({"id": "q"}), r"data\[0\].paragraphs\[0\].qas\[0\]: no field 'question'"),
        (layout(question([7])), r"data\[0\]\.\S*: field 'id' is not a string"),
        (layout(question(True)), r"data\[0\]\.\S*: field 'id' is not a string"),
        (layout({"question": "Who?"}), r"no field 'id', only 'question'"),
        (layout(question(is_impossible="perhaps")), "'is_impossible' is 'perhaps'. Write true or"),
        (layout(question(answers=["Paris"])), r"answers\[0\]: 'Paris' has no answer_start"),
        (
            row(answers={"text": ["x", "y"], "answer_start": [0]}),
            "2 texts and 1 values of answer_s",
        ),
        (row(answers="array(['x'])"), r"answers: \"array\(\['x'\]\)\" is not JSON\. Save"),
        (row(answers=None, answer="Paris"), "no field 'answer_start', only 'id'"),
        (row(answers=7), "field 'answers' is not a list"),
        (row(context=None), "field 'context' is not a string"),
        (layout(question(answers=[{"text": "x"}])), r"answers\[0\]: no field 'answer_start'"),
        (layout(question(answers=[{"text": "x", "answer_start": "0"}])), "is not a whole number"),
        (
            layout(question("a"), question("b"), question("a")),
            r"qas\[2\]: id 'a' is also at .*qas\[0\]\. Give",
        ),
        (layout(), "no questions. Give"),
        (
            layout(question(), passage=" "),
            r"paragraphs\[0\].qas\[0\]: the passage is empty\. Remove",
        ),
        (
            layout(question(), passage="word " * 50_000),
            "has 250,000 characters, more than 200,000. Split",
        ),
    ],
    ids=str,
)
def test_read_squad_rejects_another_layout_with_its_location(
    content, message: str, tmp_path
) -> None:
    with pytest.raises(InputError, match=message):
        read_squad(write(tmp_path / "f.json", content))


def test_read_squad_rejects_other_encodings(tmp_path) -> None:
    (tmp_path / "f.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(InputError, match=r"byte 10 is not UTF-8\. Convert"):
        read_squad(tmp_path / "f.json")


@pytest.fixture(scope="module")
def tfds_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """TensorFlow Datasets builders with and without SQuAD's fields."""
    kinds = pytest.importorskip("tensorflow_datasets").features

    directory = tmp_path_factory.mktemp("tfds")
    answer = kinds.Sequence({"text": kinds.Text(), "answer_start": np.int32})
    text = kinds.Text()
    passage = {"context": "Où est Zoé? À Köln.", "question": "Où?"}
    answered = {"answers": [{"text": "À Köln", "answer_start": 12}], "is_impossible": False}
    answerable, impossible = (
        passage | answered | {"id": "0"},
        passage | {"id": "1", "answers": [], "is_impossible": True},
    )

    features = dict.fromkeys(("id", "question", "context"), text) | {
        "answers": answer,
        "is_impossible": np.bool_,
    }
    records = {"train": [answerable, impossible], "validation": [answerable]}
    register_builder(directory, "TinySquad", features, records)
    features = {"id": text, "context": text}
    records = {"train": [{"id": "0", "context": "x"}]}
    register_builder(directory, "TinyOther", features, records)


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_home")
def test_read_squad_tfds_reads_records() -> None:
    data = read_squad_tfds("tfds:tiny_squad", "train")
    assert data.version == 2
    first, second = sorted(data.questions, key=lambda question: question.id)
    assert first == Question("0", "Où?", "Où est Zoé? À Köln.", (Answer("À Köln", 12),), False)
    assert (second.answers, second.is_impossible) == ((), True)
    assert len(read_squad_tfds("tfds:tiny_squad", "train[:1]").questions) == 1


@pytest.mark.seconds
@pytest.mark.usefixtures("tfds_home")
def test_read_squad_tfds_rejects_unknown_splits_and_missing_fields() -> None:
    with pytest.raises(InputError, match="tfds:tiny_squad: no split dev, only train, validation"):
        read_squad_tfds("tfds:tiny_squad", "dev")
    with pytest.raises(InputError, match=r"record '0': only fields context, id\. Give"):
        read_squad_tfds("tfds:tiny_other", "train")
