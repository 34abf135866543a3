"""TriviaQA as questions on passages that contain an answer."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import read_squad
from data_pipelines.finetuning.question_answering.triviaqa import MAX_DOCUMENT_WORDS, find_answers


@given(before=st.text(" .,-(é日x", max_size=20), text=st.sampled_from(["Oslo", "St. Ives", "C++"]))
def test_find_answers_returns_the_spelling_of_the_passage(before: str, text: str) -> None:
    passage = f"{before} {text.upper()} {text}"
    (answer,) = find_answers(passage, [text.lower()])
    start = answer["answer_start"]
    assert answer["text"] == passage[start : start + len(text)] == text.upper()


def test_find_answers_puts_the_first_text_first_and_matches_whole_words() -> None:
    answers = find_answers(
        "The UK, or Great Britain, unlike Brittany", ["Britain", "UK", "Brit", ""]
    )
    assert [(answer["text"], answer["answer_start"]) for answer in answers] == [
        ("Britain", 17),
        ("UK", 4),
    ]


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """An unpacked TriviaQA with three documents, one of which has the answer too late."""
    texts = {
        "wikipedia/Norway.txt": "Norway's capital is  OSLO.\n\n"
        + "More words. " * MAX_DOCUMENT_WORDS,
        "wikipedia/Late.txt": "word " * MAX_DOCUMENT_WORDS + "Oslo",
        "web/7/page.txt": "Christiania, today Oslo, is large.",
    }
    for name, text in texts.items():
        path = tmp_path / "evidence" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "qa").mkdir()
    return tmp_path


def question(**fields: object) -> dict:
    return {
        "QuestionId": "q1",
        "Question": "What is the capital of Norway?",
        "Answer": {"Value": "Oslo", "Aliases": ["Oslo", "Christiania"]},
        "EntityPages": [{"Filename": "Norway.txt"}, {"Filename": "Late.txt"}],
        "SearchResults": [{"Filename": "7/page.txt"}],
    } | fields


def write(folder: pathlib.Path, *questions: dict) -> pathlib.Path:
    path = folder / "qa" / "train.json"
    path.write_text(json.dumps({"Data": questions, "Domain": "Web", "Version": 1.0}))
    return path


def test_read_squad_keeps_documents_that_begin_with_an_answer(folder) -> None:
    data = read_squad(write(folder, question()))
    assert data.version == 1
    norway, page = data.questions
    assert (norway.id, page.id) == ("q1--Norway.txt", "q1--7/page.txt")
    assert norway.text == page.text == "What is the capital of Norway?"
    assert len(norway.passage.split()) == MAX_DOCUMENT_WORDS and "  OSLO.\n\nMore" in norway.passage
    (answer,) = norway.answers
    assert norway.passage[answer.start :].startswith(answer.text) and answer.text == "OSLO"
    assert [answer.text for answer in page.answers] == ["Oslo", "Christiania"]


def test_read_squad_finds_documents_from_the_directory_of_the_file(folder, monkeypatch) -> None:
    write(folder, question())
    monkeypatch.chdir(folder / "qa")
    assert len(read_squad("train.json").questions) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"Answer": {}}, r"train\.json: Data\[0\]: no field 'Value'"),
        ({"SearchResults": [{}]}, "no field 'Filename'"),
        ({"EntityPages": [{"Filename": "x.txt"}]}, "no document .*x.txt. Unpack"),
        ({"EntityPages": [], "SearchResults": []}, "no questions. Give"),
    ],
    ids=str,
)
def test_read_squad_names_what_is_missing(fields: dict, message: str, folder) -> None:
    with pytest.raises(InputError, match=message):
        read_squad(write(folder, question(**fields)))


def test_read_squad_rejects_documents_in_other_encodings(folder) -> None:
    (folder / "evidence" / "wikipedia" / "Norway.txt").write_bytes(b"Oslo \xff")
    with pytest.raises(InputError, match=r"byte 5 of document .*Norway.txt is not UTF-8. Convert"):
        read_squad(write(folder, question()))


def test_read_squad_rejects_data_that_is_not_a_list(folder) -> None:
    path = folder / "qa" / "train.json"
    path.write_text('{"Data": 5}')
    with pytest.raises(InputError, match=r"'Data' is not a list\. Give"):
        read_squad(path)
