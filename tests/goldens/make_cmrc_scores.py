"""Makes cmrc_scores.json: the arithmetic of CMRC 2018's own script, with NLTK's sentences.

    BERTJAX_DATA=... NLTK_DATA=... python tests/goldens/make_cmrc_scores.py

Needs `nltk` 3.8 and, in the folder that NLTK_DATA names, its model of English sentences ("punkt"),
by which the script splits what is not Chinese before it looks for words.
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
    """Id, passage and gold answers of each question."""
    articles = json.loads((folder / file).read_text("utf-8"))["data"]
    return [
        (qa["id"], part["context"], qa["answers"])
        for article in articles
        for part in article["paragraphs"]
        for qa in part["qas"]
    ]


def change(text: str, passage: str, place: int, kind: float) -> str:
    """A gold answer as a model might have it."""
    end = place + len(text)
    changes = (
        lambda: text,
        lambda: "",
        lambda: f"《{text}》",
        lambda: f" {text.upper()}。",
        lambda: text[: len(text) // 2],
        lambda: text[: len(text) // 3] + text[2 * len(text) // 3 :],
        lambda: passage[max(0, place - 9) : end + 30],
        lambda: passage[max(0, place - 60) : end],
        lambda: " - ".join(text),
    )
    return changes[int(kind * len(changes))]()


def predictions(items: Items, variant: str) -> dict[str, str]:
    """Predictions of one of VARIANTS."""
    draw = random.Random(variant)
    found = {}
    for name, passage, answers in items:
        answer, kind, rate = (
            answers[int(draw.random() * len(answers))],
            draw.random(),
            draw.random(),
        )
        if variant == "gold":
            found[name] = answers[0]["text"]
        elif variant == "empty":
            found[name] = ""
        elif not (variant == "missing" and rate < 0.3):
            found[name] = change(answer["text"], passage, answer["answer_start"], kind)
    if variant == "surplus":
        found |= {f"nobody asked {i}": "回答" for i in range(7)}
    return found


def score(items: Items, found: dict[str, str]) -> dict[str, float]:
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
        for one in a:
            row = [0] + [above[j] + 1 if one == other else 0 for j, other in enumerate(b)]
            best, above = max(best, *row), row
        return best

    f1 = em = 0
    for name, _, answers in items:
        if name not in found:
            continue
        ours, each = parts(found[name]), [0]
        for answer in answers:
            theirs = parts(answer["text"])
            same = longest(theirs, ours)
            if same:
                precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
                each.append((2 * precision * recall) / (precision + recall))
        f1 += max(each)
        em += any(plain(answer["text"]) == plain(found[name]) for answer in answers)
    f1_score, em_score = 100.0 * f1 / len(items), 100.0 * em / len(items)
    average = (em_score + f1_score) * 0.5
    return {"exact": em_score, "f1": f1_score, "average": average, "total": len(items)}


def main() -> None:
    folder = pathlib.Path(os.environ["BERTJAX_DATA"]) / "xquad"
    found = {
        f"{file} {variant}": score(items, predictions(items, variant))
        for file in FILES
        for items in [read(file, folder)]
        for variant in VARIANTS
    }
    path = pathlib.Path(__file__).with_name("cmrc_scores.json")
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
