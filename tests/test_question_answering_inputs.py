"""Questions are parsed from lines or from a file; an evaluation set logs and scores them."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertjax.tasks.pipeline import PredictInput
from bertjax.tasks.question_answering.evaluation import QuestionAnsweringEvalSet, build_windows
from bertjax.tasks.question_answering.pipeline import QuestionAnsweringPipeline, to_question
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    QuestionAnsweringDataset,
)
from data_pipelines.finetuning.question_answering.windows import PassageCache, WindowOptions
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *"abcdefgh?"], cased=False)
OPTIONS = WindowOptions(max_seq_length=16, doc_stride=4, max_query_length=4)
FILE = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "7", "question": "c?"}]}]}]}


parse_lines = QuestionAnsweringPipeline.parse_lines


def line(**fields: object) -> str:
    return json.dumps({"question": "c?", "context": "a b"} | fields) + "\n"


def test_inputs_are_parsed_line_by_line() -> None:
    taken = []

    def lines():
        for number in range(3):
            taken.append(number)
            yield line(id=f"q{number}") if number else line()

    for number, item in enumerate(parse_lines(lines())):
        assert len(taken) == number + 1
        assert to_question(item) == Question(f"q{number}" if number else "1", "c?", "a b")


@pytest.mark.parametrize("indent", [None, 1])
def test_inputs_of_a_squad_file_are_a_list(indent: int | None) -> None:
    text = "\n" + json.dumps(FILE, indent=indent)
    items = parse_lines(text.splitlines(keepends=True))
    assert isinstance(items, list)
    assert list(map(to_question, items)) == [Question("7", "c?", "a b")]


@pytest.mark.parametrize("name", ["id", "guid", "qid"])
@pytest.mark.parametrize("indent", [None, 1])
def test_inputs_of_a_list_of_rows_have_its_ids(name: str, indent: int | None) -> None:
    fields = {"question": "c?", "context": "a b", "answers": {"text": [], "answer_start": []}}
    text = json.dumps([fields | {name: 7}], indent=indent)
    assert list(map(to_question, parse_lines(text.splitlines(keepends=True)))) == [
        Question("7", "c?", "a b")
    ]
    line_of_row = json.dumps(fields | {name: 7})
    assert [to_question(item).id for item in parse_lines([line_of_row])] == ["7"]


def test_inputs_of_no_lines_are_empty() -> None:
    assert list(parse_lines([])) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("?", "line 2: this is no"),
        (line(context=None), "line 2: this is no"),
        ("[1]", "line 2: this is no"),
        (line(context=" "), "line 2: the passage is empty"),
        (
            line(context="a" * 200_001),
            "line 2: the passage has 200,001 characters, more than 200,000",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_inputs_reject_a_line_without_question(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(map(to_question, parse_lines([line(), text])))


def test_inputs_skip_blank_lines_and_count_them() -> None:
    questions = map(to_question, parse_lines(["\n", line(), " \n", line(), "\n"]))
    assert [question.id for question in questions] == ["2", "4"]


def test_to_question_error_names_the_location() -> None:
    with pytest.raises(ValueError, match="input 0: this is no"):
        to_question(PredictInput("input 0", "c?"))


def test_inputs_reject_another_layout() -> None:
    with pytest.raises(ValueError, match=r"the input: data\[0\]: no field 'paragraphs'"):
        parse_lines(['{"data": [{}]}'])


def make_eval_set(questions: list[Question], version: int) -> QuestionAnsweringEvalSet:
    objective: Any = SimpleNamespace(
        window_options=OPTIONS, sequence_shape=PackedShape(16, 8), has_null_regression=False
    )
    data = QuestionAnsweringDataset(questions, version)
    return QuestionAnsweringEvalSet("dev", data, TOKENIZER, objective, 2)


def test_eval_set_trains_marked_questions_as_unanswerable_and_logs_their_number(caplog) -> None:
    gold = (Answer("b", 2),)
    questions = [
        Question("q0", "c?", "a b", gold, is_impossible=True),
        Question("q1", "c?", "a b", (Answer("", -1),), is_impossible=True),
        Question("q2", "c?", "a b", (), is_impossible=False),
        Question("q3", "c?", "a b", gold, is_impossible=False),
        Question("q4", "c?", "a b", (), is_impossible=True),
    ]
    data = QuestionAnsweringDataset(questions, 2)
    windows = build_windows("dev", data, TOKENIZER, OPTIONS, PassageCache(TOKENIZER))
    positions = windows.targets["answer_positions"].values
    assert (positions > 0).all(axis=1).tolist() == [False, False, False, True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "dev: 2 questions have is_impossible=true and answers. They are trained as unanswerable. "
        "The first: q0, q1.",
        "dev: 1 questions have is_impossible=false and no answers. They are trained as "
        "unanswerable. The first: q2.",
    ]


def test_eval_set_logs_misplaced_answers_and_long_questions(caplog) -> None:
    questions = [
        Question("here", "a?", "a b", (Answer("b", 2),)),
        Question("there", "a?", "a b", (Answer("b", 1),)),
        Question("nowhere", "a b c d e?", "a b", (Answer("h", 0),)),
    ]
    make_eval_set(questions, 1)
    text = caplog.text
    assert "dev: 2 of 3 answers are not at their answer_start" in text
    assert "Questions: there, nowhere." in text
    assert "of question 'there' is not at character 1 of its passage, but at 2" in text
    assert "1 questions were truncated to data.max_query_length=4 tokens" in text


def make_logits(
    eval_set: QuestionAnsweringEvalSet, cls_logit: float
) -> list[dict[str, np.ndarray]]:
    """Return logits of `cls_logit` at each [CLS] and the opposite elsewhere."""
    logits = []
    for batch in eval_set.batches():
        values = np.where(batch["position_ids"] == 0, cls_logit, -cls_logit)
        logits.append(
            {"question_answering_logits": np.stack([values, values], -1).astype(np.float32)}
        )
    return logits


@pytest.mark.parametrize("cls_logit", [9.0, -9.0])
def test_evaluation_of_version_2_applies_the_threshold(cls_logit: float) -> None:
    """Answering nothing is best at any odds, which the official threshold 0 would not give."""
    questions = [Question("1", "a", "c d", (Answer("d", 2),)), Question("2", "c", "b")]
    eval_set = make_eval_set(questions, 2)
    evaluation = eval_set.evaluation({}, make_logits(eval_set, cls_logit))
    assert evaluation.scores["f1"] == evaluation.scores["best_f1"] == 50
    assert evaluation.scores["null_score_diff_threshold"] < min(
        evaluation.files["null_odds"].values()
    )
    assert evaluation.files["predictions"] == {"1": "", "2": ""}
    assert evaluation.examples == ["a → - (d)", "c → - (-)"]


@pytest.mark.parametrize("version", [1, 2])
def test_evaluation_without_candidates_returns_scores_and_files(version: int) -> None:
    questions = [Question("1", "", "a b", (Answer("b", 2),)), Question("2", "c", "b")]
    if version == 1:
        questions.pop()
    eval_set = make_eval_set(questions, version)
    evaluation = eval_set.evaluation({}, make_logits(eval_set, 9.0))
    assert evaluation.scores["total"] == len(questions)
    if version == 2:
        assert evaluation.scores["NoAns_exact"] == 100
        assert min(evaluation.files["null_odds"].values()) == pytest.approx(36)
