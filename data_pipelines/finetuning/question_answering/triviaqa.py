"""TriviaQA (Joshi et al. 2017) as questions on passages, for training before SQuAD.

As in Devlin et al. 2019 (section 4.2), the passage is the beginning of a document, and only
documents whose passage contains an answer are used.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError

MAX_DOCUMENT_WORDS = 400

# Field of a question -> directory of its documents.
_DOCUMENT_DIRECTORIES = {"EntityPages": "wikipedia", "SearchResults": "web"}

_log = logging.getLogger("data_pipelines")


def convert_to_squad(content: dict[str, Any], directory: epath.Path) -> dict[str, Any]:
    """Return the content of a file such as `qa/wikipedia-train.json` in SQuAD's layout.

    A question on several documents becomes several questions with ids QUESTION--DOCUMENT.

    Args:
      content: the parsed file.
      directory: directory of the file; its documents are in `../evidence/wikipedia` and
        `../evidence/web`.

    Raises:
      InputError: a field or a document is missing; the message does not name the file.
    """
    if not isinstance(content["Data"], list):
        raise InputError("'Data' is not a list. Give a file in TriviaQA's layout.")
    # The parent of the directory "." is "." by its name.
    evidence = (directory.parent if directory.name else directory / "..") / "evidence"
    paragraphs, total = [], 0
    for number, question in enumerate(content["Data"]):
        location = f"Data[{number}]"
        try:
            name, text, answer = (question[field] for field in ("QuestionId", "Question", "Answer"))
            texts = [answer["Value"], *answer["Aliases"]]
            documents = list(_documents(question))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{location}: no field {error}. Give a file in TriviaQA's layout."
            ) from error
        for document_directory, document in documents:
            total += 1
            passage = _read_first_words(evidence / document_directory / document, location)
            answers = find_answers(passage, texts)
            if answers:
                fields = {"id": f"{name}--{document}", "question": text, "answers": answers}
                paragraphs.append({"context": passage, "qas": [fields]})
    _log.info(
        "TriviaQA: %d of %d documents contain an answer in their first %d words and are used.",
        len(paragraphs),
        total,
        MAX_DOCUMENT_WORDS,
    )
    return {"data": [{"title": "TriviaQA", "paragraphs": paragraphs}]}


def find_answers(passage: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the first occurrence of each answer text in the passage, as SQuAD's answers.

    Occurrences are whole words in any case. The first text that occurs comes first, the others are
    sorted by position.
    """
    answers: list[dict[str, Any]] = []
    for text in dict.fromkeys(filter(None, map(str.strip, texts))):
        match = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", passage, re.IGNORECASE)
        if match:
            answers.append({"text": match[0], "answer_start": match.start()})
    return answers[:1] + sorted(answers[1:], key=lambda answer: answer["answer_start"])


def _documents(question: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the directory and file name of each document of a question."""
    for field, directory in _DOCUMENT_DIRECTORIES.items():
        for page in question.get(field, []):
            yield directory, page["Filename"]


def _read_first_words(path: epath.Path, location: str) -> str:
    """Return the beginning of a document, with its white space."""
    if not path.exists():
        raise InputError(f"{location}: no document {path}. Unpack the evidence next to qa/.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: byte {error.start} of document {path} is not UTF-8. Convert it to UTF-8."
        ) from error
    words = list(itertools.islice(re.finditer(r"\S+", text), MAX_DOCUMENT_WORDS))
    return text[words[0].start() : words[-1].end()] if words else ""
