"""Layouts of question answering data, recognized by their content.

- SQuAD (Rajpurkar et al. 2016, 2018): `{"data": articles}` or a list of articles. An article has
  "paragraphs", or is a paragraph itself; a paragraph has "context" and "qas".
- MRQA (Fisch et al. 2019): JSON lines with a paragraph each, whose questions have
  "detected_answers", after a line with a "header".
- Rows with "context" and "question", as `run_qa.py` of transformers reads them: `{"data": rows}`, a
  list, JSON lines, or a table.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json, parse_object

FIX = "Give data in SQuAD's layout"
ID_FIELDS = ("id", "guid", "qid", "question_id", "_id")  # SQuAD, KLUE-MRC, MRQA, others
_TEXT_FIELDS = ("answer_text", "answer")  # of a row with one answer and its answer_start
_OBJECT = re.compile(r"""\{\s*['"](?:text|answer_start)['"]\s*:""")  # no text such as {Oslo}
_TYPE_NAMES = {list: "list", str: "string", int: "whole number"}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


class QuestionRecord(NamedTuple):
    """A question as JSON.

    Attributes:
      location: location in the file.
      passage: the passage.
      fields: the other fields.
      is_row: whether the question is a row, whose fields may be text of a table.
    """

    location: str
    passage: str
    fields: Mapping[str, Any]
    is_row: bool = False


def parse_content(name: str, text: str) -> Any:
    """Return the content of a JSON text, or the list of the objects of JSON lines.

    Raises:
      InputError: it is neither.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.lstrip("\ufeff \t\n").startswith("{"):
            lines = ((f"{name}:{i}", line) for i, line in enumerate(text.split("\n"), 1))
            return [parse_object(location, line) for location, line in lines if line.strip()]
        raise InputError(
            f"{name}:{error.lineno}: not JSON (column {error.colno}: {error.msg}). Give a file in "
            "SQuAD's layout."
        ) from error


def iterate_questions(content: Any) -> Iterator[QuestionRecord]:
    """Yield the questions of a parsed file; raise InputError if it has another layout."""
    for location, item in _iterate_paragraphs(content):
        if isinstance(item, dict) and "question" in item and "qas" not in item:
            yield row_record(location, item)
        else:
            yield from _paragraph_questions(location, item)


def iterate_passages(content: Any) -> Iterator[tuple[str, str]]:
    """Yield location and text of each passage, with or without questions.

    Raises:
      InputError: the file has another layout.
    """
    for location, item in _iterate_paragraphs(content):
        yield location, get_field(location, item, "context", str)


def _iterate_paragraphs(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield location and content of each paragraph, or of each row with a question."""
    if isinstance(content, list):
        items, prefix = content, ""
    elif (
        isinstance(content, dict)
        and not content.keys() & {"data", "version"}
        and (content.keys() & {"context", "paragraphs"})
    ):
        items, prefix = [content], ""  # JSON lines with one line, or one article
    else:
        items, prefix = get_field("top level", content, "data", list), "data"
    for i, item in enumerate(items):
        location = f"{prefix}[{i}]"
        if isinstance(item, dict) and "paragraphs" in item:
            paragraphs = get_field(location, item, "paragraphs", list)
            for j, paragraph in enumerate(paragraphs):
                yield f"{location}.paragraphs[{j}]", paragraph
        elif isinstance(item, dict) and item.keys() & {"qas", "question"}:
            yield location, item
        elif not (isinstance(item, dict) and "header" in item):
            get_field(location, item, "paragraphs", list)


def row_record(location: str, row: Mapping[str, Any]) -> QuestionRecord:
    """Return the question in a row; raise InputError without a passage."""
    return QuestionRecord(location, get_field(location, row, "context", str), row, is_row=True)


def _paragraph_questions(location: str, paragraph: Any) -> Iterator[QuestionRecord]:
    passage = get_field(location, paragraph, "context", str)
    for k, fields in enumerate(get_field(location, paragraph, "qas", list)):
        yield QuestionRecord(f"{location}.qas[{k}]", passage, fields)


def get_field(location: str, parent: Any, field: str, kind: type) -> Any:
    """Return a field of a JSON object; raise InputError without one of the type `kind`."""
    if not isinstance(parent, Mapping) or field not in parent:
        names = ", ".join(map(repr, parent)) if isinstance(parent, Mapping) else ""
        raise InputError(f"{location}: no field {field!r}{names and f', only {names}'}. {FIX}.")
    value = parent[field]
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{location}: field {field!r} is not a {_TYPE_NAMES[kind]}. {FIX}.")
    return value


def get_id(location: str, fields: Mapping[str, Any]) -> str:
    """Return the id of a question; a whole number as text.

    Raises:
      InputError: it has none.
    """
    name = next((name for name in ID_FIELDS if name in fields), ID_FIELDS[0])
    if isinstance(fields, Mapping) and type(fields.get(name)) is int:
        return str(fields[name])
    return str(get_field(location, fields, name, str))


def get_is_impossible(record: QuestionRecord) -> bool | None:
    """Return whether a question is marked as unanswerable; None without a mark.

    Raises:
      InputError: the mark is neither true nor false.
    """
    value = record.fields.get("is_impossible")
    if value is None:
        return None
    if (flag := _BOOLEANS.get(str(value).strip().lower())) is None:
        raise InputError(
            f"{record.location}: field 'is_impossible' is {value!r}. Write true or false."
        )
    return flag


def get_answers(record: QuestionRecord) -> list[tuple[str, int]] | None:
    """Return text and first character of each gold answer; None for an unlabeled question.

    Raises:
      InputError: an answer has no text or no position.
    """
    location, fields = record.location, record.fields
    if "detected_answers" in fields:
        return list(_detected_answers(location, fields))
    value = fields.get("answers")
    if value in (None, ""):  # "" in tables
        name = next((name for name in _TEXT_FIELDS if fields.get(name) not in (None, "")), None)
        if name is None:
            return None
        value, location = fields[name], f"{location}.{name}"
        if isinstance(value, str) and not _OBJECT.match(value):
            start = get_field(record.location, fields, "answer_start", object)
            value = {"text": value, "answer_start": start}
    else:
        location = f"{location}.answers"
    if isinstance(value, str) and record.is_row:
        value = _parse_cell(location, value)
    if isinstance(value, dict):
        texts, starts = (value.get(name) for name in ("text", "answer_start"))
        if not isinstance(texts, list) or not isinstance(starts, list):
            texts, starts = [texts], [starts]
        if len(texts) != len(starts):
            raise InputError(
                f"{location}: {len(texts)} texts and {len(starts)} values of answer_start. Give as "
                "many of both."
            )
        pairs = zip(texts, starts, strict=True)
        value = [{"text": text, "answer_start": start} for text, start in pairs]
    if not isinstance(value, list):
        name = location.rpartition(".")[2]
        raise InputError(f"{record.location}: field {name!r} is not a list. {FIX}.")
    answers = [_answer(f"{location}[{i}]", answer, record.is_row) for i, answer in enumerate(value)]
    # A row without an answer may have an empty one at -1.
    return [answer for answer in answers if answer[0] or not record.is_row]


def _answer(location: str, answer: Any, is_row: bool) -> tuple[str, int]:
    if isinstance(answer, str):
        raise InputError(f"{location}: {answer!r} has no answer_start. {FIX}.")
    start = answer.get("answer_start") if isinstance(answer, dict) else None
    if is_row and isinstance(start, str) and re.fullmatch(r"\s*\d+(\.0)?\s*", start):  # of pandas
        answer = answer | {"answer_start": int(float(start))}
    text = get_field(location, answer, "text", str)
    return text, get_field(location, answer, "answer_start", int)


def _parse_cell(location: str, cell: str) -> Any:
    """Return the value of a table's cell: JSON or a Python literal, such as pandas writes.

    An array of NumPy, such as `array(['Oslo'], dtype=object)`, is the list in it.
    """
    for parse in (parse_json, ast.literal_eval, _parse_arrays):
        try:
            return parse(cell)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    raise InputError(
        f"{location}: {cell[:60]!r} is not JSON. Save the data as JSON lines or Parquet."
    )


def _parse_arrays(text: str) -> Any:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            node.values = [
                value.args[0]
                if isinstance(value, ast.Call) and ast.unparse(value.func) == "array" and value.args
                else value
                for value in node.values
            ]
    return ast.literal_eval(tree)


def _detected_answers(location: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield MRQA's answers, one for each place in the passage."""
    for i, answer in enumerate(get_field(location, fields, "detected_answers", list)):
        answer_location = f"{location}.detected_answers[{i}]"
        text = get_field(answer_location, answer, "text", str)
        spans: Iterable[Any] = get_field(answer_location, answer, "char_spans", list)
        for span in spans:
            if not (isinstance(span, list) and len(span) == 2 and type(span[0]) is int):
                raise InputError(f"{answer_location}: span {span!r} is not a pair. {FIX}.")
            yield text, span[0]
