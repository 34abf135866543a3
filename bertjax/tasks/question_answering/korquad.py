"""Scores of predictions on KorQuAD 1.0 (Lim et al. 2019), with the arithmetic of its script.

F1 is over characters, because Korean words carry their particles. SQuAD's F1 over words would count
an answer with a particle as wrong.
"""

import collections
import string
from collections.abc import Mapping

from bertjax.tasks.question_answering.metrics import mean_scores
from data_pipelines.finetuning.question_answering.squad import QuestionAnsweringDataset

# The script replaces quotes and brackets by spaces, then removes the other ASCII punctuation.
_PUNCTUATION = str.maketrans(
    dict.fromkeys(string.punctuation, "") | dict.fromkeys("'\"《》<>〈〉()‘’", " ")  # noqa: RUF001 (Korean)
)


def normalize(text: str) -> str:
    """Return the text in lower case, without punctuation, single-spaced."""
    return " ".join(text.translate(_PUNCTUATION).lower().split())


def exact(prediction: str, gold: str) -> float:
    """Return 1 if both normalized texts are equal, else 0."""
    return float(normalize(prediction) == normalize(gold))


def f1(prediction: str, gold: str) -> float:
    """Return F1 over the characters of the normalized texts without spaces, with repetition."""
    predicted, expected = (normalize(text).replace(" ", "") for text in (prediction, gold))
    common = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if common == 0:
        return 0.0
    precision, recall = 1.0 * common / len(predicted), 1.0 * common / len(expected)
    return (2 * precision * recall) / (precision + recall)


def score(data: QuestionAnsweringDataset, predictions: Mapping[str, str]) -> dict[str, float]:
    """Return the official scores in percent, see `mean_scores`."""
    return mean_scores(data, predictions, exact, f1)
