"""Questions on passages, as in SQuAD (Rajpurkar et al. 2016, 2018)."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering import layouts
from data_pipelines.finetuning.question_answering.layouts import QuestionRecord
from data_pipelines.finetuning.question_answering.triviaqa import convert_to_squad
from data_pipelines.finetuning.table import check_unique_ids, is_table, read_table
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines
from data_pipelines.text.tfds import read_tfds_records
from data_pipelines.vocabulary.basic_tokenization import is_blank

_log = logging.getLogger("data_pipelines")
_MAX_PASSAGE_CHARACTERS = 200_000  # a longer text, such as a book, has thousands of windows


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: its text and the index of its first character in the passage."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question on a passage.

    Attributes:
      id: its id, unique in a data set.
      text: the question.
      passage: the passage.
      answers: gold answers; none for an unanswerable or unlabeled question.
      is_impossible: the mark of SQuAD 2.0; None without one. A marked question is trained to have
        no answer. Scores depend on `answers` alone, as in the official script.
    """

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool | None = None


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringDataset:
    """A data set.

    Attributes:
      questions: all questions.
      version: 2 if questions may be unanswerable: some have the field `is_impossible`, or some
        rows have an empty list of answers. Else 1.
      is_flat: whether all questions are rows without `is_impossible`. If each has an answer, they
        may belong to either version.
    """

    questions: list[Question]
    version: int
    is_flat: bool = False

    @property
    def passages(self) -> list[str]:
        """Distinct passages."""
        return list(dict.fromkeys(question.passage for question in self.questions))


def read_squad(path: epath.PathLike, labeled: bool = True) -> QuestionAnsweringDataset:
    """Read a file, perhaps compressed, in a layout of `layouts` or TriviaQA's.

    Args:
      path: the file.
      labeled: False reads neither answers nor ids, which may be missing.

    Raises:
      InputError: the file does not exist; see also `parse_squad`.
    """
    path = check_file(path)
    if is_table(path):
        rows = read_table(path)
        return _make_dataset(
            str(path), (layouts.row_record(row.location, row.values) for row in rows), labeled
        )
    return parse_squad(str(path), "\n".join(read_lines(path)), path.parent, labeled)


def parse_squad(
    name: str, text: str, directory: epath.Path | None = None, labeled: bool = True
) -> QuestionAnsweringDataset:
    """Return the data set in a JSON text.

    Args:
      name: name for error messages.
      text: JSON or JSON lines in a layout of `layouts`, or with `directory` in TriviaQA's.
      directory: directory of the file, next to which TriviaQA has its documents.
      labeled: False reads neither answers nor ids, which may be missing.

    Raises:
      InputError: a field is missing or of the wrong type, an id is not unique, a passage is empty
        or too long, or there are no questions.
    """
    content = layouts.parse_content(name, text)
    if directory and isinstance(content, dict) and "Data" in content:
        try:
            content = convert_to_squad(content, directory)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    return _make_dataset(name, layouts.iterate_questions(content), labeled)


def read_squad_tfds(source: str, split: str) -> QuestionAnsweringDataset:
    """Read a split of a TensorFlow Datasets builder with SQuAD's fields.

    Args:
      source: `tfds:NAME/CONFIG`, such as `tfds:squad/v2.0`.
      split: name of the split.

    Raises:
      InputError: see `read_tfds_records` and `parse_squad`.
    """
    records = list(read_tfds_records(source, split))
    return _make_dataset(f"{source} {split}", map(_parse_record, records))


def _parse_record(record: dict[str, Any]) -> QuestionRecord:
    location = f"record {record.get('id', b'').decode()!r}"
    if not {"context", "question", "answers"} <= record.keys():
        raise InputError(f"{location}: only fields {', '.join(sorted(record))}. {layouts.FIX}.")
    answers = record["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    fields = {
        "id": record.get("id", b"").decode(),
        "question": record["question"].decode(),
        "answers": [{"text": text.decode(), "answer_start": int(start)} for text, start in pairs],
    }
    if "is_impossible" in record:
        fields["is_impossible"] = bool(record["is_impossible"])
    return QuestionRecord(location, record["context"].decode(), fields)


def _make_dataset(
    name: str, records: Iterable[QuestionRecord], labeled: bool = True
) -> QuestionAnsweringDataset:
    questions: list[Question] = []
    locations: list[str] = []
    unlabeled: list[str] = []
    version, is_flat = 1, True
    try:
        for record in records:
            location, fields = record.location, record.fields
            check_passage(location, record.passage)
            text = layouts.get_field(location, fields, "question", str)
            if not labeled:
                questions.append(Question(location, text, record.passage))
                locations.append(location)
                continue
            id_ = layouts.get_id(location, fields)
            answers = layouts.get_answers(record)
            is_impossible = layouts.get_is_impossible(record)
            gold = tuple(Answer(*answer) for answer in answers or ())
            passage = _with_line_ends_of_answers(record.passage, gold)
            questions.append(Question(id_, text, passage, gold, is_impossible))
            locations.append(location)
            if is_impossible is not None or (record.is_row and answers == []):
                version = 2
            if not (gold or is_impossible or (answers == [] and is_impossible is None)):
                unlabeled.append(location)
            is_flat &= record.is_row and is_impossible is None
        check_unique_ids([question.id for question in questions], locations, "question")
    except InputError as error:
        if str(error).startswith(name):  # the location of a table's row has the file's name
            raise
        raise InputError(f"{name}: {error}") from error
    if not questions:
        raise InputError(f"{name}: no questions. {layouts.FIX}.")
    if version == 2 and 0 < len(unlabeled) < len(questions):
        _log.warning(
            "%s: %d of %d questions have no answer and are not marked as impossible. They count as "
            "unanswerable. The first is %s.",
            name, len(unlabeled), len(questions), unlabeled[0],
        )  # fmt: skip
    return QuestionAnsweringDataset(questions, version, is_flat)


def _with_line_ends_of_answers(passage: str, answers: Sequence[Answer]) -> str:
    r"""Return a passage with the line ends that the offsets of its answers count.

    A CSV keeps the ends of lines within fields. Git and editors on Windows write them all as
    "\r\n", after the offsets were counted.
    """

    def has_answers(text: str) -> bool:
        return all(text.startswith(answer.text, answer.start) for answer in answers)

    if "\r\n" not in passage or has_answers(passage):
        return passage
    converted = passage.replace("\r\n", "\n")
    return converted if has_answers(converted) else passage


def check_passage(location: str, passage: str) -> None:
    """Raise InputError, located at `location`, if a passage is empty or too long."""
    if is_blank(passage):
        raise InputError(f"{location}: the passage is empty. Remove it.")
    if len(passage) > _MAX_PASSAGE_CHARACTERS:
        raise InputError(
            f"{location}: the passage has {len(passage):,} characters, more than "
            f"{_MAX_PASSAGE_CHARACTERS:,}. Split it."
        )
