"""Make rouge_scores.json: ROUGE-L of random ASCII texts by rouge-score.

    python tests/goldens/make_rouge_scores.py

Needs rouge-score 0.1.2. Python's own generator draws the texts, the same on every machine, so only
scores are stored.
"""

import json
import pathlib
import random

PATH = pathlib.Path(__file__).with_name("rouge_scores.json")
CASES = 200
WORDS = ("a", "The", "the", "U.S.", "it's", "3.5%", "well-known", "x_y", "?", "(b)", "B", "--")


def draw_pair(case: int) -> tuple[str, str]:
    """Return a text and its reference; in some cases without words, equal, or unrelated."""
    draw = random.Random(f"rouge {case}")
    reference = draw.choices(WORDS, k=draw.randint(0, 12))
    text = [word for word in reference if draw.random() < 0.7]
    if case % 3:
        text += draw.choices(WORDS, k=draw.randint(0, 5))
    if case % 7 == 1:
        draw.shuffle(text)
    if case % 10 == 3:
        text = list(reference)
    return " ".join(text), "  ".join(reference)


def main() -> None:
    """Write the scores."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    pairs = [draw_pair(case) for case in range(CASES)]
    scores = [scorer.score(reference, text)["rougeL"].fmeasure for text, reference in pairs]
    PATH.write_text(json.dumps([round(score, 9) for score in scores]) + "\n")


if __name__ == "__main__":
    main()
