"""Multiple-choice questions in the layout of SWAG (Zellers et al. 2018) or as JSON objects."""

import dataclasses
import logging
import re
import string
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import truncated_pair_lengths
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.labels import label_text, parse_list
from data_pipelines.finetuning.missing_labels import MISSING_MARKS, log_missing_labels
from data_pipelines.finetuning.table import TableRow
from data_pipelines.vocabulary.basic_tokenization import is_blank
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("data_pipelines")
_ENDING = re.compile(r"ending(\d+)")
# Names of columns in other data sets: HellaSwag, RACE, ARC, CommonsenseQA, OpenBookQA, ReClor.
_KEYS = {
    "context": ("ctx", "article"),
    "question": ("question_stem",),
    "choices": ("endings", "options", "answers"),
    "label": ("answerKey", "answer"),
}


class MultipleChoiceQuestion(NamedTuple):
    """A question with several choices, one of which is right.

    Attributes:
      location: file and line for error messages.
      context: the first text of each pair; the question, if there is no other context.
      choices: the second texts.
      label: index of the right choice; None if unlabeled.
      question: start of the second texts, if it is no part of the context; else "".
    """

    location: str
    context: str
    choices: tuple[str, ...]
    label: int | None
    question: str = ""

    @property
    def context_and_question(self) -> str:
        """The texts that all choices share, joined by a space."""
        return f"{self.context} {self.question}".strip()


@dataclasses.dataclass(frozen=True)
class MultipleChoiceDataset:
    """A data set of questions."""

    name: str
    questions: list[MultipleChoiceQuestion]

    @property
    def all_texts(self) -> list[str]:
        """The context, question and choices of each question."""
        return [
            text
            for question in self.questions
            for text in (question.context, question.question, *question.choices)
            if text
        ]


def dataset_from_rows(name: str, rows: Iterable[TableRow], labeled: bool) -> MultipleChoiceDataset:
    """Return the questions of a table, in one of two layouts.

    - SWAG: `sent1`, `sent2` (the start of every choice, may be empty), `ending0`, `ending1`, ...
      and `label`, the index of the right choice.
    - JSON lines: `context`, `question` or both; `choices`, a list of texts; and `label`, an index
      from 0 or a letter. Other data sets have other names for these: see `_KEYS`. Choices may be
      {"label": ["A", ...], "text": [...]} or [{"label", "text"}, ...].

    If labels are read, questions without one are left out with a warning, unless none has one.

    Raises:
      InputError: a column is missing, there are fewer than two choices, a text is empty, or the
        label is not the index of a choice.
    """
    rows = [row._replace(values=_rename_keys(row.values)) for row in rows]
    if any(row.values.keys() >= {"context", "question"} for row in rows):
        _log.info(
            "%s: read context and question as [CLS] context [SEP] question choice [SEP].", name
        )
    if labeled:
        missing = [row for row in rows if _is_unlabeled(row)]
        if 0 < len(missing) < len(rows):
            labels = [label_text(row.values["label"]) for row in missing]
            log_missing_labels(name, [row.location for row in missing], labels, len(rows), False)
            rows = [row for row in rows if not _is_unlabeled(row)]
    questions = [_parse_question(row, labeled) for row in rows]
    if questions and all(question.label for question in questions) and len(questions) > 20:
        _log.warning("%s: no question has label 0. Labels are counted from 0.", name)
    return MultipleChoiceDataset(name, questions)


def _is_unlabeled(row: TableRow) -> bool:
    label = label_text(row.values.get("label", "0"))
    return not label or label.lower() in MISSING_MARKS.split(",")


def _parse_question(row: TableRow, labeled: bool) -> MultipleChoiceQuestion:
    names: list[str] = []  # of the choices
    question = ""
    if "choices" in row.values:
        values, names = _parse_choices(row)
        names = names or [*string.ascii_uppercase[: len(values)]]
        columns = [name for name in ("context", "question") if name in row.values]
        texts = [name for name in columns if not row.first_blank_column((name,))]
        context = row.text(texts[:1] or columns or ["question"])
        question = row.text(texts[1:]) if len(texts) > 1 else ""
        choices = [_choice_text(row, f"choice {i}", value) for i, value in enumerate(values)]
    else:
        if "sent1" not in row.values:
            known = ", ".join(map(repr, row.values)) or "none"
            raise InputError(
                f"{row.location}: no column 'sent1', only {known}. Name the columns sent1, "
                "ending0, ending1, ... and label, or write JSON lines with question, choices (a "
                "list) and label."
            )
        context = row.text(("sent1",))
        start = _optional_text(row, "sent2")
        numbers = sorted(int(m[1]) for name in row.values if (m := _ENDING.fullmatch(name)))
        if numbers != [*range(len(numbers))]:
            raise InputError(
                f"{row.location}: endings are not numbered from 0. Name the columns ending0, "
                "ending1, ..."
            )
        # The last columns are empty in questions with fewer choices than others.
        endings = [_optional_text(row, f"ending{i}") for i in numbers]
        while endings and not endings[-1]:
            endings.pop()
        choices = [
            f"{start} {_choice_text(row, f'ending{i}', ending)}".strip()
            for i, ending in enumerate(endings)
        ]
    if len(choices) < 2:
        raise InputError(
            f"{row.location}: a question needs two choices and has {len(choices)}. Give columns "
            "ending0, ending1, ..., or a list 'choices'."
        )
    label = None
    if labeled:
        text = label_text(row.value("label"))
        if text in names:
            text = str(names.index(text))
        if not (text.isascii() and text.isdigit() and int(text) < len(choices)):
            raise InputError(
                f"{row.location}: label {text!r} is not the index of a choice. Write 0 to "
                f"{len(choices) - 1}."
            )
        label = int(text)
    return MultipleChoiceQuestion(row.location, context, tuple(choices), label, question)


