"""Questions on passages in the JSON layout of SQuAD (Rajpurkar et al. 2016, 2018)."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.triviaqa import convert_to_squad
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file
from data_pipelines.text.sources import tfds_records

MAX_PASSAGE_CHARACTERS = (
    200_000  # characters of a passage: a book is none, and has thousands of windows
)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: its text, and the character of the passage at which it begins."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question on a passage. No answers: it cannot be answered from it, or is to be answered."""

    id: str
    text: str
    passage: str
    answers: tuple[Answer, ...] = ()


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringDataset:
    """A data set.

    Attributes:
      version: 2 where questions may have no answer (some say `is_impossible`), else 1.
    """

    questions: list[Question]
    version: int

    @property
    def passages(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(question.passage for question in self.questions))


def read_squad(path: epath.PathLike) -> QuestionAnsweringDataset:
    """Reads a data set, local or remote: in SQuAD's layout, or TriviaQA's own.

    Raises:
      InputError: there is no such file; see `parse_squad`.
    """
    path = check_file(path)
    try:
        return parse_squad(str(path), path.read_text(encoding="utf-8"), path.parent)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}): convert it first.") from error


def parse_squad(
    name: str, text: str, directory: epath.Path | None = None
) -> QuestionAnsweringDataset:
    """The data set that a JSON text holds.

    Args:
      name: for messages.
      directory: of the file, beside which TriviaQA has its documents.
    Raises:
      InputError: it is not of the layout (the sentence says what is missing where), an id comes
        twice, a passage is empty or as long as a book, or there is no question in it.
    """
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name} is no JSON (line {error.lineno}, column {error.colno}: {error.msg}): give "
            "a file in SQuAD's layout."
        ) from error
    if directory and isinstance(content, dict) and "Data" in content:
        try:
            content = convert_to_squad(content, directory)
        except InputError as error:
            raise InputError(f"{name} cannot be read: {error}.") from error
    return _make_dataset(name, _iterate_questions(content))


def read_squad_tfds(source: str, split: str) -> QuestionAnsweringDataset:
    """A split of a data set like SQuAD in the catalogue of TensorFlow Datasets.

    Args:
      source: `tfds:NAME/CONFIG`, such as `tfds:squad/v2.0`.
    Raises:
      InputError: see `tfds_records` and `parse_squad`.
    """
    records = list(tfds_records(source, split))
    return _make_dataset(f"{source} {split}", map(_parse_record, records))


def _parse_record(record: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    name = record.get("id", b"").decode()
    if not {"context", "question", "answers"} <= record.keys():
        fields = ", ".join(sorted(record))
        raise InputError(f"record {name!r} has only {fields}")
    answers = record["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    item = {
        "id": name,
        "question": record["question"].decode(),
        "answers": [{"text": text.decode(), "answer_start": int(start)} for text, start in pairs],
    }
    if "is_impossible" in record:
        item["is_impossible"] = bool(record["is_impossible"])
    return f"record {name!r}", record["context"].decode(), item


def _make_dataset(
    name: str, items: Iterable[tuple[str, str, dict[str, Any]]]
) -> QuestionAnsweringDataset:
    questions, version = [], 1
    seen: dict[str, str] = {}
    try:
        for where, passage, item in items:
            check_passage(where, passage)
            question = _parse_question(where, passage, item)
            if question.id in seen:
                raise InputError(
                    f"id {question.id!r} is that of {seen[question.id]} and of {where}"
                )
            seen[question.id] = where
            questions.append(question)
            if "is_impossible" in item:
                version = 2
    except InputError as error:
        raise InputError(f"{name} is not in SQuAD's layout: {error}.") from error
    if not questions:
        raise InputError(f"{name} has no questions: give a file in SQuAD's layout.")
    return QuestionAnsweringDataset(questions, version)


def check_passage(where: str, passage: str) -> None:
    """Refuses a passage that holds nothing, or so much that it can be no passage.

    Raises:
      InputError: naming `where`, without a full stop.
    """
    if not passage.strip():
        raise InputError(f"the passage of {where} is empty: leave the question out")
    if len(passage) > MAX_PASSAGE_CHARACTERS:
        raise InputError(
            f"the passage of {where} has {len(passage):,} characters and may have {MAX_PASSAGE_CHARACTERS:,}: "
            "split it into several"
        )


def _iterate_questions(content: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, passage and object of every question."""
    for i, article in enumerate(_get_field("the file", content, "data", list)):
        where = f"data[{i}]"
        for j, paragraph in enumerate(_get_field(where, article, "paragraphs", list)):
            inner = f"{where}.paragraphs[{j}]"
            passage = _get_field(inner, paragraph, "context", str)
            for k, item in enumerate(_get_field(inner, paragraph, "qas", list)):
                yield f"{inner}.qas[{k}]", passage, item


def _parse_question(where: str, passage: str, item: dict[str, Any]) -> Question:
    name, text = (_get_field(where, item, field, str) for field in ("id", "question"))
    answers = []
    if item.get("answers") is not None:
        for i, each in enumerate(_get_field(where, item, "answers", list)):
            inner = f"{where}.answers[{i}]"
            answers.append(
                Answer(
                    _get_field(inner, each, "text", str),
                    _get_field(inner, each, "answer_start", int),
                )
            )
    return Question(name, text, passage, tuple(answers))


_NAMES = {list: "list", str: "text", int: "whole number"}


def _get_field(where: str, parent: Any, field: str, kind: type) -> Any:
    if not isinstance(parent, dict) or field not in parent:
        raise InputError(f"{where} has no {field!r}")
    value = parent[field]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{field!r} of {where} is no {_NAMES[kind]}")
    return value
