"""Make cmrc_scores.json: the arithmetic of CMRC 2018's official script, with NLTK.

    BERTJAX_DATA=... NLTK_DATA=... python tests/goldens/make_cmrc_scores.py

Needs `nltk` 3.8 and, in the folder of NLTK_DATA, its English sentence model ("punkt"). The script
splits text that is not Chinese into sentences before words.
"""

import json
import os
import pathlib
import random

FILES = ("cmrc2018_dev.json", "cmrc2018_trial.json")
VARIANTS = ("gold", "empty", "changed", "missing", "surplus")
PUNCTUATION = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"

Items = list[tuple[str, str, list[dict]]]


def read(file: str, folder: pathlib.Path) -> Items:
    """Return id, passage and gold answers of each question."""
    articles = json.loads((folder / file).read_text("utf-8"))["data"]
    return [
        (qa["id"], part["context"], qa["answers"])
        for article in articles
        for part in article["paragraphs"]
        for qa in part["qas"]
    ]


def change(text: str, passage: str, start: int, kind: float) -> str:
    """Return a gold answer with an error that a model could make."""
    end = start + len(text)
    changes = (
        lambda: text,
        lambda: "",
        lambda: f"《{text}》",
        lambda: f" {text.upper()}。",
        lambda: text[: len(text) // 2],
        lambda: text[: len(text) // 3] + text[2 * len(text) // 3 :],
        lambda: passage[max(0, start - 9) : end + 30],
        lambda: passage[max(0, start - 60) : end],
        lambda: " - ".join(text),
    )
    return changes[int(kind * len(changes))]()


def predictions(items: Items, variant: str) -> dict[str, str]:
    """Return predictions of one of VARIANTS."""
    draw = random.Random(variant)
    predicted = {}
    for name, passage, answers in items:
        answer, kind, rate = (
            answers[int(draw.random() * len(answers))],
            draw.random(),
            draw.random(),
        )
        if variant == "gold":
            predicted[name] = answers[0]["text"]
        elif variant == "empty":
            predicted[name] = ""
        elif not (variant == "missing" and rate < 0.3):
            predicted[name] = change(answer["text"], passage, answer["answer_start"], kind)
    if variant == "surplus":
        predicted |= {f"nobody asked {i}": "回答" for i in range(7)}
    return predicted


def score(items: Items, predicted: dict[str, str]) -> dict[str, float]:
    import nltk

    def plain(text: str) -> str:
        return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)

    def parts(text: str) -> list[str]:
        collected, waiting = [], ""
        for c in plain(text) + "一":
            if "\u4e00" <= c <= "\u9fa5":
                collected += [*(nltk.word_tokenize(waiting) if waiting else []), c]
                waiting = ""
            else:
                waiting += c
        return collected[:-1]

    def longest(a: list[str], b: list[str]) -> int:
        best, above = 0, [0] * (len(b) + 1)
        for item in a:
            row = [0] + [above[j] + 1 if item == other else 0 for j, other in enumerate(b)]
            best, above = max(best, *row), row
        return best

    f1 = em = 0
    for name, _, answers in items:
        if name not in predicted:
            continue
        actual, scores = parts(predicted[name]), [0]
        for answer in answers:
            expected = parts(answer["text"])
            common = longest(expected, actual)
            if common:
                precision, recall = 1.0 * common / len(actual), 1.0 * common / len(expected)
                scores.append((2 * precision * recall) / (precision + recall))
        f1 += max(scores)
        em += any(plain(answer["text"]) == plain(predicted[name]) for answer in answers)
    f1_score, em_score = 100.0 * f1 / len(items), 100.0 * em / len(items)
    average = (em_score + f1_score) * 0.5
    return {"exact": em_score, "f1": f1_score, "average": average, "total": len(items)}


def main() -> None:
    folder = pathlib.Path(os.environ["BERTJAX_DATA"]) / "xquad"
    predicted = {
        f"{file} {variant}": score(items, predictions(items, variant))
        for file in FILES
        for items in [read(file, folder)]
        for variant in VARIANTS
    }
    path = pathlib.Path(__file__).with_name("cmrc_scores.json")
    path.write_text(json.dumps(predicted, indent=1) + "\n")


if __name__ == "__main__":
    main()