def _rename_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row under the names of `_KEYS`, unless these are taken."""
    if "sent1" in values:
        return values
    nested = values.get("question")
    if isinstance(nested, dict) and "stem" in nested:  # AI2's {"question": {"stem", "choices"}}
        values = {**values, **nested, "question": nested["stem"]}
    names = {
        next((other for other in others if other in values), name): name
        for name, others in _KEYS.items()
        if name not in values
    }
    renamed = {names.get(name, name): value for name, value in values.items()}
    return renamed if "choices" in renamed else values


def _parse_choices(row: TableRow) -> tuple[list[Any], list[str]]:
    """Return the choices of a row, and their names if they have some, such as "A"."""
    values = row.value("choices")
    if isinstance(values, str):
        values = parse_list(values)
    if isinstance(values, dict) and isinstance(values.get("text"), list):
        labels = values.get("label") or []
        if not isinstance(labels, list):
            raise InputError(
                f"{row.location}: the 'label' of column 'choices' is {labels!r}. Write a list of "
                "names."
            )
        return values["text"], [label_text(name) for name in labels]
    if not isinstance(values, list):
        raise InputError(
            f"{row.location}: column 'choices' is {row.value('choices')!r}. Write a list of texts."
        )
    if values and all(isinstance(value, dict) and "text" in value for value in values):
        names = [label_text(value.get("label")) for value in values]
        return [value["text"] for value in values], names if all(names) else []
    return values, []


def _choice_text(row: TableRow, description: str, value: Any) -> str:
    if not isinstance(value, str) or is_blank(value):
        raise InputError(f"{row.location}: {description} is {value!r}, not text. Fix the row.")
    return value.strip()


def _optional_text(row: TableRow, column: str) -> str:
    value = row.values.get(column)
    return "" if value is None or value != value else str(value).strip()  # NaN is no value


def encode_questions(
    data: MultipleChoiceDataset,
    tokenizer: Tokenizer,
    max_choice_length: int,
    max_seq_length: int,
    max_choices: int,
) -> tuple[Examples, list[int]]:
    """Return questions as groups of examples [CLS] context [SEP] choice [SEP].

    With a context and a question they are [CLS] context [SEP] question choice [SEP].

    Args:
      data: the questions.
      tokenizer: the tokenizer.
      max_choice_length: maximal tokens of an example. The longer text loses tokens first; with a
        context and a question only the context does, as long as it has some.
      max_seq_length: tokens of a sequence, which holds all choices of a question. With many choices
        it limits each example to its share.
      max_choices: maximal choices of a question.

    Returns:
      The examples, one for each choice, grouped by question, and the index of the question of each
      example that lost tokens. Target "choice_labels" is 1 for the right choice.

    Raises:
      InputError: a question has too many choices for a sequence.
    """
    rows: list[list[int]] = []
    prefix_lengths: list[int] = []
    labels: list[int] = []
    weights: list[int] = []
    truncated: list[int] = []
    for index, question in enumerate(data.questions):
        count = len(question.choices)
        room = min(max_choice_length, max_seq_length // count) - 3
        if count > max_choices or room < 2:
            raise InputError(
                f"{question.location}: {count} choices do not fit into a sequence. Remove some, or "
                f"raise max_seq_length={max_seq_length}, which has room for at most {max_choices}."
            )
        context = tokenizer.encode(question.context)
        question_ids = tokenizer.encode(question.question) if question.question else []
        for number, choice in enumerate(question.choices):
            choice_ids = tokenizer.encode(choice)
            if len(context) + len(question_ids) + len(choice_ids) > room:
                truncated.append(index)
            if question_ids:
                start, end = truncated_pair_lengths(len(question_ids), len(choice_ids), room)
                second = [*question_ids[:start], *choice_ids[:end]]
                first = context[: room - len(second)]
            else:
                start, end = truncated_pair_lengths(len(context), len(choice_ids), room)
                first, second = context[:start], choice_ids[:end]
            prefix = [tokenizer.cls_id, *first, tokenizer.sep_id]
            rows.append([*prefix, *second, tokenizer.sep_id])
            prefix_lengths.append(len(prefix))
            labels.append(number == question.label)
            weights.append(question.label is not None)
    target = Target("example", np.array(labels, np.int32), np.array(weights, np.float32))
    group_sizes = np.array([len(question.choices) for question in data.questions], np.int64)
    examples = Examples.from_rows(rows, prefix_lengths, {"choice_labels": target}, group_sizes)
    return examples, truncated


def group_by_question(data: MultipleChoiceDataset, values: np.ndarray) -> list[np.ndarray]:
    """Return the values [A, ...] of all choices as one array per question."""
    bounds = np.cumsum([len(question.choices) for question in data.questions])[:-1]
    return np.split(values, bounds)
