"""Scores of predictions on CMRC 2018 (Cui et al. 2019), by the arithmetic of its own script.

Chinese is compared by the character: SQuAD's words, which stand between spaces, would make an F1 of
it that is hardly more than exact match.
"""

import difflib
import re
from collections.abc import Mapping

from etils import epath
from nltk.tokenize import NLTKWordTokenizer

from bertjax.tasks.question_answering.metrics import read_predictions
from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Question, QuestionAnsweringDataset, read_squad

_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # noqa: RUF001
_PARTS = re.compile("([一-龥])|([^一-龥]+)")


def normalize(text: str) -> str:
    """Lower case, without spaces at the ends and the punctuation that the script names."""
    return text.lower().strip().translate(_PUNCTUATION)


def segments(text: str) -> tuple[str, ...]:
    """Each Chinese character, and the words of what stands between them, as NLTK has them.

    The script splits that into sentences first, by a model which only a network gives. It changes
    none of the gold answers of the dev and trial sets: a full stop must stand amid other words.
    """
    found: list[str] = []
    for character, rest in _PARTS.findall(normalize(text)):
        found += character or NLTKWordTokenizer().tokenize(rest)
    return tuple(found)


def f1(prediction: str, gold: str) -> float:
    """The harmonic mean of precision and recall of the longest run of segments in both."""
    ours, theirs = segments(prediction), segments(gold)
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    same = matcher.find_longest_match().size
    if same == 0:
        return 0.0
    precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def score_files(data: epath.PathLike, predictions: epath.PathLike) -> dict[str, float]:
    """`score` of files: a data set in SQuAD's layout, and a JSON object, id to text.

    Raises:
      InputError: one of them does not exist.
      InputError: one of them is not of that kind.
    """
    return score(read_squad(data), read_predictions(predictions))


def score(data: QuestionAnsweringDataset, predictions: Mapping[str, str]) -> dict[str, float]:
    """The official scores, in percent; a question without a prediction counts as wrong.

    Returns:
      `exact`, `f1`, their mean `average`, and `total`, the number of questions. `missing` questions
      have no prediction, `surplus` predictions no question.
    Raises:
      InputError: a question has no gold answer.
    """
    exact_sum, f1_sum, missing = 0, 0.0, 0
    for question in data.questions:
        golds = _golds(question)
        if question.id not in predictions:
            missing += 1
            continue
        prediction = predictions[question.id]
        exact_sum += any(normalize(prediction) == normalize(gold) for gold in golds)
        f1_sum += max(f1(prediction, gold) for gold in golds)
    total = len(data.questions)
    exact, mean_f1 = 100.0 * exact_sum / total, 100.0 * f1_sum / total
    return {
        "exact": exact,
        "f1": mean_f1,
        "average": (exact + mean_f1) * 0.5,
        "total": total,
        "missing": missing,
        "surplus": len(predictions) - (total - missing),
    }


def _golds(question: Question) -> list[str]:
    if not question.answers:
        raise InputError(f"question {question.id!r} has no gold answer, so nothing can be scored.")
    return [answer.text for answer in question.answers]
