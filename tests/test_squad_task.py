"""Fine-tuning on SQuAD goes through the one loop, from files to answers."""

import json
import pathlib

import pytest
from conftest import bertjax
from models import draw_model

from bertjax.formats import huggingface
from bertjax.model import BertConfig
from data_pipelines.tokenization import SPECIALS, WordPieceTokenizer

SQUAD = pathlib.Path(__file__).parent.parent / "experiments" / "squad.py"
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
NAMES = ["anna", "bob", "carl", "dora"]
PLACES = ["rome", "oslo", "paris", "delhi"]
TOKENIZER = WordPieceTokenizer(
    [*SPECIALS, *LETTERS, *(f"##{s}" for s in LETTERS), *NAMES, *PLACES, *"?.", "lives", "in"],
    cased=False,
)


def questions(version: int, count: int) -> dict:
    """Where the first of two lives; in version 2 every third asks for nobody."""
    paragraphs = []
    for i in range(count):
        said = [(NAMES[(i + j) % 4], PLACES[(i // 4 + j) % 4]) for j in range(2)]
        passage = " ".join(f"{name.title()} lives in {place.title()}." for name, place in said)
        name, place = said[0]
        qa: dict = {"id": str(i), "question": f"Where lives {name}?", "answers": []}
        if version == 2:
            qa["is_impossible"] = i % 3 == 0
        if qa.get("is_impossible"):
            qa["question"] = "Where lives x?"
        else:
            text = place.title()
            qa["answers"] = [{"text": text, "answer_start": passage.index(text)}]
        paragraphs.append({"context": passage, "qas": [qa]})
    return {"data": [{"title": "people", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Data of both versions, and a published model to begin with."""
    path = tmp_path_factory.mktemp("squad")
    for version, name in ((1, "1.1"), (2, "2.0")):
        for split, count in (("train", 64), ("dev", 24)):
            (path / f"{split}-v{name}.json").write_text(json.dumps(questions(version, count)))
    config = BertConfig(len(TOKENIZER.pieces), 2, 64, 2, max_positions=64)
    (path / "model").mkdir()
    huggingface.write(draw_model(config, TOKENIZER, "pooler"), path / "model")
    return path


def arguments(folder: pathlib.Path, version: int, **overrides: object) -> list[str]:
    fields = {"seq_len": 32, "data.stride": 8, "data.max_query": 8, "model.dtype": "float32"}
    fields |= {"batch_size": 8, "steps": 150, "eval_every": 150, "checkpoint_every": 150}
    fields |= {"optimizer.learning_rate": 1e-3, "model.hidden_dropout": 0.0}
    fields |= {"model.attention_dropout": 0.0}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    spec = f"{SQUAD}:version={version},init={folder / 'model'},data={folder}"
    return ["--config", spec, *(f"--config.{name}={value}" for name, value in fields.items())]


@pytest.fixture(scope="module", params=[1, 2])
def trained(request, folder, tmp_path_factory) -> tuple[int, pathlib.Path]:
    """The version, and a run that has learnt who lives where."""
    workdir = tmp_path_factory.mktemp(f"run{request.param}")
    done = bertjax("train", "--workdir", workdir, *arguments(folder, request.param))
    assert done.returncode == 0, done.stderr
    assert "model (encoder); random: span." in done.stderr
    return request.param, workdir


@pytest.mark.slow
def test_evaluation_writes_answers_and_official_scores(trained, folder, tmp_path) -> None:
    version, workdir = trained
    evaluated = ["--checkpoint", workdir, "--output", tmp_path, *arguments(folder, version)]
    done = bertjax("evaluate", *evaluated)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores == json.loads(done.stdout)
    assert scores["total"] == 24 and scores["f1"] > 50
    names = {"scores", "predictions", "nbest_predictions"} | (
        {"null_odds"} if version == 2 else set()
    )
    assert {path.stem for path in tmp_path.iterdir()} == names
    if version == 2:
        assert {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh"} <= scores.keys()

    data = folder / f"dev-v{version}.{2 - version}.json"
    said = ["--data", data, "--predictions", tmp_path / "predictions.json"]
    official = json.loads(bertjax("score", "squad", *said).stdout)
    assert (official["exact"], official["f1"]) == (scores["exact"], scores["f1"])
    logged = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert logged[-1]["f1"] == pytest.approx(scores["f1"], abs=0.01)


@pytest.mark.slow
def test_questions_are_answered_with_the_place(trained, folder, tmp_path) -> None:
    version, workdir = trained
    context = "Anna lives in Oslo. Bob lives in Rome."
    line = json.dumps({"question": "Where lives bob?", "context": context})
    done = bertjax("predict", "--checkpoint", workdir, "--input", "-", "--output", "-", input=line)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"] == context[answer["start"] : answer["end"]]
    assert ("null_odds" in answer) == (version == 2)
    done = bertjax("predict", "--checkpoint", workdir, "--input", "-", "--output", "-", input="?")
    assert done.returncode == 2 and "line 1 is not of the form" in done.stderr


@pytest.mark.parametrize(
    ("version", "overrides", "complaint"),
    [
        (1, {"data__dev": "dev-v2.0.json"}, "has questions that cannot be answered"),
        (2, {"data__dev": "dev-v1.1.json"}, "has no questions that cannot be answered"),
        (1, {"data__train": "none.json"}, "none.json"),
        (1, {"data__stride": 100}, "stride=100 must be"),
        (1, {"init": ""}, "there is no vocabulary: name a model"),
        (1, {"init": "/nowhere"}, "there is no /nowhere"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence(
    version: int, overrides: dict, complaint: str, folder, tmp_path
) -> None:
    done = bertjax("train", "--workdir", tmp_path / "w", *arguments(folder, version, **overrides))
    assert done.returncode == 2 and complaint in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "w").exists()
