"""Files in SQuAD's layout are read whole or refused with the place that is wrong."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from tfds_datasets import tiny_builder

from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Answer, Question, read_squad, read_squad_tfds


def write(path: pathlib.Path, content: Any) -> pathlib.Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def layout(*questions: dict, passage: str = "Paris is large.") -> dict:
    return {"data": [{"paragraphs": [{"context": passage, "qas": list(questions)}]}]}


def question(name: str = "q", **fields: Any) -> dict:
    return {"id": name, "question": "Where?", "answers": []} | fields


def test_questions_come_with_their_passages_and_answers(tmp_path) -> None:
    answers = [{"text": "Paris", "answer_start": 0}, {"text": "large", "answer_start": 9}]
    found = read_squad(write(tmp_path / "f.json", layout(question(answers=answers))))
    (one,) = found.questions
    assert (one.id, one.text, one.passage) == ("q", "Where?", "Paris is large.")
    assert [(answer.text, answer.start) for answer in one.answers] == [("Paris", 0), ("large", 9)]
    assert found.version == 1


def test_version_2_is_told_by_what_the_questions_say(tmp_path) -> None:
    said = question(is_impossible=True)
    assert read_squad(write(tmp_path / "f.json", layout(said))).version == 2


@pytest.mark.parametrize(
    ("name", "version", "count"), [("dev-v1.1.json", 1, 10_570), ("dev-v2.0.json", 2, 11_873)]
)
def test_the_published_files_have_all_their_questions(name, version, count, data_dir) -> None:
    found = read_squad(data_dir / "squad" / name)
    assert (found.version, len(found.questions)) == (version, count)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", r"is no JSON \(line 1, column 2"),
        ([], "the file has no 'data'"),
        ({"data": {}}, "'data' of the file is no list"),
        ({"data": [{"title": "x"}]}, r"data\[0\] has no 'paragraphs'"),
        (layout({"id": "q"}), r"data\[0\].paragraphs\[0\].qas\[0\] has no 'question'"),
        (layout(question(7)), r"'id' of data\[0\]\.\S* is no text"),
        (layout(question(answers=[{"text": "x"}])), r"answers\[0\] has no 'answer_start'"),
        (layout(question(answers=[{"text": "x", "answer_start": "0"}])), "is no whole number"),
        (layout(question("a"), question("b"), question("a")), r"id 'a' is that of .*qas\[0\] and"),
        (layout(), "has no questions"),
        (layout(question(), passage=" "), r"paragraphs\[0\].qas\[0\] is empty: leave"),
        (layout(question(), passage="word " * 50_000), "has 250,000 characters and may have"),
    ],
    ids=str,
)
def test_another_layout_is_refused_with_its_place(content, complaint: str, tmp_path) -> None:
    with pytest.raises(InputError, match=complaint):
        read_squad(write(tmp_path / "f.json", content))


def test_a_file_that_is_no_text_is_refused(tmp_path) -> None:
    (tmp_path / "f.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(InputError, match="is not UTF-8"):
        read_squad(tmp_path / "f.json")


@pytest.fixture(scope="module")
def tfds_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Data sets like those of the catalogue: records instead of files."""
    from tensorflow_datasets.public_api import features as kinds

    tiny = tiny_builder(tmp_path_factory.mktemp("tfds"))
    answer = kinds.Sequence({"text": kinds.Text(), "answer_start": np.int32})
    text = kinds.Text()
    said = {"context": "Où est Zoé? À Köln.", "question": "Où?"}
    found = {"answers": [{"text": "À Köln", "answer_start": 12}], "is_impossible": False}
    one, other = (
        said | found | {"id": "0"},
        said | {"id": "1", "answers": [], "is_impossible": True},
    )

    class TinySquad(tiny):  # type: ignore[misc, valid-type]
        features = dict.fromkeys(("id", "question", "context"), text) | {
            "answers": answer,
            "is_impossible": np.bool_,
        }
        records = {"train": [one, other], "validation": [one]}  # noqa: RUF012

    class TinyOther(tiny):  # type: ignore[misc, valid-type]
        features = {"id": text, "context": text}  # noqa: RUF012
        records = {"train": [{"id": "0", "context": "x"}]}  # noqa: RUF012

    assert (TinySquad.name, TinyOther.name) == ("tiny_squad", "tiny_other")


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_home")
def test_records_of_tfds_are_questions() -> None:
    found = read_squad_tfds("tfds:tiny_squad", "train")
    assert found.version == 2
    one, other = sorted(found.questions, key=lambda question: question.id)
    assert one == Question("0", "Où?", "Où est Zoé? À Köln.", (Answer("À Köln", 12),))
    assert other.answers == ()
    assert len(read_squad_tfds("tfds:tiny_squad", "train[:1]").questions) == 1


@pytest.mark.usefixtures("tfds_home")
def test_what_tfds_lacks_is_named() -> None:
    with pytest.raises(InputError, match="tfds:tiny_squad has no split dev, but train, validation"):
        read_squad_tfds("tfds:tiny_squad", "dev")
    with pytest.raises(InputError, match="record '0' has only context, id"):
        read_squad_tfds("tfds:tiny_other", "train")
