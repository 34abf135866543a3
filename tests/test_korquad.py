"""Scores on KorQuAD equal those of its official script, digit for digit."""

import json
import pathlib

import pytest
from goldens import make_cmrc_scores as recipe

from bertjax.cli.main import main
from bertjax.tasks.question_answering.korquad import f1, normalize, score
from data_pipelines.finetuning.question_answering.squad import read_squad

GOLDEN = json.loads((pathlib.Path(recipe.__file__).parent / "korquad_scores.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_score_equals_official_script(name: str, data_dir) -> None:
    file, variant = name.split()
    predictions = recipe.predictions(recipe.read(file, data_dir / "xquad"), variant)
    scores = score(read_squad(data_dir / "xquad" / file), predictions)
    missing, surplus = scores.pop("missing"), scores.pop("surplus")
    assert scores == GOLDEN[name]
    assert (missing > 0, surplus) == (variant == "missing", 7 if variant == "surplus" else 0)


def test_normalize_replaces_quotes_by_spaces_and_removes_punctuation() -> None:
    assert normalize(" 《이순신》(장군)‘A-B’, C. ") == "이순신 장군 ab c"


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [("이순신 장군은", "이순신 장군", 10 / 11), ("", "a", 0), ("a", "b", 0), ("ab", "b a", 1)],
)
def test_f1_compares_characters(prediction: str, gold: str, expected: float) -> None:
    assert f1(prediction, gold) == pytest.approx(expected)


def test_score_command_prints_the_scores_of_korquad(tmp_path, capsys) -> None:
    answers = [{"text": "이순신 장군", "answer_start": 0}]
    question = {"id": 7, "question": "누가 싸웠나?", "answers": answers}
    content = [{"context": "이순신 장군은 명량에서 싸웠다.", "qas": [question]}]
    data, predictions = tmp_path / "data.json", tmp_path / "predictions.json"
    data.write_text(json.dumps(content))
    predictions.write_text('{"7": "이순신 장군은"}')
    assert main(["score", "korquad", "--data", str(data), "--predictions", str(predictions)]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(1000 / 11)
