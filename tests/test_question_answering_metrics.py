"""Scores of SQuAD predictions are those of the official scripts, digit for digit."""

import functools
import json
import pathlib

import pytest
from goldens import make_squad_scores as recipe
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.question_answering.metrics import (
    exact,
    f1,
    normalize,
    score,
    score_files,
    score_per_question,
)
from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Answer, Question, QuestionAnsweringDataset, read_squad

GOLDEN = json.loads((pathlib.Path(recipe.__file__).parent / "squad_scores.json").read_text())


@functools.cache
def data(directory: pathlib.Path, version: int) -> QuestionAnsweringDataset:
    return read_squad(directory / "squad" / recipe.VERSIONS[version])


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_every_digit_is_the_official_one(name: str, data_dir) -> None:
    version, variant, *with_odds = name.split()
    questions = recipe.read(int(version), data_dir / "squad")
    found = recipe.predictions(questions, variant)
    odds = recipe.odds(questions) if with_odds else None
    scores = score(data(data_dir, int(version)), found, odds)
    counts = {"missing": scores.pop("missing"), "surplus": scores.pop("surplus")}
    assert scores == GOLDEN[name]
    assert (counts["missing"] > 0) == (variant == "missing")
    assert counts["surplus"] == (7 if variant == "surplus" else 0)


def questions(version: int, *golds: list[str]) -> QuestionAnsweringDataset:
    """A question for each list of gold answers, with ids "0", "1" ..."""
    listed = [
        Question(str(i), "?", " ".join(gold), tuple(Answer(text, 0) for text in gold))
        for i, gold in enumerate(golds)
    ]
    return QuestionAnsweringDataset(listed, version)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat", "cat"),
        ("an a the", ""),
        ("theatre, anew", "theatre anew"),
        ("U.S.A.", "usa"),
        ("a\u00a0b", "b"),
        ("l\u2019Été", "l\u2019été"),
    ],
)
def test_normalised_text(text: str, normal: str) -> None:
    assert normalize(text) == normal


@given(st.text(), st.text())
def test_scores_lie_between_0_and_1_and_exact_is_full_overlap(a: str, b: str) -> None:
    for version in (1, 2):
        assert 0 <= f1(a, b, version) <= 1
        if exact(a, b) and normalize(a):
            assert f1(a, b, version) == 1


@given(st.text())
def test_a_text_is_its_own_answer(text: str) -> None:
    assert exact(text, text) == 1 and f1(text, text, 2) == 1


def test_words_count_as_often_as_they_come() -> None:
    assert f1("b b c", "b c c", 1) == pytest.approx(2 / 3)


def test_the_best_gold_answer_counts() -> None:
    found = score_per_question(questions(1, ["black cat", "cat"]), {"0": "a cat"})
    assert found["0"] == (1.0, 1.0)


def test_without_words_the_versions_differ() -> None:
    assert f1("the", "a", 1) == 0 and f1("the", "a", 2) == 1


def test_a_missing_prediction_is_wrong_even_where_there_is_no_answer() -> None:
    for version in (1, 2):
        scores = score(questions(version, ["cat"], ["dog"]), {"0": "cat"})
        assert scores["exact"] == 50 and scores["total"] == 2 and scores["missing"] == 1
    odds = {"0": 9.0}
    assert score(questions(2, []), {}, odds)["exact"] == 0


def test_high_odds_mean_no_answer() -> None:
    data = questions(2, ["cat"], [])
    scores = score(data, {"0": "cat", "1": "dog"}, {"0": 0.0, "1": 2.0})
    assert scores["exact"] == scores["NoAns_exact"] == 100
    # Below the best threshold stands every question whose answer is right.
    assert scores["best_exact"] == 100 and scores["best_exact_thresh"] == 0


def test_predictions_without_odds_are_refused() -> None:
    with pytest.raises(InputError, match="'0' has a prediction and no null odds"):
        score(questions(2, ["cat"]), {"0": "cat"}, {})


def test_version_1_needs_gold_answers() -> None:
    with pytest.raises(InputError, match="'0' has no gold answer"):
        score(questions(1, []), {"0": "cat"})


def write(path: pathlib.Path, content: object) -> pathlib.Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def squad_file(path: pathlib.Path, version: int) -> pathlib.Path:
    """Two questions on one passage; in version 2 the second has no answer."""
    golds = [[{"text": "Paris", "answer_start": 0}]] * 2
    qas = [{"id": str(i), "question": "?", "answers": gold} for i, gold in enumerate(golds)]
    if version == 2:
        qas = [qa | {"is_impossible": False} for qa in qas]
        qas[1] |= {"is_impossible": True, "answers": []}
    return write(path, {"data": [{"paragraphs": [{"context": "Paris.", "qas": qas}]}]})


def test_files_are_scored_as_what_they_hold(tmp_path) -> None:
    data = squad_file(tmp_path / "dev.json", 2)
    predictions = write(tmp_path / "predictions.json", {"0": "paris", "1": "Paris"})
    odds = write(tmp_path / "odds.json", {"0": -3, "1": 2.5})
    scores = score_files(data, predictions, odds)
    assert scores["exact"] == 100 and scores["best_f1"] == 100
    assert score_files(data, predictions)["exact"] == 50


@pytest.mark.parametrize(
    ("predictions", "odds", "complaint"),
    [
        ("{", None, "is no JSON"),
        (["paris"], None, "holds no object"),
        ({"0": 1}, None, "gives 1 for question '0': it must be text"),
        ({"0": "paris"}, {"0": "high"}, "gives 'high' for question '0': it must be a number"),
        ({"0": "paris", "1": ""}, {"0": 1.0}, "'1' has a prediction and no null odds"),
    ],
    ids=str,
)
def test_files_of_another_kind_are_refused(predictions, odds, complaint: str, tmp_path) -> None:
    data = squad_file(tmp_path / "dev.json", 2)
    files = [write(tmp_path / "predictions.json", predictions)]
    files += [] if odds is None else [write(tmp_path / "odds.json", odds)]
    with pytest.raises(InputError, match=complaint):
        score_files(data, *files)


def test_null_odds_are_for_version_2(tmp_path) -> None:
    files = write(tmp_path / "p.json", {"0": "Paris"}), write(tmp_path / "o.json", {"0": 1.0})
    with pytest.raises(InputError, match="says is_impossible: leave null odds out"):
        score_files(squad_file(tmp_path / "dev.json", 1), *files)
