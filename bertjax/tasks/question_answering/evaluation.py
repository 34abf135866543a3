"""Questions on passages, read and answered: from a data set to batches, from logits to scores."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.question_answering.decoding import Prediction, decode
from bertjax.tasks.question_answering.metrics import score
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation, HostBatch, Input
from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.squad import (
    Question,
    QuestionAnsweringDataset,
    check_passage,
    parse_squad,
)
from data_pipelines.finetuning.windows import (
    PassageCache,
    PassageWindows,
    WindowOptions,
    locate_answer,
    make_windows,
)
from data_pipelines.parsing import parse_json
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_PREDICTION_COUNTS = ("missing", "surplus")  # of predictions that are all ours: 0
_MAX_WARNINGS = 3  # of the answers that are not at their place, in full


class QuestionAnsweringEvalSet:
    """A data set as windows, several to a row, and what becomes of their logits.

    Args:
      name: of the data set, for messages and files.
      row: what one row holds at most.
      rows: of each batch, over all hosts; 0 for as many as there are, up to some.
      hosts, host: how many share them, and which of them this is.
    """

    def __init__(
        self,
        name: str,
        data: QuestionAnsweringDataset,
        tokenizer: Tokenizer,
        options: WindowOptions,
        row: PackedShape,
        rows: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
    ) -> None:
        self.name, self.data = name, data
        self._passages = PassageCache(tokenizer)
        self._windows = build_windows(name, data, tokenizer, options, self._passages)
        self._packed = PackedEvalSet(self._windows, row, rows, num_processes, process_id)

    def batches(self) -> Iterator[HostBatch]:
        """This host's rows of each batch."""
        return self._packed.batches()

    def predictions(self, logits: Sequence[np.ndarray]) -> Iterator[Prediction]:
        """What is answered to each question, from the span logits of each batch [R, T, 2]."""
        of_windows = self._packed.unpack_outputs(logits, "token")
        return decode(self.data.questions, self._windows, self._passages, of_windows)

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """Official scores, in percent; for version 2 at the threshold that is best for F1.

        With version 2 comes that `null_score_diff_threshold` of the null odds, above which there is no answer. It
        is `best_f1_thresh`, but below all odds where to answer nothing is best, for which the
        official sweep says 0. The files are `predictions`,
        `nbest_predictions` and, for version 2, `null_odds`.
        """
        found = list(self.predictions([each["question_answering_logits"] for each in outputs]))
        with_null = self.data.version == 2
        best = {each.question.id: each.answer(None).text for each in found}
        files: dict[str, Any] = {"nbest_predictions": _nbest(found, with_null)}
        scores, calibration = {}, {}
        if with_null:
            odds = {each.question.id: each.null_odds for each in found}
            swept = score(self.data, best, odds)
            scores = {name: value for name, value in swept.items() if name.startswith("best")}
            null_score_diff_threshold = swept["best_f1_thresh"]
            unanswerable = sum(not question.answers for question in self.data.questions)
            if swept["best_f1"] == 100.0 * unanswerable / len(odds):  # where the sweep begins
                null_score_diff_threshold = float(np.nextafter(min(odds.values()), -np.inf))
            scores["threshold"] = calibration["threshold"] = null_score_diff_threshold
            best = {
                name: "" if odds[name] > null_score_diff_threshold else text
                for name, text in best.items()
            }
            files["null_odds"] = odds
        scores |= score(self.data, best)
        kept = {name: value for name, value in scores.items() if name not in _PREDICTION_COUNTS}
        examples = [
            f"{q.text} → {best[q.id] or '-'} ({q.answers[0].text if q.answers else '-'})"
            for q in self.data.questions[:NUM_EXAMPLES_SHOWN]
        ]
        return Evaluation(kept, {"predictions": best} | files, calibration, examples)


def build_windows(
    name: str,
    data: QuestionAnsweringDataset,
    tokenizer: Tokenizer,
    options: WindowOptions,
    passages: PassageCache,
) -> PassageWindows:
    """The windows of a data set; says what is wrong with its answers and questions."""
    located = [locate_answer(question) for question in data.questions]
    wrong = {
        question.id: phrase
        for question, (_, phrase) in zip(data.questions, located, strict=True)
        if phrase
    }
    for phrase in list(wrong.values())[:_MAX_WARNINGS]:
        _log.warning("%s: %s.", name, phrase)
    if wrong:
        _log.warning(
            "%s: %d of %d answers are not at their place; those found elsewhere in the passage "
            "are taken there, the others count as no answer. They are of questions %s.",
            name,
            len(wrong),
            len(located),
            ", ".join(wrong),
        )
    windows = make_windows(
        data.questions, tokenizer, options, passages, [answer for answer, _ in located]
    )
    if windows.num_truncated:
        _log.warning(
            "%s: %d questions were cut to data.max_query_length=%d pieces.",
            name,
            windows.num_truncated,
            options.max_query_length,
        )
    return windows


def _nbest(predictions: Sequence[Prediction], with_null: bool) -> dict[str, list[dict[str, Any]]]:
    return {
        each.question.id: [
            {
                "text": candidate.text,
                "start": candidate.start,
                "end": candidate.end,
                "probability": probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate, probability in each.probabilities(with_null)
        ]
        for each in predictions
    }


def parse_question_inputs(lines: Iterable[str]) -> Iterable[Input]:
    """Questions to be answered.

    Args:
      lines: of JSON, each with "question" and "context", blank ones passed over; or a whole file in
        SQuAD's layout, whose questions come as a list.
    Raises:
      InputError: the file is not of the layout.
    """
    lines = iter(lines)
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return []
    before, text = first[0] - 1, first[1]
    if not text.lstrip().startswith("{") or "question" in _parse(text):
        return (
            Input(f"line {number}", _parse(line))
            for number, line in itertools.chain([first], numbered)
        )
    data = parse_squad("the input", "\n" * before + text + "".join(lines))
    return [
        Input(
            f"question {each.id!r}", {"id": each.id, "question": each.text, "context": each.passage}
        )
        for each in data.questions
    ]


def _parse(line: str) -> dict[str, Any]:
    """The object that a line is; empty where it is none."""
    try:
        said = parse_json(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def to_question(item: Input) -> Question:
    """The question that is asked, whose id is the last word of its place where it has none.

    Raises:
      InputError: it is none; its place is named.
    """
    location, said = item.location, {} if isinstance(item.said, str) else item.said
    text, passage = said.get("question"), said.get("context")
    if not isinstance(text, str) or not isinstance(passage, str):
        raise InputError(
            f'{location} is not of the form {{"question": "...", "context": "..."}}: '
            "write a JSON object a line."
        )
    try:
        check_passage(location, passage)
    except InputError as error:
        raise InputError(f"{error}.") from error
    return Question(str(said.get("id", location.rpartition(" ")[2])), text, passage)
