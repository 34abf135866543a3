"""Questions, answers and their candidates as files."""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import Question, read_squad
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_text

MARK = "|"  # on both sides of the answer, as Chan and Fan 2019 mark it for BERT
_MIN_QUESTION_WORDS = 3
# Spaces that the decoded tokens of an uncased vocabulary have around punctuation.
_SPACE_BEFORE = re.compile(r"\s+([?.!,;:%)\]])")
_SPACE_AFTER = re.compile(r"([(\[$#])\s+")
_APOSTROPHE = re.compile(r"(\w)\s+(['\u2019])\s*(s|t|re|ve|ll|d|m)\b")
_BETWEEN = re.compile(r"(\w)\s+([-\u2013/])\s+(\w)")

KEPT, NO_ANSWER, OTHER_SPAN = "kept", "no answer", "other span"
TOO_SHORT, REPEATED, INVALID = "too short", "repeated", "invalid"


def mark_answer(context: str, start: int, end: int, max_words: int) -> str:
    """Return the passage around an answer, which stands between marks.

    Args:
      context: the passage.
      start: first character of the answer.
      end: end character of the answer.
      max_words: maximal words around the answer; longer passages lose the farther ones.
    """
    before, after = context[:start].split(), context[end:].split()
    # Each side has half of the words, and what the other side does not need.
    left = min(len(before), max(max_words // 2, max_words - len(after)))
    before, after = before[len(before) - left :], after[: max_words - left]
    return " ".join([*before, MARK, context[start:end], MARK, *after])


def clean_question(text: str) -> str:
    """Return a generated question without the spaces that tokens have around punctuation."""
    text = _SPACE_AFTER.sub(r"\1", _SPACE_BEFORE.sub(r"\1", text))
    return _BETWEEN.sub(r"\1\2\3", _APOSTROPHE.sub(r"\1\2\3", text)).strip()


def question_pairs(questions: Iterable[Question], max_words: int) -> list[dict[str, str]]:
    """Return a pair {"source", "target"}, marked answer and question, for each answerable one.

    Args:
      questions: the questions.
      max_words: see `mark_answer`.
    """
    pairs = []
    for question in questions:
        if question.answers and (text := question.text.strip()):
            answer = question.answers[0]
            end = answer.start + len(answer.text)
            source = mark_answer(question.passage, answer.start, end, max_words)
            pairs.append({"source": source, "target": text})
    return pairs


def make_candidates(
    paragraphs: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    num_answers: int,
) -> list[dict[str, Any]]:
    """Return a candidate without question for each answer of each paragraph.

    Args:
      paragraphs: rows of `sample_paragraphs`.
      answers: predictions of answer extraction for them.
      num_answers: maximal answers of a paragraph.
    """
    return [
        {
            "id": f"{paragraph['id']}-{i}",
            "document": paragraph["document"],
            "context": paragraph["context"],
            "answer": span["text"],
            "start": span["start"],
            "span_score": span["score"],
        }
        for paragraph, prediction in zip(paragraphs, answers, strict=True)
        for i, span in enumerate(prediction.get("answers", ())[:num_answers])
    ]


def add_questions(
    candidates: Sequence[Mapping[str, Any]], generated: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the candidates with their questions, and with a fate if they need no filter."""
    rows, known = [], set()
    for candidate, prediction in zip(candidates, generated, strict=True):
        question = clean_question(prediction.get("generated_text", ""))
        key = (candidate["context"], question.lower())
        fate = ""
        if "error" in prediction:
            fate = INVALID
        elif len(question.split()) < _MIN_QUESTION_WORDS:
            fate = TOO_SHORT
        elif key in known:
            fate = REPEATED
        known.add(key)
        rows.append({**candidate, "question": question, "fate": fate})
    return rows


def filter_candidates(
    candidates: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    null_threshold: float,
) -> list[dict[str, Any]]:
    """Return the candidates with their fates.

    A candidate is kept if the reader gives exactly its span, and no answer is not more likely.

    Args:
      candidates: rows of `add_questions`.
      answers: predictions of the reader, with all scores, for the rows without a fate, in order.
      null_threshold: odds of no answer above which a question is rejected.
    """
    predictions, rows = iter(answers), []
    for candidate in candidates:
        row = dict(candidate)
        if not row["fate"]:
            prediction = next(predictions)
            best = (prediction.get("candidates") or [{"answer": "", "start": 0}])[0]
            row |= {"predicted": best["answer"], "null_odds": prediction.get("null_odds", 0.0)}
            span = best["start"], best["answer"]
            if "error" in prediction:
                row["fate"] = INVALID
            elif row["null_odds"] > null_threshold:
                row["fate"] = NO_ANSWER
            else:
                row["fate"] = KEPT if span == (row["start"], row["answer"]) else OTHER_SPAN
        rows.append(row)
    return rows


def write_squad(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write questions in the layout of SQuAD 2.0 and return how many.

    Args:
      path: the file.
      rows: {"id", "document", "context", "question"}, and "answer" with "start" if there is one.
    """
    articles: dict[Any, dict[str, list[dict[str, Any]]]] = {}
    count = 0
    for row in rows:
        answers = []
        if "answer" in row:
            answers = [{"text": row["answer"], "answer_start": row["start"]}]
        qas = articles.setdefault(row["document"], {}).setdefault(row["context"], [])
        qas.append(
            {
                "id": row["id"],
                "question": row["question"],
                "answers": answers,
                "is_impossible": not answers,
            }
        )
        count += 1
    data = [
        {
            "title": str(document),
            "paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs.items()],
        }
        for document, paragraphs in articles.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps({"version": "v2.0", "data": data}, ensure_ascii=False))
    return count


def read_articles(path: pathlib.Path) -> tuple[dict[str, int], list[Question]]:
    """Return the number of the article of each passage of a file, and its questions.

    Raises:
      InputError: the file has another layout than SQuAD's articles of paragraphs.
    """
    questions = read_squad(path).questions
    try:
        content = parse_json(path.read_text())
    except ValueError:  # JSON lines, a table or a compressed file
        content = None
    articles = content.get("data", []) if isinstance(content, dict) else []
    documents = {
        paragraph["context"]: number
        for number, article in enumerate(articles)
        for paragraph in article.get("paragraphs", ())
    }
    if not all(question.passage in documents for question in questions):
        raise InputError(f"{path}: not in SQuAD's layout of articles. Convert it.")
    return documents, questions
