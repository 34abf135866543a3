"""Makes squad_scores.json: what another implementation of the official scripts gives.

    BERTJAX_DATA=... python tests/goldens/make_squad_scores.py

Needs `transformers` 4.57 with its SQuAD 2.0 metrics, a copy of the official script. Of 1.1 there is
no such copy in it; its arithmetic is written out below as the script has it, on the functions that
both scripts share.
"""

import collections
import json
import os
import pathlib
import random
from types import SimpleNamespace

VERSIONS = {1: "dev-v1.1.json", 2: "dev-v2.0.json"}

QuestionAnsweringDataset = list[dict]


def read(version: int, folder: pathlib.Path) -> QuestionAnsweringDataset:
    """The questions as they stand in the file."""
    articles = json.loads((folder / VERSIONS[version]).read_text("utf-8"))["data"]
    return [qa for article in articles for part in article["paragraphs"] for qa in part["qas"]]


def change(text: str, kind: float) -> str:
    """A gold answer as a model might have it."""
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


def predictions(questions: QuestionAnsweringDataset, variant: str) -> dict[str, str]:
    """Predictions of a kind: "gold", "empty", "changed", and of version 1 "missing", "surplus"."""
    draw = random.Random(variant)
    found = {}
    for question in questions:
        gold = [answer["text"] for answer in question["answers"]] or ["", "something", "the"]
        text, kind, rate = gold[int(draw.random() * len(gold))], draw.random(), draw.random()
        if variant == "gold":
            found[question["id"]] = gold[0]
        elif variant == "empty":
            found[question["id"]] = ""
        elif not (variant == "missing" and rate < 0.3):
            found[question["id"]] = change(text, kind)
    if variant == "surplus":
        found |= {f"nobody asked {i}": "an answer" for i in range(7)}
    return found


def odds(questions: QuestionAnsweringDataset) -> dict[str, float]:
    """Null odds, ties among them."""
    draw = random.Random("odds")
    return {question["id"]: round(6 * draw.random() - 3, 2) for question in questions}


def score_1(questions: QuestionAnsweringDataset, found: dict[str, str]) -> dict[str, float]:
    from transformers.data.metrics.squad_metrics import normalize_answer

    def f1(prediction: str, gold: str) -> float:
        ours, theirs = normalize_answer(prediction).split(), normalize_answer(gold).split()
        same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
        return (2 * precision * recall) / (precision + recall)

    exact = total = overlap = 0
    for question in questions:
        total += 1
        if question["id"] not in found:
            continue
        prediction = found[question["id"]]
        golds = [answer["text"] for answer in question["answers"]]
        exact += max(normalize_answer(prediction) == normalize_answer(gold) for gold in golds)
        overlap += max(f1(prediction, gold) for gold in golds)
    return {"exact": 100.0 * exact / total, "f1": 100.0 * overlap / total, "total": total}


def score_2(
    questions: QuestionAnsweringDataset, found: dict[str, str], null_odds: dict | None
) -> dict:
    from transformers.data.metrics.squad_metrics import squad_evaluate

    examples = [SimpleNamespace(qas_id=q["id"], answers=q["answers"]) for q in questions]
    scores = squad_evaluate(examples, found, null_odds, no_answer_probability_threshold=1.0)
    return {name: value for name, value in scores.items() if null_odds or "best" not in name}


def main() -> None:
    golden: dict[str, dict] = {}
    for version in VERSIONS:
        questions = read(version, pathlib.Path(os.environ["BERTJAX_DATA"]) / "squad")
        for variant in ("gold", "empty", "changed", "surplus", "missing")[: 6 - version]:
            found = predictions(questions, variant)
            name = f"{version} {variant}"
            if version == 1:
                golden[name] = score_1(questions, found)
            else:
                golden[name] = score_2(questions, found, None)
                golden[f"{name} odds"] = score_2(questions, found, odds(questions))
    path = pathlib.Path(__file__).with_name("squad_scores.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
