"""Unanswerable questions that look answerable.

Two kinds, for questions whose answers are known: a question of another paragraph of the same
document, and a question one of whose spans is replaced by another of the same parts of speech from
the paragraph.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import Question
from experiments.synthetic_qa.text import digest

OTHER_PARAGRAPH, REPLACED_SPAN = "other paragraph", "replaced span"
_CONTENT = ("NN", "JJ", "CD")  # tags of words that a span may have: nouns, adjectives, numbers
_YEAR, _NUMERAL = "year", "numeral"
_NAMED = {"NNP", "CD", _YEAR, _NUMERAL}  # kinds of names and numbers
_MAX_SPAN_WORDS = 4
_WORD = re.compile(r"\w+(?:[-.,'\u2019]\w+)*|[^\w\s]")
_MIN_WORD_LETTERS = 4  # of a word that counts as shared by a question and a paragraph

Tagger = Callable[[Sequence[str]], list[str]]  # words -> their parts of speech (Penn Treebank)
Span = tuple[int, int, tuple[str, ...]]  # characters, kinds of its words


def load_tagger() -> Tagger:
    """Return a part-of-speech tagger of English.

    Raises:
      InputError: its library is not installed.
    """
    try:
        from textblob.taggers import PatternTagger
    except ImportError:
        raise InputError(
            "textblob: not installed; it tags parts of speech. Install bertjax[synthetic], or set "
            "--negatives-per-question=0."
        ) from None
    tagger = PatternTagger()

    def tag(words: Sequence[str]) -> list[str]:
        # The tagger splits words further; the first part's tag is that of the word.
        tags: list[str] = []
        tagged = iter(tagger.tag(" ".join(words)))
        for word in words:
            length, first = 0, ""
            while length < len(word):
                part, name = next(tagged, (word, ""))
                first, length = first or name, length + len(part)
            tags.append(first)
        return tags

    return tag


def content_spans(text: str, tag: Tagger) -> list[Span]:
    """Return the longest spans of nouns, adjectives and numbers of a text.

    A proper noun is of another kind than a common one, and a year than other numbers.
    """
    words = list(_WORD.finditer(text))
    tags = tag([word[0] for word in words])
    spans, run = [], list[int]()
    for i in range(len(words) + 1):
        is_content = i < len(words) and tags[i].startswith(_CONTENT) and words[i][0][0].isalnum()
        if is_content and len(run) < _MAX_SPAN_WORDS:
            run.append(i)
            continue
        if run:
            kinds = tuple(_kind(words[j][0], tags[j]) for j in run)
            spans.append((words[run[0]].start(), words[run[-1]].end(), kinds))
        run = [i] if is_content else []
    return spans


def _kind(word: str, tag: str) -> str:
    """Return the kind of a word; a year is another one than other numbers."""
    if tag.startswith("CD"):
        return _YEAR if re.fullmatch(r"\d{4}", word) else "CD" if word[0].isdigit() else _NUMERAL
    return "NNP" if tag.startswith("NNP") else tag[:2]


def replace_span(question: str, context: str, answer: str, tag: Tagger, seed: int) -> str | None:
    """Return the question with a span replaced by another one of the paragraph.

    The new span has the same kinds of words, and occurs neither in the question nor in the answer.
    Names and numbers are replaced where there are any. In a question in lower case, as a model with
    an uncased vocabulary asks it, they are those of the paragraph.

    Args:
      question: the question.
      context: its paragraph.
      answer: its answer.
      tag: part-of-speech tagger.
      seed: decides which span, with the question.

    Returns:
      The new question, or None if no span can be replaced.
    """
    replacements: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    excluded = f"{question} {answer}".lower()
    known = content_spans(context, tag)
    for start, end, kinds in known:
        text = context[start:end]
        if text.lower() not in excluded and text not in replacements[kinds]:
            replacements[kinds].append(text)
    is_lower = question == question.lower()
    spans = [
        (*match.span(), kinds)
        for start, end, kinds in known
        if (match := _find_words(context[start:end], question)) and replacements.get(kinds)
    ]
    if not is_lower:  # else no name has its tag
        spans += [
            span
            for span in content_spans(question, tag)
            if replacements.get(span[2]) and _find_words(question[span[0] : span[1]], context)
        ]
    spans = sorted({span[:2]: span for span in reversed(spans)}.values())
    # A name or a number changes what is asked for; after another noun a question may mean nothing.
    spans = [span for span in spans if _NAMED & {*span[2]}] or spans
    if not spans:
        return None
    key = digest("replace", seed, question, context)
    start, end, kinds = spans[key % len(spans)]
    old = question[start:end].lower()
    choices = [new for new in replacements[kinds] if not new.lower().startswith(old)]  # a plural
    if not choices:
        return None
    new = choices[key // len(spans) % len(choices)]
    return question[:start] + (new.lower() if is_lower else new) + question[end:]


def _find_words(words: str, text: str) -> re.Match[str] | None:
    """Return the first place of whole words in a text, in any case."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE)


