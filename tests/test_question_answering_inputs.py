"""QuestionAnsweringDataset come as lines or as a file, and what is wrong with them is said."""

import json

import numpy as np
import pytest

from bertjax.tasks.question_answering.evaluation import (
    QuestionAnsweringEvalSet,
    parse_question_inputs,
    to_question,
)
from bertjax.tasks.task import Input
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.squad import Answer, Question, QuestionAnsweringDataset
from data_pipelines.finetuning.windows import WindowOptions
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *"abcdefgh?"], cased=False)
OPTIONS = WindowOptions(max_seq_length=16, doc_stride=4, max_query_length=4)
FILE = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "7", "question": "c?"}]}]}]}


def line(**fields: object) -> str:
    return json.dumps({"question": "c?", "context": "a b"} | fields) + "\n"


def test_lines_are_questions_one_by_one_as_they_come() -> None:
    taken = []

    def lines():
        for number in range(3):
            taken.append(number)
            yield line(id=f"q{number}") if number else line()

    for number, asked in enumerate(parse_question_inputs(lines())):
        assert len(taken) == number + 1
        assert to_question(asked) == Question(f"q{number}" if number else "1", "c?", "a b")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_is_answered_as_a_whole(indent: int | None) -> None:
    text = "\n" + json.dumps(FILE, indent=indent)
    found = parse_question_inputs(text.splitlines(keepends=True))
    assert isinstance(found, list)  # which nobody need wait for
    assert list(map(to_question, found)) == [Question("7", "c?", "a b")]


def test_nothing_is_no_question() -> None:
    assert list(parse_question_inputs([])) == []


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("?", "line 2 is not of the form"),
        (line(context=None), "line 2 is not of the form"),
        ("[1]", "line 2 is not of the form"),
        (line(context=" "), "the passage of line 2 is empty"),
        (line(context="a" * 200_001), "line 2 has 200,001 characters and may have 200,000"),
    ],
    ids=lambda value: value[:40],
)
def test_a_line_that_is_no_question_is_refused(said: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list(map(to_question, parse_question_inputs([line(), said])))


def test_blank_lines_are_passed_over_and_counted() -> None:
    found = map(to_question, parse_question_inputs(["\n", line(), " \n", line(), "\n"]))
    assert [question.id for question in found] == ["2", "4"]


def test_what_is_asked_from_elsewhere_is_named_by_its_place() -> None:
    with pytest.raises(ValueError, match="input 0 is not of the form"):
        to_question(Input("input 0", "c?"))


def test_a_file_of_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the input is not in .*: data\[0\] has no 'paragraphs'"):
        parse_question_inputs(['{"data": [{}]}'])


def test_answers_out_of_place_and_long_questions_are_counted_and_listed(caplog) -> None:
    questions = [
        Question("here", "a?", "a b", (Answer("b", 2),)),
        Question("there", "a?", "a b", (Answer("b", 1),)),
        Question("nowhere", "a b c d e?", "a b", (Answer("h", 0),)),
    ]
    QuestionAnsweringEvalSet(
        "dev",
        QuestionAnsweringDataset(questions, 1),
        TOKENIZER,
        OPTIONS,
        PackedShape(16, 8),
        rows=2,
    )
    text = caplog.text
    assert "dev: 2 of 3 answers are not at their place" in text
    assert "They are of questions there, nowhere." in text
    assert "of question 'there' is not at character 1 of its passage, but at 2" in text
    assert "1 questions were cut to data.max_query_length=4 pieces" in text


def read_logits(reading: QuestionAnsweringEvalSet, of_cls: float) -> list[dict[str, np.ndarray]]:
    """Logits of `of_cls` at each [CLS] and the opposite elsewhere."""
    logits = []
    for batch in reading.batches():
        values = np.where(batch["position_ids"] == 0, of_cls, -of_cls)
        logits.append(
            {"question_answering_logits": np.stack([values, values], -1).astype(np.float32)}
        )
    return logits


@pytest.mark.parametrize("of_cls", [9.0, -9.0])
def test_scores_of_version_2_are_those_at_the_threshold(of_cls: float) -> None:
    """To answer nothing is best here, whatever the odds; the official sweep's 0 would not do it."""
    questions = [Question("1", "a", "c d", (Answer("d", 2),)), Question("2", "c", "b")]
    reading = QuestionAnsweringEvalSet(
        "dev",
        QuestionAnsweringDataset(questions, 2),
        TOKENIZER,
        OPTIONS,
        PackedShape(16, 8),
        rows=2,
    )
    found = reading.evaluation({}, read_logits(reading, of_cls))
    assert found.scores["f1"] == found.scores["best_f1"] == 50
    assert found.scores["threshold"] < min(found.files["null_odds"].values())
    assert found.files["predictions"] == {"1": "", "2": ""}
    assert found.examples == ["a → - (d)", "c → - (-)"]


@pytest.mark.parametrize("version", [1, 2])
def test_even_without_any_span_there_are_scores_and_files(version: int) -> None:
    """Logits that put all but [CLS] out of the question; a question of nothing."""
    questions = [Question("1", "", "a b", (Answer("b", 2),)), Question("2", "c", "b")]
    if version == 1:
        questions.pop()
    reading = QuestionAnsweringEvalSet(
        "dev",
        QuestionAnsweringDataset(questions, version),
        TOKENIZER,
        OPTIONS,
        PackedShape(16, 8),
        rows=2,
    )
    found = reading.evaluation({}, read_logits(reading, 9.0))
    assert found.scores["total"] == len(questions)
    if version == 2:
        assert found.scores["NoAns_exact"] == 100
        assert min(found.files["null_odds"].values()) == pytest.approx(36)
