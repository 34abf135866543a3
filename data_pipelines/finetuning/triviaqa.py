"""TriviaQA (Joshi et al. 2017) as questions on passages, to be trained on before SQuAD.

As Devlin et al. 2019 (section 4.2) have it: the passage is the beginning of a document, and only
those that hold one of the possible answers are used.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError

MAX_DOCUMENT_WORDS = 400  # of a document

# Field of a question -> folder of its documents.
_DOCUMENTS = {"EntityPages": "wikipedia", "SearchResults": "web"}

_log = logging.getLogger("data_pipelines")


def convert_to_squad(content: dict[str, Any], directory: epath.Path) -> dict[str, Any]:
    """What a file such as `qa/wikipedia-train.json` holds, in SQuAD's layout.

    A question on several documents becomes as many, each with its own id: QUESTION--DOCUMENT.

    Args:
      directory: of the file; its documents lie in `../evidence/wikipedia` and `../evidence/web`.
    Raises:
      InputError: a field or a document is missing; which one, without a full stop.
    """
    if not isinstance(content["Data"], list):
        raise InputError("'Data' of TriviaQA is no list")
    # The folder above one that is told as ".", which has no parent by its name.
    evidence = (directory.parent if directory.name else directory / "..") / "evidence"
    paragraphs, total = [], 0
    for number, question in enumerate(content["Data"]):
        where = f"Data[{number}]"
        try:
            name, text, answer = (question[field] for field in ("QuestionId", "Question", "Answer"))
            texts = [answer["Value"], *answer["Aliases"]]
            documents = list(_documents(question))
        except (KeyError, TypeError) as error:
            raise InputError(f"{where} of TriviaQA has no {error}") from error
        for folder, document in documents:
            total += 1
            passage = _read_first_words(evidence / folder / document, where)
            answers = find_answers(passage, texts)
            if answers:
                item = {"id": f"{name}--{document}", "question": text, "answers": answers}
                paragraphs.append({"context": passage, "qas": [item]})
    _log.info(
        "TriviaQA: %d of %d documents hold an answer in their first %d words; the others are left "
        "out.",
        len(paragraphs),
        total,
        MAX_DOCUMENT_WORDS,
    )
    return {"data": [{"title": "TriviaQA", "paragraphs": paragraphs}]}


def find_answers(passage: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Each of the texts that the passage has as whole words, whatever its case, where it comes
    first, as the passage writes it. The first text that is there leads, then by place.
    """
    found: list[dict[str, Any]] = []
    for text in dict.fromkeys(filter(None, map(str.strip, texts))):
        match = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", passage, re.IGNORECASE)
        if match:
            found.append({"text": match[0], "answer_start": match.start()})
    return found[:1] + sorted(found[1:], key=lambda answer: answer["answer_start"])


def _documents(question: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Folder and name of each."""
    for field, folder in _DOCUMENTS.items():
        for page in question.get(field, []):
            yield folder, page["Filename"]


def _read_first_words(path: epath.Path, where: str) -> str:
    """The first words of a document, as they stand."""
    if not path.exists():
        raise InputError(f"{where} of TriviaQA is on {path}, which does not exist")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} of TriviaQA is on {path}, which is not UTF-8 (byte {error.start})"
        ) from error
    words = list(itertools.islice(re.finditer(r"\S+", text), MAX_DOCUMENT_WORDS))
    return text[words[0].start() : words[-1].end()] if words else ""
