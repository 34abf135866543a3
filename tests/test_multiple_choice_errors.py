"""Errors of invalid multiple-choice data and models: one line with the location and the fix."""

import pathlib
import re

import pytest
import toy_tasks
from data_errors import arguments, check_train_error, jsonl, publish, write

import bertjax
from bertjax.config.config import Config
from bertjax.inference.predictor import Predictor
from bertjax.tasks import registry
from bertjax.tasks.multiple_choice import encode
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError
from data_pipelines.finetuning.multiple_choice import dataset_from_rows
from data_pipelines.finetuning.table import TableRow, read_table

SWAG = "sent1,sent2,ending0,ending1,label\nba,do,ki,lu,0\nme,no,ra,si,1\n"
T = "DIR/train"
CASES = {
    "the number of no answer": (
        {"train.csv": SWAG + "ba,do,ki,lu,2\n"}, "multiple_choice",
        f"{T}.csv:4: label '2' is not the index of a choice. Write 0 to 1",
    ),
    "one answer only": (
        {"train.csv": SWAG + "ba,do,ki,,0\n"}, "multiple_choice",
        f"{T}.csv:4: a question needs two choices and has 1",
    ),
    "more answers than a row takes": (
        {"train.jsonl": jsonl({"context": "ba", "choices": ["do"] * 9, "label": 0})},
        "multiple_choice",
        f"{T}.jsonl:1: 9 choices do not fit into a sequence. .*max_seq_length=32, which has "
        "room for at most 2",
    ),
    "no choices": (
        {"train.csv": "text,label\nba,a\n"}, "multiple_choice", f"{T}.csv:2: no column 'sent1'",
    ),
    "choices that are no list": (
        {"train.jsonl": jsonl({"context": "ba", "choices": "do", "label": 0})}, "multiple_choice",
        f"{T}.jsonl:1: column 'choices' is 'do'. Write a list of texts",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    for head in ("sequence_classification", "multiple_choice"):
        publish(folder / head, head)
    toy_tasks.TOKENIZER.save(folder)
    return folder


@pytest.mark.seconds
@pytest.mark.parametrize("case", CASES)
def test_train_rejects_invalid_data(case: str, models, tmp_path, refused) -> None:
    check_train_error(refused, models, tmp_path, CASES[case])


@pytest.mark.seconds
def test_evaluate_rejects_models_of_other_tasks(models, tmp_path, refused) -> None:
    model = models / "sequence_classification"
    write(tmp_path, {"train.csv": SWAG, "dev.csv": SWAG})
    error = refused(
        "evaluate", "--checkpoint", model, "--output", tmp_path / "scores",
        *arguments(models, f"multiple_choice:data={tmp_path}", init=model),
    )  # fmt: skip
    assert "sequence_classification has no multiple choice head, only" in error
    assert not (tmp_path / "scores").exists()


@pytest.mark.seconds
def test_unread_settings_and_keys_are_rejected(models) -> None:
    with pytest.raises(InputError, match="packing=False: task=multiple_choice does not"):
        registry.make_objective(Config(task="multiple_choice", packing=False))
    with pytest.raises(InputError, match="does not read the key 'contxt'"):
        question = {"context": "ba", "choices": ["do", "ki"], "contxt": "lu"}
        bertjax.load(models / "multiple_choice").predict(question)


def test_nan_is_no_choice(tmp_path) -> None:
    row = '{"sent1": "ba", "sent2": NaN, "ending0": "do", "ending1": "ki", "ending2": NaN}'
    (tmp_path / "a.jsonl").write_text(row)
    (question,) = dataset_from_rows("a", read_table(tmp_path / "a.jsonl"), False).questions
    assert question.choices == ("do", "ki")


@pytest.mark.seconds
def test_choices_of_any_name_are_displayed(models) -> None:
    predictor = Predictor(models / "multiple_choice")
    question = {"context": "ba", "endings": ["do", "ki"]}
    (answer,) = predictor.predict([PredictInput("", question)], return_all_scores=True)
    _, bars = predictor.pipeline.display(question, answer)
    assert {name for name, _ in bars["scores"]} == {"do", "ki"}


@pytest.mark.seconds
def test_predict_reads_context_and_question_as_training_does(models) -> None:
    predictor = Predictor(models / "multiple_choice")
    row = {"article": "ba do", "question": "ki lu", "options": ["me", "no"]}
    inputs = [PredictInput("in", row), PredictInput("in", row | {"question": ""})]
    _, eval_set = predictor.pipeline.preprocess(inputs)
    rows = dataset_from_rows("t", [TableRow("t", item.content) for item in inputs], False)
    objective = predictor.pipeline.objective
    examples, _ = encode("t", rows, predictor.pipeline.tokenizer, objective)
    assert eval_set._examples.digest() == examples.digest()
    answer, short = predictor.predict(inputs)
    assert (answer["context"], answer["question"]) == ("ba do", "ki lu")
    assert short["context"] == "ba do" and "question" not in short


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", "ba\n", 'line 1: the input is a text. Give an object {"context"'),
        (
            "in.jsonl",
            jsonl({"context": "a", "choices": ["x"]}),
            "line 1: a question needs two choices and has 1",
        ),
        (
            "in.jsonl",
            jsonl({"context": "a", "choices": {"text": ["x", "y"], "label": 5}}),
            "line 1: the 'label' of column 'choices' is 5. Write a list of names",
        ),
        ("in.csv", "sent1,ending0\nba,do\n", "in.csv:2: a question needs two choices"),
    ],
)
def test_predict_rejects_invalid_inputs(
    name: str, content: str, message: str, models, tmp_path, refused
) -> None:
    write(tmp_path, {name: content})
    error = refused(
        "predict", "--checkpoint", models / "multiple_choice", "--input", tmp_path / name
    )
    assert re.search(message, error), error