def make_negatives(
    rows: Sequence[Mapping[str, Any]], per_question: float, tag: Tagger, seed: int
) -> list[dict[str, Any]]:
    """Return unanswerable questions, half of each kind where there are enough.

    Args:
      rows: questions {"id", "document", "context", "question", "answer"}.
      per_question: negatives for each question, at most.
      tag: part-of-speech tagger.
      seed: decides which.
    """
    limit = math.floor(per_question * len(rows))
    if not limit:
        return []
    kinds = [list(_other_paragraphs(rows)), list(_replaced_spans(rows, tag, seed))]
    for kind in kinds:
        kind.sort(key=lambda row: digest("negative", seed, row["id"]))
    short = min(len(kinds[0]), limit // 2)
    count = min(len(kinds[1]), limit - short)
    chosen = kinds[0][: limit - count] + kinds[1][:count]
    return sorted(chosen, key=lambda row: str(row["id"]))


def _replaced_spans(
    rows: Sequence[Mapping[str, Any]], tag: Tagger, seed: int
) -> Iterator[dict[str, Any]]:
    for row in rows:
        text = replace_span(row["question"], row["context"], row["answer"], tag, seed)
        if text is not None:
            yield _negative(row, row["context"], text, REPLACED_SPAN)


def _other_paragraphs(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each question with the paragraph of its document that shares most of its words."""
    documents = collections.defaultdict(list)
    for row in rows:
        documents[row["document"]].append(row)
    for members in documents.values():
        words = {context: _long_words(context) for context in {row["context"] for row in members}}
        asked = {(row["context"], row["question"].lower()) for row in members}
        for row in members:
            question = _long_words(row["question"])
            shared = {
                context: len(question & known)
                for context, known in words.items()
                if context != row["context"]
                and row["answer"].lower() not in context.lower()
                and (context, row["question"].lower()) not in asked
            }
            # Without a shared word, no answer is too easy to see.
            best = max(shared, key=lambda context: (shared[context], context), default=None)
            if best is not None and shared[best]:
                yield _negative(row, best, row["question"], OTHER_PARAGRAPH)


def _long_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= _MIN_WORD_LETTERS}


def _negative(row: Mapping[str, Any], context: str, question: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{kind.replace(' ', '-')}-{row['id']}",
        "document": row["document"],
        "context": context,
        "question": question,
        "kind": kind,
        "of": row["question"],
    }


def answerable_rows(documents: Mapping[str, int], questions: Sequence[Question]) -> list[dict]:
    """Return answerable questions as rows of `make_negatives`.

    Args:
      documents: passage -> number of its article.
      questions: the questions.
    """
    return [
        {
            "id": question.id,
            "document": documents[question.passage],
            "context": question.passage,
            "question": question.text.strip(),
            "answer": question.answers[0].text,
            "start": question.answers[0].start,
        }
        for question in questions
        if question.answers
    ]
