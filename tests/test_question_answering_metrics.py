"""Scores of SQuAD predictions equal those of the official scripts, digit for digit."""

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
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    QuestionAnsweringDataset,
    read_squad,
)

GOLDEN = json.loads((pathlib.Path(recipe.__file__).parent / "squad_scores.json").read_text())


@functools.cache
def data(directory: pathlib.Path, version: int) -> QuestionAnsweringDataset:
    return read_squad(directory / "squad" / recipe.VERSIONS[version])


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_score_equals_official_scripts(name: str, data_dir) -> None:
    version, variant, *with_odds = name.split()
    questions = recipe.read(int(version), data_dir / "squad")
    predictions = recipe.predictions(questions, variant)
    odds = recipe.odds(questions) if with_odds else None
    scores = score(data(data_dir, int(version)), predictions, odds)
    counts = {"missing": scores.pop("missing"), "surplus": scores.pop("surplus")}
    # Python 3.12 adds floats with less rounding than the Python that ran the scripts.
    assert scores == pytest.approx(GOLDEN[name], rel=1e-14, abs=0)
    assert (counts["missing"] > 0) == (variant == "missing")
    assert counts["surplus"] == (7 if variant == "surplus" else 0)


def questions(version: int, *golds: list[str]) -> QuestionAnsweringDataset:
    """Return a question for each list of gold answers, with ids "0", "1" ..."""
    items = [
        Question(str(i), "?", " ".join(gold), tuple(Answer(text, 0) for text in gold))
        for i, gold in enumerate(golds)
    ]
    return QuestionAnsweringDataset(items, version)


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
def test_normalize_removes_case_punctuation_and_articles(text: str, normal: str) -> None:
    assert normalize(text) == normal


@given(st.text(), st.text())
def test_f1_is_between_0_and_1_and_1_if_exact(a: str, b: str) -> None:
    for version in (1, 2):
        assert 0 <= f1(a, b, version) <= 1
        if exact(a, b) and normalize(a):
            assert f1(a, b, version) == 1


@given(st.text())
def test_exact_and_f1_of_equal_texts_are_1(text: str) -> None:
    assert exact(text, text) == 1 and f1(text, text, 2) == 1


def test_f1_counts_repeated_words() -> None:
    assert f1("b b c", "b c c", 1) == pytest.approx(2 / 3)


def test_score_per_question_takes_best_gold() -> None:
    scores = score_per_question(questions(1, ["black cat", "cat"]), {"0": "a cat"})
    assert scores["0"] == (1.0, 1.0)


def test_f1_without_words_depends_on_version() -> None:
    assert f1("the", "a", 1) == 0 and f1("the", "a", 2) == 1


def test_score_counts_missing_prediction_as_wrong() -> None:
    for version in (1, 2):
        scores = score(questions(version, ["cat"], ["dog"]), {"0": "cat"})
        assert scores["exact"] == 50 and scores["total"] == 2 and scores["missing"] == 1
    odds = {"0": 9.0}
    assert score(questions(2, []), {}, odds)["exact"] == 0


def test_score_takes_odds_above_1_as_no_answer() -> None:
    data = questions(2, ["cat"], [])
    scores = score(data, {"0": "cat", "1": "dog"}, {"0": 0.0, "1": 2.0})
    assert scores["exact"] == scores["NoAns_exact"] == 100
    # All correctly answered questions are below the best threshold.
    assert scores["best_exact"] == 100 and scores["best_exact_thresh"] == 0


def test_score_rejects_prediction_without_odds() -> None:
    with pytest.raises(InputError, match="'0' has a prediction and no null odds"):
        score(questions(2, ["cat"]), {"0": "cat"}, {})


def test_score_of_version_1_rejects_missing_gold() -> None:
    with pytest.raises(InputError, match="'0' has no gold answer"):
        score(questions(1, []), {"0": "cat"})


def write(path: pathlib.Path, content: object) -> pathlib.Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def squad_file(path: pathlib.Path, version: int) -> pathlib.Path:
    """Write two questions on one passage; in version 2 the second has no answer."""
    golds = [[{"text": "Paris", "answer_start": 0}]] * 2
    qas = [{"id": str(i), "question": "?", "answers": gold} for i, gold in enumerate(golds)]
    if version == 2:
        qas = [qa | {"is_impossible": False} for qa in qas]
        qas[1] |= {"is_impossible": True, "answers": []}
    return write(path, {"data": [{"paragraphs": [{"context": "Paris.", "qas": qas}]}]})


def test_score_files_equals_score_of_contents(tmp_path) -> None:
    data = squad_file(tmp_path / "dev.json", 2)
    predictions = write(tmp_path / "predictions.json", {"0": "paris", "1": "Paris"})
    odds = write(tmp_path / "odds.json", {"0": -3, "1": 2.5})
    scores = score_files(data, predictions, odds)
    assert scores["exact"] == 100 and scores["best_f1"] == 100
    assert score_files(data, predictions)["exact"] == 50


@pytest.mark.parametrize(
    ("predictions", "odds", "problem"),
    [
        ("{", None, r"predictions.json: invalid JSON \(.*Write one object, question id to text"),
        (["paris"], None, "predictions.json: no JSON object. Write one object"),
        ({"0": 1}, None, "predictions.json: question '0' has 1. Write text"),
        ({"0": "paris"}, {"0": "high"}, "odds.json: question '0' has 'high'. Write a number"),
        ({"0": "paris", "1": ""}, {"0": 1.0}, "'1' has a prediction and no null odds"),
    ],
    ids=str,
)
def test_score_files_rejects_other_layouts(predictions, odds, problem: str, tmp_path) -> None:
    data = squad_file(tmp_path / "dev.json", 2)
    files = [write(tmp_path / "predictions.json", predictions)]
    files += [] if odds is None else [write(tmp_path / "odds.json", odds)]
    with pytest.raises(InputError, match=problem):
        score_files(data, *files)


def test_score_files_rejects_null_odds_of_version_1(tmp_path) -> None:
    files = write(tmp_path / "p.json", {"0": "Paris"}), write(tmp_path / "o.json", {"0": 1.0})
    with pytest.raises(
        InputError, match=r"dev\.json: no question has is_impossible, .*\. Leave them out"
    ):
        score_files(squad_file(tmp_path / "dev.json", 1), *files)
