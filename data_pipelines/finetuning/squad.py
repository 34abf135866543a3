"""Questions on passages in the JSON layout of SQuAD (Rajpurkar et al. 2016, 2018)."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import check_unique_ids
from data_pipelines.finetuning.triviaqa import convert_to_squad
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file
from data_pipelines.text.tfds import read_tfds_records

_MAX_PASSAGE_CHARACTERS = 200_000  # a longer text, such as a book, has thousands of windows
_TYPE_NAMES = {list: "list", str: "string", int: "whole number"}
_FIX = "Give data in SQuAD's layout"

# A question as JSON: its location in the file, its passage and its fields.
_QuestionRecord = tuple[str, str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: its text and the index of its first character in the passage."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question on a passage. It has no answers if it is unanswerable or unlabeled."""

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...] = ()


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringDataset:
    """A data set.

    Attributes:
      questions: all questions.
      version: 2 if questions may be unanswerable (some have the field `is_impossible`), else 1.
    """

    questions: list[Question]
    version: int

    @property
    def passages(self) -> list[str]:
        """Distinct passages."""
        return list(dict.fromkeys(question.passage for question in self.questions))


def read_squad(path: epath.PathLike) -> QuestionAnsweringDataset:
    """Read a local or remote file in the layout of SQuAD or TriviaQA.

    Raises:
      InputError: the file does not exist; see also `parse_squad`.
    """
    path = check_file(path)
    try:
        return parse_squad(str(path), path.read_text(encoding="utf-8"), path.parent)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is not UTF-8. Convert it to UTF-8."
        ) from error


def parse_squad(
    name: str, text: str, directory: epath.Path | None = None
) -> QuestionAnsweringDataset:
    """Return the data set in a JSON text.

    Args:
      name: name for error messages.
      text: JSON in SQuAD's layout, or with `directory` in TriviaQA's.
      directory: directory of the file, next to which TriviaQA has its documents.

    Raises:
      InputError: a field is missing or of the wrong type, an id is not unique, a passage is empty
        or too long, or there are no questions.
    """
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}:{error.lineno}: not JSON (column {error.colno}: {error.msg}). Give a file in "
            "SQuAD's layout."
        ) from error
    if directory and isinstance(content, dict) and "Data" in content:
        try:
            content = convert_to_squad(content, directory)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    return _make_dataset(name, _iterate_questions(content))


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


def _parse_record(record: dict[str, Any]) -> _QuestionRecord:
    location = f"record {record.get('id', b'').decode()!r}"
    if not {"context", "question", "answers"} <= record.keys():
        raise InputError(f"{location}: only fields {', '.join(sorted(record))}. {_FIX}.")
    answers = record["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    fields = {
        "id": record.get("id", b"").decode(),
        "question": record["question"].decode(),
        "answers": [{"text": text.decode(), "answer_start": int(start)} for text, start in pairs],
    }
    if "is_impossible" in record:
        fields["is_impossible"] = bool(record["is_impossible"])
    return location, record["context"].decode(), fields


def _make_dataset(name: str, records: Iterable[_QuestionRecord]) -> QuestionAnsweringDataset:
    questions: list[Question] = []
    locations: list[str] = []
    version = 1
    try:
        for location, passage, fields in records:
            check_passage(location, passage)
            questions.append(_parse_question(location, passage, fields))
            locations.append(location)
            if "is_impossible" in fields:
                version = 2
        check_unique_ids([question.id for question in questions], locations, "question")
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if not questions:
        raise InputError(f"{name}: no questions. {_FIX}.")
    return QuestionAnsweringDataset(questions, version)


def check_passage(location: str, passage: str) -> None:
    """Raise InputError, located at `location`, if a passage is empty or too long."""
    if not passage.strip():
        raise InputError(f"{location}: the passage is empty. Remove the question.")
    if len(passage) > _MAX_PASSAGE_CHARACTERS:
        raise InputError(
            f"{location}: the passage has {len(passage):,} characters, more than "
            f"{_MAX_PASSAGE_CHARACTERS:,}. Split it."
        )


def _iterate_questions(content: Any) -> Iterator[_QuestionRecord]:
    for i, article in enumerate(_get_field("top level", content, "data", list)):
        article_location = f"data[{i}]"
        paragraphs = _get_field(article_location, article, "paragraphs", list)
        for j, paragraph in enumerate(paragraphs):
            location = f"{article_location}.paragraphs[{j}]"
            passage = _get_field(location, paragraph, "context", str)
            for k, fields in enumerate(_get_field(location, paragraph, "qas", list)):
                yield f"{location}.qas[{k}]", passage, fields


def _parse_question(location: str, passage: str, fields: dict[str, Any]) -> Question:
    id_, text = (_get_field(location, fields, name, str) for name in ("id", "question"))
    answers = []
    if fields.get("answers") is not None:
        for i, answer in enumerate(_get_field(location, fields, "answers", list)):
            answer_location = f"{location}.answers[{i}]"
            answers.append(
                Answer(
                    _get_field(answer_location, answer, "text", str),
                    _get_field(answer_location, answer, "answer_start", int),
                )
            )
    return Question(id_, text, passage, tuple(answers))


def _get_field(location: str, parent: Any, field: str, kind: type) -> Any:
    if not isinstance(parent, dict) or field not in parent:
        raise InputError(f"{location}: no field {field!r}. {_FIX}.")
    value = parent[field]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{location}: field {field!r} is not a {_TYPE_NAMES[kind]}. {_FIX}.")
    return value
