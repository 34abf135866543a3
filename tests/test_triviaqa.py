"""TriviaQA becomes questions on passages that hold an answer, at its place."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import read_squad
from data_pipelines.finetuning.triviaqa import MAX_DOCUMENT_WORDS, find_answers


@given(before=st.text(" .,-(é日x", max_size=20), text=st.sampled_from(["Oslo", "St. Ives", "C++"]))
def test_an_answer_is_found_as_the_passage_writes_it(before: str, text: str) -> None:
    passage = f"{before} {text.upper()} {text}"
    (found,) = find_answers(passage, [text.lower()])
    start = found["answer_start"]
    assert found["text"] == passage[start : start + len(text)] == text.upper()


def test_the_first_text_leads_and_parts_of_words_are_none() -> None:
    found = find_answers("The UK, or Great Britain, unlike Brittany", ["Britain", "UK", "Brit", ""])
    assert [(each["text"], each["answer_start"]) for each in found] == [("Britain", 17), ("UK", 4)]


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """TriviaQA as it is unpacked, with three documents of which one has the answer too late."""
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


def test_documents_with_an_answer_at_their_beginning_become_passages(folder) -> None:
    found = read_squad(write(folder, question()))
    assert found.version == 1
    norway, page = found.questions
    assert (norway.id, page.id) == ("q1--Norway.txt", "q1--7/page.txt")
    assert norway.text == page.text == "What is the capital of Norway?"
    assert len(norway.passage.split()) == MAX_DOCUMENT_WORDS and "  OSLO.\n\nMore" in norway.passage
    (only,) = norway.answers
    assert norway.passage[only.start :].startswith(only.text) and only.text == "OSLO"
    assert [answer.text for answer in page.answers] == ["Oslo", "Christiania"]


def test_its_documents_are_found_from_within_its_folder(folder, monkeypatch) -> None:
    write(folder, question())
    monkeypatch.chdir(folder / "qa")
    assert len(read_squad("train.json").questions) == 2


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"Answer": {}}, r"Data\[0\] of TriviaQA has no 'Value'"),
        ({"SearchResults": [{}]}, "has no 'Filename'"),
        ({"EntityPages": [{"Filename": "x.txt"}]}, "x.txt, which does not exist"),
        ({"EntityPages": [], "SearchResults": []}, "has no questions"),
    ],
    ids=str,
)
def test_what_is_missing_is_named(fields: dict, complaint: str, folder) -> None:
    with pytest.raises(InputError, match=complaint):
        read_squad(write(folder, question(**fields)))


def test_a_document_in_another_encoding_is_named(folder) -> None:
    (folder / "evidence" / "wikipedia" / "Norway.txt").write_bytes(b"Oslo \xff")
    with pytest.raises(InputError, match=r"Norway.txt, which is not UTF-8 \(byte 5\)"):
        read_squad(write(folder, question()))


def test_questions_that_are_no_list_are_refused(folder) -> None:
    path = folder / "qa" / "train.json"
    path.write_text('{"Data": 5}')
    with pytest.raises(InputError, match="'Data' of TriviaQA is no list"):
        read_squad(path)
