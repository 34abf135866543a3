"""Report of a question answering evaluation: scores by outcome and question word, and errors."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bertjax.html.page import Section
from bertjax.html.tables import TextTable
from bertjax.tasks.question_answering.metrics import f1, score_per_question
from bertjax.tasks.saved_evaluation import read_evaluation
from data_pipelines.finetuning.question_answering.squad import Question, QuestionAnsweringDataset
from data_pipelines.finetuning.question_answering.windows import nearest_answer

MAX_ERRORS_SHOWN = 12  # errors of each outcome
CONTEXT_CHARS = 400  # characters of the passage shown on either side of an answer

CORRECT = "correct"
# Titles of the errors, in the order of the page.
ERROR_OUTCOMES = {
    "missed": "No answer predicted, but there is one",
    "spurious": "An answer predicted, but there is none",
    "boundary": "Overlap with the gold answer",
    "location": "No overlap with the gold answer",
}
QUESTION_WORDS = ("what", "who", "when", "where", "which", "how", "why")
TITLES = {"exact": "Exact match", "f1": "F1"}
_ANSWERABILITY_TITLES = {
    "HasAns_exact": "HasAns exact match",
    "HasAns_f1": "HasAns F1",
    "NoAns_exact": "NoAns exact match",
    "NoAns_f1": "NoAns F1",
}

_NBEST = {"text": str, "start": int, "probability": float}
_SCHEMAS = {"predictions": {str: str}, "nbest_predictions": {str: [_NBEST]}}
Span = tuple[int, int]  # characters [first, last) of a passage


@dataclasses.dataclass(frozen=True)
class ScoredAnswer:
    """A question with its prediction and scores.

    Attributes:
      question: the question with its gold answers.
      text: predicted answer, "" for no answer.
      exact: exact match, 0 or 1.
      f1: F1 score, 0 to 1.
      answer_span: position of the prediction in the passage; None for no answer.
      gold_span: position of the gold answer with the highest F1; None without gold answer, or if
        the passage does not contain it.
      probability: probability of the prediction among the n best.
    """

    question: Question
    text: str
    exact: float
    f1: float
    answer_span: Span | None
    gold_span: Span | None
    probability: float

    @property
    def outcome(self) -> str:
        """`CORRECT` or a key of `ERROR_OUTCOMES`."""
        if self.exact:
            return CORRECT
        if self.answer_span is None or not self.question.answers:
            return "missed" if self.question.answers else "spurious"
        first, last = self.answer_span
        overlap = self.gold_span and first < self.gold_span[1] and self.gold_span[0] < last
        return "boundary" if overlap else "location"


class Segment(NamedTuple):
    """A stretch of a passage and its CSS classes, "" or out of "predicted" and "gold"."""

    text: str
    classes: str = ""


def score_answers(
    data: QuestionAnsweringDataset,
    predictions: Mapping[str, str],
    nbest: Mapping[str, Sequence[Mapping]],
) -> list[ScoredAnswer]:
    """Return every question of a data set with the scores of its prediction.

    Args:
      data: questions with gold answers.
      predictions: question id -> text; a missing prediction counts as no answer.
      nbest: question id -> n best answers, which have positions and probabilities.
    """
    scores = score_per_question(data, predictions)
    answers = []
    for question in data.questions:
        text = predictions.get(question.id, "")
        entries = [entry for entry in nbest.get(question.id, ()) if entry["text"] == text]
        answer_span = gold_span = None
        if text:
            start = entries[0]["start"] if entries else question.passage.find(text)
            answer_span = start, start + len(text)
        if question.answers:
            best = max(question.answers, key=lambda answer: f1(text, answer.text, data.version))
            gold = nearest_answer(question.passage, best)
            gold_span = (gold.start, gold.start + len(gold.text)) if gold else None
        probability = float(entries[0]["probability"]) if entries else 0.0
        answers.append(
            ScoredAnswer(question, text, *scores[question.id], answer_span, gold_span, probability)
        )
    return answers


def render(
    name: str, directory: epath.Path, sets: Sequence[tuple[str, QuestionAnsweringDataset]]
) -> str:
    """Return the page of an evaluation.

    Args:
      name: title of the page.
      directory: the output of `bertjax evaluate`.
      sets: name and questions of each eval set.

    Raises:
      InputError: the directory is not a complete evaluation.
    """
    names = [set_name for set_name, _ in sets]
    evaluation = read_evaluation(directory, names, _SCHEMAS)
    answers: list[ScoredAnswer] = []
    for (_, data), files in zip(sets, evaluation.files, strict=True):
        answers += score_answers(data, files["predictions"], files["nbest_predictions"])
    outcomes = {CORRECT: "Correct"} | ERROR_OUTCOMES
    words = {word: word.capitalize() for word in (*QUESTION_WORDS, "other")}
    threshold = evaluation.scores.get("null_score_diff_threshold")
    rule = (
        "" if threshold is None else f"predicted if its score exceeds the best by {threshold:.2f}"
    )
    by_outcome = _grouped_scores(answers, "Outcome", outcomes, lambda answer: answer.outcome)
    by_word = _grouped_scores(answers, "Word", words, _question_word)
    groups = (_error_group(answers, outcome) for outcome in ERROR_OUTCOMES)
    return evaluation.render(
        name,
        TITLES | _ANSWERABILITY_TITLES,
        ("Questions", len(answers)),
        [
            Section("Answers by outcome", table=by_outcome),
            Section("Questions by question word", table=by_word),
        ],
        score_format=".1f",
        facts=[("No answer", rule)],
        template="question_answering.html.j2",
        error_groups=[group for group in groups if group["errors"]],
    )


def _question_word(answer: ScoredAnswer) -> str:
    words = answer.question.text.lower().split()
    return next((word for word in words if word in QUESTION_WORDS), "other")


def _grouped_scores(
    answers: Sequence[ScoredAnswer],
    title: str,
    groups: Mapping[str, str],
    key: Callable[[ScoredAnswer], str],
) -> TextTable:
    """Return number, share and mean scores of each group that has answers."""
    rows = []
    for group, label in groups.items():
        members = [answer for answer in answers if key(answer) == group]
        if members:
            exact_match = 100 * sum(answer.exact for answer in members) / len(members)
            mean_f1 = 100 * sum(answer.f1 for answer in members) / len(members)
            share = f"{len(members) / len(answers):.1%}"
            count = f"{len(members):,}"
            rows.append((label, count, share, f"{exact_match:.1f}", f"{mean_f1:.1f}"))
    return TextTable((title, "Questions", "Share", "Exact match", "F1"), rows)


def _error_group(answers: Sequence[ScoredAnswer], outcome: str) -> dict[str, Any]:
    """Return the errors of an outcome, the lost F1 times the probability in descending order."""
    errors = [answer for answer in answers if answer.outcome == outcome]
    errors.sort(key=lambda answer: (answer.f1 - 1) * answer.probability)
    return {
        "title": ERROR_OUTCOMES[outcome],
        "note": (
            f"{len(errors):,} error{'s' * (len(errors) > 1)}, sorted by lost F1 times probability. "
            "Shaded: gold answer; underlined: prediction."
        ),
        "errors": list(map(_describe_error, errors[:MAX_ERRORS_SHOWN])),
    }


def _describe_error(answer: ScoredAnswer) -> dict[str, Any]:
    gold = " / ".join(dict.fromkeys(gold.text for gold in answer.question.answers))
    return {
        "id": answer.question.id,
        "question": answer.question.text,
        "facts": [
            ("Prediction", f"{answer.text or 'no answer'} ({answer.probability:.0%})"),
            ("Gold", gold or "no answer"),
            ("F1", f"{answer.f1:.2f}"),
        ],
        "passage": mark_spans(answer.question.passage, answer.answer_span, answer.gold_span),
    }


def mark_spans(passage: str, answer_span: Span | None, gold_span: Span | None) -> list[Segment]:
    """Return the passage in segments, without text far from both spans."""
    spans = {"predicted": answer_span, "gold": gold_span}
    ends = sorted({0, len(passage), *(end for span in spans.values() if span for end in span)})
    segments = []
    for first, last in itertools.pairwise(ends):
        classes = [name for name, span in spans.items() if span and span[0] <= first < span[1]]
        text = passage[first:last]
        if not classes:
            before, after = CONTEXT_CHARS * (first > 0), CONTEXT_CHARS * (last < len(passage))
            if not (before or after):
                before = 2 * CONTEXT_CHARS
            if len(text) > before + after:
                text = _join_whole_words(text[:before], text[len(text) - after :])
        segments.append(Segment(text, " ".join(classes)))
    return segments


def _join_whole_words(before: str, after: str) -> str:
    """Join the text on both sides of a gap, without the words that it cuts."""
    kept = [before.rpartition(" ")[0] or before, "…", after.partition(" ")[2] or after]
    return " ".join(filter(None, kept))
