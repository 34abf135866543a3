"""Scores of SQuAD predictions, by the arithmetic of the official scripts, digit for digit.

1.1 (Rajpurkar et al. 2016): a question without a prediction counts as wrong. 2.0 (Rajpurkar et al.
2018): predicting no answer is predicting "", right where there is none. The official script of 2.0
fails on a question without a prediction; here it counts as wrong there too.
"""

import collections
import functools
import operator
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Question, QuestionAnsweringDataset, read_squad
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)


def normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(prediction: str, gold: str) -> float:
    """1 where both are the same text once normalised, else 0."""
    return float(normalize(prediction) == normalize(gold))


def f1(prediction: str, gold: str, version: int) -> float:
    """The harmonic mean of precision and recall over words, each counted as often as it comes.

    Where either has no words, 0 in version 1, and in version 2 whether both have none.
    """
    ours, theirs = normalize(prediction).split(), normalize(gold).split()
    if version == 2 and not (ours and theirs):
        return float(ours == theirs)
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def score_files(
    data: epath.PathLike, predictions: epath.PathLike, null_odds: epath.PathLike | None = None
) -> dict[str, float]:
    """`score` of files: a data set, and JSON objects from the ids of questions.

    Raises:
      InputError: one of them does not exist or is not of that kind, or null odds are given for
        version 1.
    """
    questions = read_squad(data)
    if questions.version == 1 and null_odds is not None:
        raise InputError(f"no question of {data} says is_impossible: leave null odds out.")
    odds = None if null_odds is None else _read_object(null_odds, (int, float), "a number")
    return score(questions, read_predictions(predictions), odds)


def read_predictions(path: epath.PathLike) -> dict[str, str]:
    """A JSON object, question id to text.

    Raises:
      InputError: there is no such file, or it holds something else.
    """
    return _read_object(path, (str,), "text")


def _read_object(path: epath.PathLike, kinds: tuple[type, ...], wanted: str) -> dict[str, Any]:
    file = check_file(path)
    try:
        content = parse_json(file.read_text())
    except ValueError as error:
        raise InputError(
            f"{path} is no JSON ({error}): give one object, id to {wanted}."
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no object: give one, from each question's id to {wanted}.")
    for name, value in content.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InputError(f"{path} gives {value!r} for question {name!r}: it must be {wanted}.")
    return content


def score_per_question(
    data: QuestionAnsweringDataset, predictions: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """(exact, F1) of each question by its id, each the best over its gold answers."""
    return {
        question.id: _best_over_golds(question, predictions[question.id], data.version)
        if question.id in predictions
        else (0.0, 0.0)
        for question in data.questions
    }


def _best_over_golds(question: Question, prediction: str, version: int) -> tuple[float, float]:
    golds = [answer.text for answer in question.answers]
    if version == 2:
        golds = [gold for gold in golds if normalize(gold)] or [""]
    elif not golds:
        raise InputError(f"question {question.id!r} has no gold answer, so nothing can be scored.")
    return (
        max(exact(prediction, gold) for gold in golds),
        max(f1(prediction, gold, version) for gold in golds),
    )


def score(
    data: QuestionAnsweringDataset,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The official scores, in percent.

    Args:
      predictions: question id -> text.
      null_odds: question id -> odds that there is no answer, for version 2. A question whose odds
        are above 1 counts as predicted to have none, as the official script has it.

    Returns:
      `exact`, `f1` and `total`, the number of questions. For version 2 also the same of the
      questions that have an answer (`HasAns_*`) and of those that have none (`NoAns_*`); with
      `null_odds` also `best_exact` and `best_f1`, had "" been predicted above the odds
      `best_exact_thresh` and `best_f1_thresh`.
      `missing` questions have no prediction, `surplus` predictions no question.
    Raises:
      InputError: a predicted question has no odds, or a question of version 1 no gold answer.
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
            raise InputError(f"question {name!r} has a prediction and no null odds: give both.")
    null = {name for name in scores if name in predictions and odds[name] > 1.0}
    decided = scores | {name: (float(not answerable[name]),) * 2 for name in null}
    result = _means("", decided, decided)
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        names = [name for name in scores if answerable[name] is wanted]
        if names:
            result |= _means(prefix, decided, names)
    if null_odds is not None:
        for i, kind in enumerate(("exact", "f1")):
            of_kind = {name: pair[i] for name, pair in scores.items()}
            best = _best_threshold(of_kind, predictions, odds, answerable)
            result[f"best_{kind}"], result[f"best_{kind}_thresh"] = best
    return result | counts


def _sum_sequentially(values: Iterable[float]) -> float:
    """As the script of 1.1 does; `sum`, which that of 2.0 uses, keeps more digits of late."""
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
    """The best mean score, in percent, and the odds above which "" is predicted for it.

    The sweep begins where all is predicted to have no answer.
    """
    current = best = float(sum(not has for has in answerable.values()))
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
