"""Make squad_scores.json: scores by another implementation of the official scripts.

    BERTJAX_DATA=... python tests/goldens/make_squad_scores.py

Needs `transformers` 4.57, whose SQuAD 2.0 metrics are a copy of the official script. It has no copy
of the 1.1 script, whose arithmetic is repeated below on the functions that both scripts share.
"""

import collections
import json
import os
import pathlib
import random
from types import SimpleNamespace

VERSIONS = {1: "dev-v1.1.json", 2: "dev-v2.0.json"}

Questions = list[dict]


def read(version: int, folder: pathlib.Path) -> Questions:
    """Return the questions of a file."""
    articles = json.loads((folder / VERSIONS[version]).read_text("utf-8"))["data"]
    return [qa for article in articles for part in article["paragraphs"] for qa in part["qas"]]


def change(text: str, kind: float) -> str:
    """Return a gold answer with an error that a model could make."""
    changes = (
        lambda: text,
        lambda: "",
        lambda: f"The {text}",
        lambda: f" {text.upper()}!?",
        lambda: text[: len(text) // 2],
        lambda: f"{text} and the rest of it",
        lambda: text.replace(" ", "\u00a0"),
        lambda: "an a the",
    )
    return changes[int(kind * len(changes))]()


def predictions(questions: Questions, variant: str) -> dict[str, str]:
    """Return predictions of a variant; "missing" and "surplus" are for version 1."""
    draw = random.Random(variant)
    answers = {}
    for question in questions:
        gold = [answer["text"] for answer in question["answers"]] or ["", "something", "the"]
        text, kind, rate = gold[int(draw.random() * len(gold))], draw.random(), draw.random()
        if variant == "gold":
            answers[question["id"]] = gold[0]
        elif variant == "empty":
            answers[question["id"]] = ""
        elif not (variant == "missing" and rate < 0.3):
            answers[question["id"]] = change(text, kind)
    if variant == "surplus":
        answers |= {f"nobody asked {i}": "an answer" for i in range(7)}
    return answers


def odds(questions: Questions) -> dict[str, float]:
    """Return null odds, some of them equal."""
    draw = random.Random("odds")
    return {question["id"]: round(6 * draw.random() - 3, 2) for question in questions}


def score_1(questions: Questions, answers: dict[str, str]) -> dict[str, float]:
    from transformers.data.metrics.squad_metrics import normalize_answer

    def f1(prediction: str, gold: str) -> float:
        predicted, expected = normalize_answer(prediction).split(), normalize_answer(gold).split()
        common = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
        if common == 0:
            return 0
        precision, recall = 1.0 * common / len(predicted), 1.0 * common / len(expected)
        return (2 * precision * recall) / (precision + recall)

    exact = total = overlap = 0
    for question in questions:
        total += 1
        if question["id"] not in answers:
            continue
        prediction = answers[question["id"]]
        golds = [answer["text"] for answer in question["answers"]]
        exact += max(normalize_answer(prediction) == normalize_answer(gold) for gold in golds)
        overlap += max(f1(prediction, gold) for gold in golds)
    return {"exact": 100.0 * exact / total, "f1": 100.0 * overlap / total, "total": total}


def score_2(questions: Questions, answers: dict[str, str], null_odds: dict | None) -> dict:
    from transformers.data.metrics.squad_metrics import squad_evaluate

    examples = [SimpleNamespace(qas_id=q["id"], answers=q["answers"]) for q in questions]
    scores = squad_evaluate(examples, answers, null_odds, no_answer_probability_threshold=1.0)
    return {name: value for name, value in scores.items() if null_odds or "best" not in name}


def main() -> None:
    golden: dict[str, dict] = {}
    for version in VERSIONS:
        questions = read(version, pathlib.Path(os.environ["BERTJAX_DATA"]) / "squad")
        for variant in ("gold", "empty", "changed", "surplus", "missing")[: 6 - version]:
            answers = predictions(questions, variant)
            name = f"{version} {variant}"
            if version == 1:
                golden[name] = score_1(questions, answers)
            else:
                golden[name] = score_2(questions, answers, None)
                golden[f"{name} odds"] = score_2(questions, answers, odds(questions))
    path = pathlib.Path(__file__).with_name("squad_scores.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
