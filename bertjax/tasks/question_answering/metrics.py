"""Scores of SQuAD predictions, with the arithmetic of the official scripts.

In 1.1 (Rajpurkar et al. 2016) a question without a prediction counts as wrong. In 2.0 (Rajpurkar et
al. 2018) the prediction "" means no answer, which is correct for unanswerable questions. The
official 2.0 script fails on a question without a prediction; here it counts as wrong.
"""

import collections
import functools
import math
import operator
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import (
    Question,
    QuestionAnsweringDataset,
    read_squad,
)
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)


def normalize(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, single-spaced."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(prediction: str, gold: str) -> float:
    """Return 1 if both normalized texts are equal, else 0."""
    return float(normalize(prediction) == normalize(gold))


def f1(prediction: str, gold: str, version: int) -> float:
    """Return F1 over the words of the normalized texts, with repetition.

    If either text has no words, F1 is 0 in version 1. In version 2 it is 1 if neither has any.
    """
    predicted, expected = normalize(prediction).split(), normalize(gold).split()
    if version == 2 and not (predicted and expected):
        return float(predicted == expected)
    common = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if common == 0:
        return 0.0
    precision, recall = 1.0 * common / len(predicted), 1.0 * common / len(expected)
    return (2 * precision * recall) / (precision + recall)


def score_files(
    data: epath.PathLike, predictions: epath.PathLike, null_odds: epath.PathLike | None = None
) -> dict[str, float]:
    """Return `score` of files.

    Args:
      data: questions in SQuAD's layout, with their gold answers.
      predictions: JSON object of question id to text.
      null_odds: JSON object of question id to a number; see `score`.

    Raises:
      InputError: a file does not exist or has another layout, or version 1 has null odds.
    """
    questions = read_squad(data)
    if questions.version == 1 and null_odds is not None:
        raise InputError(
            f"{data}: no question has is_impossible, so null odds have no meaning. Leave them out."
        )
    odds = None if null_odds is None else _read_object(null_odds, (int, float), "a number")
    return score(questions, read_predictions(predictions), odds)


def read_predictions(path: epath.PathLike) -> dict[str, str]:
    """Return the JSON object of a file, question id to text.

    Raises:
      InputError: the file does not exist or holds something else.
    """
    return _read_object(path, (str,), "text")


def _read_object(path: epath.PathLike, types: tuple[type, ...], type_name: str) -> dict[str, Any]:
    file = check_file(path)
    try:
        content = parse_json(file.read_text())
    except ValueError as error:
        raise InputError(
            f"{path}: invalid JSON ({error}). Write one object, question id to {type_name}."
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: no JSON object. Write one object, question id to {type_name}.")
    for name, value in content.items():
        if not isinstance(value, types) or isinstance(value, bool):
            raise InputError(f"{path}: question {name!r} has {value!r}. Write {type_name}.")
    return content


def gold_texts(question: Question) -> list[str]:
    """Return the texts of a question's gold answers; raises InputError without any."""
    if not question.answers:
        raise InputError(
            f"question {question.id!r} has no gold answer and cannot be scored. Leave it out."
        )
    return [answer.text for answer in question.answers]


def mean_scores(
    data: QuestionAnsweringDataset,
    predictions: Mapping[str, str],
    exact: Callable[[str, str], float],
    f1: Callable[[str, str], float],
) -> dict[str, float]:
    """Return scores in percent of data whose questions all have answers.

    Args:
      data: the questions with their gold answers.
      predictions: question id to text.
      exact: exact match of a prediction and a gold answer.
      f1: F1 of a prediction and a gold answer.

    Returns:
      `exact` and `f1`, each the best over the gold answers and 0 without a prediction; `total`, the
      number of questions; `missing` questions without a prediction, and `surplus` predictions.

    Raises:
      InputError: a question has no gold answer.
    """
    sums, missing = [0.0, 0.0], 0
    for question in data.questions:
        golds = gold_texts(question)
        if question.id not in predictions:
            missing += 1
            continue
        for i, metric in enumerate((exact, f1)):
            sums[i] += max(metric(predictions[question.id], gold) for gold in golds)
    total = len(data.questions)
    return {
        "exact": 100.0 * sums[0] / total,
        "f1": 100.0 * sums[1] / total,
        "total": total,
        "missing": missing,
        "surplus": len(predictions) - (total - missing),
    }


def score_per_question(
    data: QuestionAnsweringDataset, predictions: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """Return (exact, F1) by question id, each the best over the gold answers."""
    return {
        question.id: _best_over_golds(question, predictions[question.id], data.version)
        if question.id in predictions
        else (0.0, 0.0)
        for question in data.questions
    }


def _best_over_golds(question: Question, prediction: str, version: int) -> tuple[float, float]:
    if version == 2:
        golds = [answer.text for answer in question.answers if normalize(answer.text)] or [""]
    else:
        golds = gold_texts(question)
    return (
        max(exact(prediction, gold) for gold in golds),
        max(f1(prediction, gold, version) for gold in golds),
    )


def score(
    data: QuestionAnsweringDataset,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the official scores in percent.

    Args:
      data: the questions with their gold answers.
      predictions: question id to text.
      null_odds: question id to the odds of no answer, for version 2. As in the official script, a
        question with odds above 1 counts as predicted to have no answer.

    Returns:
      `exact`, `f1` and `total`, the number of questions. Version 2 adds these for the answerable
      (`HasAns_*`) and unanswerable (`NoAns_*`) questions. `null_odds` add `best_exact` and
      `best_f1`, the scores if "" is predicted above the odds `best_exact_thresh` and
      `best_f1_thresh`. `missing` counts questions without a prediction, `surplus` predictions
      without a question.

    Raises:
      InputError: a prediction has no odds, or a question of version 1 has no gold answer.
    """
    scores = score_per_question(data, predictions)
    counts = {
        "missing": sum(name not in predictions for name in scores),
        "surplus": sum(name not in scores for name in predictions),
    }
    if data.version == 1:
        return _means("", scores, scores, _sum_sequentially) | counts

    odds = {name: 0.0 for name in predictions} if null_odds is None else null_odds
    answerable = {question.id: bool(question.answers) for question in data.questions}
    for name in scores:
        if name in predictions and name not in odds:
            raise InputError(f"question {name!r} has a prediction and no null odds. Add its odds.")
    null = {name for name in scores if name in predictions and odds[name] > 1.0}
    decided = scores | {name: (float(not answerable[name]),) * 2 for name in null}
    result = _means("", decided, decided)
    for prefix, has_answer in (("HasAns_", True), ("NoAns_", False)):
        names = [name for name in scores if answerable[name] is has_answer]
        if names:
            result |= _means(prefix, decided, names)
    if null_odds is not None:
        for i, metric in enumerate(("exact", "f1")):
            values = {name: pair[i] for name, pair in scores.items()}
            best = _best_threshold(values, predictions, odds, answerable)
            result[f"best_{metric}"], result[f"best_{metric}_thresh"] = best
    return result | counts


def best_null_threshold(
    data: QuestionAnsweringDataset, scores: Mapping[str, float], null_odds: Mapping[str, float]
) -> float:
    """Return the odds of no answer above which "" is to be predicted for the best F1.

    It is `best_f1_thresh`, or below all odds if answering nothing is best, where the official
    sweep returns 0.

    Args:
      data: the questions, of version 2.
      scores: `score` of predictions for them with `null_odds`.
      null_odds: question id to the odds of no answer.
    """
    num_unanswerable = sum(not question.answers for question in data.questions)
    if scores["best_f1"] == 100.0 * num_unanswerable / len(data.questions):  # start of the sweep
        return math.nextafter(min(null_odds.values()), -math.inf)
    return scores["best_f1_thresh"]


def _sum_sequentially(values: Iterable[float]) -> float:
    """Return the sum as the 1.1 script adds; `sum`, as in the 2.0 script, compensates errors."""
    return functools.reduce(operator.add, values, 0.0)


def _means(
    prefix: str,
    scores: Mapping[str, tuple[float, float]],
    names: Collection[str],
    add: Callable[[Iterable[float]], float] = sum,
) -> dict[str, float]:
    sums = [add(scores[name][i] for name in names) for i in (0, 1)]
    exact, f1 = (100.0 * value / len(names) for value in sums)
    return {f"{prefix}exact": exact, f"{prefix}f1": f1, f"{prefix}total": len(names)}


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best mean score in percent, and the odds above which it needs "" predicted.

    The sweep starts with "" predicted for every question.
    """
    current = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = 0.0
    for name in sorted(odds, key=lambda name: odds[name]):
        if name not in scores or name not in predictions:
            continue
        if answerable[name]:
            current += scores[name]
        elif predictions[name]:
            current -= 1
        if current > best:
            best, threshold = current, odds[name]
    return 100.0 * best / len(scores), threshold
