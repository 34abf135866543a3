"""Questions on passages in the JSON layout of SQuAD (Rajpurkar et al. 2016, 2018)."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from data_pipelines import InputError


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
class Questions:
    """A data set.

    Attributes:
      version: 2 where questions may have no answer (some say `is_impossible`), else 1.
    """

    questions: list[Question]
    version: int


def read_squad(path: epath.PathLike) -> Questions:
    """Reads a data set, local or remote.

    Raises:
      FileNotFoundError: there is no such file.
      InputError: it is not of the layout (the sentence says what is missing where), an id comes
        twice, or there is no question in it.
    """
    try:
        content = json.loads(epath.Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}): convert it first.") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is no JSON (line {error.lineno}, column {error.colno}: {error.msg}): give "
            "a file in SQuAD's layout."
        ) from error
    questions, version = [], 1
    seen: dict[str, str] = {}
    try:
        for where, passage, item in _items(content):
            question = _question(where, passage, item)
            if question.id in seen:
                raise InputError(
                    f"id {question.id!r} is that of {seen[question.id]} and of {where}"
                )
            seen[question.id] = where
            questions.append(question)
            if "is_impossible" in item:
                version = 2
    except InputError as error:
        raise InputError(f"{path} is not in SQuAD's layout: {error}.") from error
    if not questions:
        raise InputError(f"{path} has no questions: give a file in SQuAD's layout.")
    return Questions(questions, version)


def _items(content: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, passage and object of every question."""
    for i, article in enumerate(_get("the file", content, "data", list)):
        where = f"data[{i}]"
        for j, paragraph in enumerate(_get(where, article, "paragraphs", list)):
            inner = f"{where}.paragraphs[{j}]"
            passage = _get(inner, paragraph, "context", str)
            for k, item in enumerate(_get(inner, paragraph, "qas", list)):
                yield f"{inner}.qas[{k}]", passage, item


def _question(where: str, passage: str, item: dict[str, Any]) -> Question:
    name, text = (_get(where, item, field, str) for field in ("id", "question"))
    answers = []
    if item.get("answers") is not None:
        for i, each in enumerate(_get(where, item, "answers", list)):
            inner = f"{where}.answers[{i}]"
            answers.append(
                Answer(_get(inner, each, "text", str), _get(inner, each, "answer_start", int))
            )
    return Question(name, text, passage, tuple(answers))


_NAMES = {list: "list", str: "text", int: "whole number"}


def _get(where: str, parent: Any, field: str, kind: type) -> Any:
    if not isinstance(parent, dict) or field not in parent:
        raise InputError(f"{where} has no {field!r}")
    value = parent[field]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{field!r} of {where} is no {_NAMES[kind]}")
    return value
