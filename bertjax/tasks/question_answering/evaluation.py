"""Evaluation of question answering: a data set to batches, logits to answers and scores."""

import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.question_answering.decoding import Prediction, decode
from bertjax.tasks.question_answering.metrics import best_null_threshold, score
from bertjax.tasks.question_answering.objective import QuestionAnsweringObjective
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.question_answering.squad import QuestionAnsweringDataset
from data_pipelines.finetuning.question_answering.windows import (
    PassageCache,
    PassageWindows,
    WindowOptions,
    locate_answer,
    make_windows,
)
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

THRESHOLD = "null_score_diff_threshold"  # score and calibration of version 2
_PREDICTION_COUNTS = ("missing", "surplus")  # always 0 here: each question has a prediction
_MAX_WARNINGS = 3  # misplaced answers that are logged in full


class QuestionAnsweringEvalSet(PackedEvalSet):
    """A data set as packed windows, with the evaluation of their logits.

    Args:
      name: name of the data set, for messages and files.
      data: the questions.
      tokenizer: the model's tokenizer.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.
    """

    def __init__(
        self,
        name: str,
        data: QuestionAnsweringDataset,
        tokenizer: Tokenizer,
        objective: QuestionAnsweringObjective,
        *packing: Any,
    ) -> None:
        self.name, self.data = name, data
        self._passages = PassageCache(tokenizer)
        options = objective.window_options
        self._windows = build_windows(name, data, tokenizer, options, self._passages)
        self._has_null_regression = objective.has_null_regression
        super().__init__(self._windows, objective.sequence_shape, *packing)

    @property
    def truncated(self) -> Collection[int]:
        """Indices of the questions that lost tokens; passages are split into windows."""
        return self._windows.truncated

    def predictions(self, outputs: Iterable[Outputs]) -> Iterator[Prediction]:
        """Yield the prediction for each question."""
        logits = self.unpack_outputs(outputs, "question_answering_logits", "token")
        predictions = decode(self.data.questions, self._windows, self._passages, logits)
        if self._has_null_regression:
            return (dataclasses.replace(p, has_null_regression=True) for p in predictions)
        return predictions

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        odds: dict[str, float] | None = {} if self.data.version == 2 else None
        calibration = {THRESHOLD} if self.data.version == 2 else set()
        return ({*score(self.data, {}, odds)} | calibration) - {*_PREDICTION_COUNTS}

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the official scores in percent; for version 2 at the best threshold for F1.

        Version 2 adds `null_score_diff_threshold`: with null odds above it, a question has no
        answer; see `best_null_threshold`. The files are `predictions`, `nbest_predictions` and, for
        version 2, `null_odds`.
        """
        predictions = list(self.predictions(outputs))
        with_null = self.data.version == 2
        answers = {p.question.id: p.answer(None).text for p in predictions}
        files: dict[str, Any] = {"nbest_predictions": _nbest(predictions, with_null)}
        scores: dict[str, float] = {}
        if with_null:
            odds = {p.question.id: p.null_odds for p in predictions}
            swept = score(self.data, answers, odds)
            scores = {name: value for name, value in swept.items() if name.startswith("best")}
            scores[THRESHOLD] = threshold = best_null_threshold(self.data, swept, odds)
            answers = {
                name: "" if odds[name] > threshold else text for name, text in answers.items()
            }
            files["null_odds"] = odds
        scores |= score(self.data, answers)
        scores = {name: value for name, value in scores.items() if name not in _PREDICTION_COUNTS}
        examples = [
            f"{q.text} → {answers[q.id] or '-'} ({q.answers[0].text if q.answers else '-'})"
            for q in self.data.questions[:NUM_EXAMPLES_SHOWN]
        ]
        return Evaluation(scores, {"predictions": answers} | files, examples)


def build_windows(
    name: str,
    data: QuestionAnsweringDataset,
    tokenizer: Tokenizer,
    options: WindowOptions,
    passages: PassageCache,
) -> PassageWindows:
    """Return the windows of a data set; log contradictory or misplaced answers, and truncation."""
    for marked, has in ((True, "answers"), (False, "no answers")):
        ids = [
            q.id for q in data.questions if q.is_impossible is marked and bool(q.answers) is marked
        ]
        if ids:
            _log.warning(
                "%s: %d questions have is_impossible=%s and %s. They are trained as unanswerable. "
                "The first: %s.",
                name,
                len(ids),
                str(marked).lower(),
                has,
                ", ".join(ids[:_MAX_WARNINGS]),
            )
    located = [locate_answer(question) for question in data.questions]
    problems = {
        question.id: problem
        for question, (_, problem) in zip(data.questions, located, strict=True)
        if problem
    }
    for problem in list(problems.values())[:_MAX_WARNINGS]:
        _log.warning("%s: %s.", name, problem)
    if problems:
        _log.warning(
            "%s: %d of %d answers are not at their answer_start. Those found elsewhere in the "
            "passage are moved there, the others count as no answer. Questions: %s.",
            name,
            len(problems),
            len(located),
            ", ".join(problems),
        )
    windows = make_windows(
        data.questions, tokenizer, options, passages, [answer for answer, _ in located]
    )
    if windows.truncated:
        _log.warning(
            "%s: %d questions were truncated to data.max_query_length=%d tokens.",
            name,
            len(windows.truncated),
            options.max_query_length,
        )
    return windows


def _nbest(predictions: Sequence[Prediction], with_null: bool) -> dict[str, list[dict[str, Any]]]:
    return {
        prediction.question.id: [
            {
                "text": candidate.text,
                "start": candidate.start,
                "end": candidate.end,
                "probability": probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate, probability in prediction.probabilities(with_null)
        ]
        for prediction in predictions
    }
