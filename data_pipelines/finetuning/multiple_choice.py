"""Questions of which one of several answers is right, in SWAG's layout (Zellers et al. 2018)."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import truncated_pair_lengths
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.sequence_classification import label_text
from data_pipelines.finetuning.table import TableRow
from data_pipelines.vocabulary.tokenization import Tokenizer

_ENDING = re.compile(r"ending(\d+)")


class MultipleChoiceQuestion(NamedTuple):
    """A question.

    Attributes:
      place: where it stands, for messages.
      context: the first text of all its pairs.
      answers: the second texts.
      right: number of the right one; None where it is not known.
    """

    place: str
    context: str
    answers: tuple[str, ...]
    right: int | None


@dataclasses.dataclass(frozen=True)
class MultipleChoiceDataset:
    """A data set."""

    name: str
    questions: list[MultipleChoiceQuestion]

    @property
    def max_choices(self) -> int:
        """Answers of the question that has most."""
        return max(len(question.answers) for question in self.questions)

    @property
    def all_texts(self) -> list[str]:
        """The context of each question, and its answers after it."""
        return [text for each in self.questions for text in (each.context, *each.answers)]


def from_rows(name: str, rows: Iterable[TableRow], labeled: bool) -> MultipleChoiceDataset:
    """The questions of the rows of a table, each of one of these layouts.

    - SWAG's: `sent1`, `sent2` (the start of every answer, which may be empty), `ending0`,
      `ending1`, ... and `label`, the number of the right one;
    - of JSON lines: `context` (or `question`), `choices`, a list of texts, and `label`.

    Raises:
      InputError: a column is missing, there are fewer than two answers, a text is empty, or the
        label is that of no answer.
    """
    return MultipleChoiceDataset(name, [_parse_question(row, labeled) for row in rows])


def _parse_question(row: TableRow, labeled: bool) -> MultipleChoiceQuestion:
    if "choices" in row.values:
        given = row.value("choices")
        if not isinstance(given, list):
            raise InputError(f"{row.place}: 'choices' is {given!r}: write a list of texts.")
        context = row.text(("context" if "context" in row.values else "question",))
        answers = [_choice_text(row, f"choice {i}", answer) for i, answer in enumerate(given)]
    else:
        context = row.text(("sent1",))
        start = _optional_text(row, "sent2")
        numbers = sorted(int(m[1]) for name in row.values if (m := _ENDING.fullmatch(name)))
        if numbers != [*range(len(numbers))]:
            raise InputError(f"{row.place}: its endings are not ending0, ending1, ...: name them.")
        # Where questions have different numbers of answers, the last columns are empty.
        endings = [_optional_text(row, f"ending{i}") for i in numbers]
        while endings and not endings[-1]:
            endings.pop()
        answers = [
            f"{start} {_choice_text(row, f'ending{i}', ending)}".strip()
            for i, ending in enumerate(endings)
        ]
    if len(answers) < 2:
        raise InputError(
            f"{row.place}: {len(answers)} answers leave nothing to choose: give columns ending0, "
            "ending1, ..., or a list 'choices'."
        )
    return MultipleChoiceQuestion(
        row.place, context, tuple(answers), _parse_label(row, len(answers), labeled)
    )


def _parse_label(row: TableRow, count: int, labeled: bool) -> int | None:
    if not labeled:
        return None
    text = label_text(row.value("label"))
    if not (text.isascii() and text.isdigit() and int(text) < count):
        raise InputError(
            f"{row.place}: label {text!r} is the number of no answer: write 0 to {count - 1}."
        )
    return int(text)


def _choice_text(row: TableRow, description: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"{row.place}: {description} is {value!r}, which is no text: mend the row."
        )
    return value.strip()


def _optional_text(row: TableRow, column: str) -> str:
    value = row.values.get(column)
    return "" if value is None else str(value).strip()


def encode(
    data: MultipleChoiceDataset, tokenizer: Tokenizer, longest: int, row: int, max_choices: int
) -> tuple[Examples, int]:
    """The examples of a data set, [CLS] context [SEP] answer [SEP], those of a question a group.

    Args:
      longest: pieces of an example, at most; the longer text loses pieces first.
      row: pieces of a row, which holds all answers of a question: of very many each is shorter.
      most: answers of a question, at most.
    Returns:
      The examples, with the target "choice_labels", 1 where an answer is the right one; and how many of
      them were cut.
    Raises:
      InputError: a question has too many answers for a row.
    """
    rows: list[list[int]] = []
    prefix: list[int] = []
    right: list[int] = []
    known: list[int] = []
    num_truncated = 0
    for question in data.questions:
        count = len(question.answers)
        room = min(longest, row // count) - 3
        if count > max_choices or room < 2:
            raise InputError(
                f"{question.place}: {count} answers do not fit a row of {row} pieces, which has "
                f"{max_choices} at the most: leave some out, or raise max_seq_length."
            )
        context = tokenizer.encode(question.context)
        for number, answer in enumerate(question.answers):
            said = tokenizer.encode(answer)
            num_truncated += len(context) + len(said) > room
            first, second = truncated_pair_lengths(len(context), len(said), room)
            start = [tokenizer.cls_id, *context[:first], tokenizer.sep_id]
            rows.append([*start, *said[:second], tokenizer.sep_id])
            prefix.append(len(start))
            right.append(number == question.right)
            known.append(question.right is not None)
    target = Target("example", np.array(right, np.int32), np.array(known, np.float32))
    sizes = np.array([len(question.answers) for question in data.questions], np.int64)
    lengths = np.array([len(each) for each in rows], np.int64)
    ids = np.array([token for each in rows for token in each], np.int32)
    examples = Examples(
        ids, lengths, np.array(prefix, np.int64), {"choice_labels": target}, group_sizes=sizes
    )
    return examples, num_truncated


def group_by_question(data: MultipleChoiceDataset, values: np.ndarray) -> list[np.ndarray]:
    """The values [A, ...] of all answers, one after the other, as those of each question."""
    bounds = np.cumsum([len(question.answers) for question in data.questions])[:-1]
    return np.split(values, bounds)
