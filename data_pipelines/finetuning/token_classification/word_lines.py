"""Words and their columns in lines of text: columns, CSV, or sentences such as `in/IN Oslo/NNP`."""

import csv
import logging
import re
from collections.abc import Callable, Sequence

from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import OUTSIDE, is_tag
from data_pipelines.finetuning.token_classification.columns import WordRow

_log = logging.getLogger("data_pipelines")

_DOCSTART = "-DOCSTART-"
DOCUMENT_2012 = "#begin document"
CONLL_2012 = (
    *("document", "part", "number", "word", "pos", "parse"),
    *("lemma", "frameset", "sense", "speaker", "ner"),
)  # more columns follow, as many as the sentence has predicates
_SPACES = re.compile(r"[ \t\r\f\v]+")  # without the no-break space, which is part of a word
_HASH_SPACE = re.compile(r"#+\s")  # begins a comment
_BLANK = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*")  # with characters of no width
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_line_rows(name: str, numbered: Sequence[tuple[int, str]]) -> list[WordRow]:
    """Return the words in lines with tabs or spaces between columns.

    Args:
      name: name of the file.
      numbered: number and content of each line. All words of a sentence may be in one line, with
        the same separator before each tag, as in `in/IN Oslo/NNP`. Of lines of CoNLL-2012 the
        first columns are returned.

    Raises:
      InputError: a line has more or fewer columns than the first one.
    """
    if separator := _inline_separator(numbered):
        return _read_inline(name, numbered, separator)
    first = next((x for x in numbered if not _is_skipped(x[1])), None)
    hash_words = (x for x in numbered if x[1].startswith("#") and _is_tagged(x[1]))
    first_line, line = first or next(hash_words, (0, ""))
    has_tabs = "\t" in line.strip()
    num_columns = len(_split(line, has_tabs))
    is_2012 = num_columns > len(CONLL_2012) and any(
        line.startswith(DOCUMENT_2012) for _, line in numbered
    )
    num_columns = len(CONLL_2012) if is_2012 else num_columns
    is_word = _hash_word_test(numbered, has_tabs, num_columns)
    rows: list[WordRow] = []
    comments: list[str] = []  # that may be words
    sentence = document = 0
    for number, line in numbered:
        if _BLANK.fullmatch(line) or line.startswith((_DOCSTART, DOCUMENT_2012)):
            document += bool(rows) and not _BLANK.fullmatch(line)
            sentence += 1
            continue
        values = _split(line, has_tabs, num_columns)
        values = values[:num_columns] if is_2012 else values
        if line.startswith("#") and not (
            len(values) == num_columns and (rows if num_columns == 1 else is_word(values))
        ):
            if len(values) == num_columns and not _HASH_SPACE.match(line):
                comments.append(line.strip())
            continue
        if len(values) != num_columns:
            raise InputError(
                f"{name}:{number}: {len(values)} columns, line {first_line} has {num_columns}. "
                "Write the same columns on every line, such as the word first and its tag last."
            )
        rows.append(WordRow(number, sentence, document, values))
    if comments and num_columns > 1:
        _log.warning(
            "%s: %d lines that start with # are comments, such as %r. If they are words, separate "
            "the columns by tabs.",
            *(name, len(comments), comments[0]),
        )
    return _unquote(rows) if has_tabs else rows


def _hash_word_test(
    numbered: Sequence[tuple[int, str]], has_tabs: bool, num_columns: int
) -> Callable[[Sequence[str]], bool]:
    """Return a function that tests whether a line with # is a word, given its columns."""
    seen: list[set[str]] = [set() for _ in range(num_columns)]
    if any(line.startswith("#") for _, line in numbered):
        for _, line in numbered:
            if not _is_skipped(line):
                for values, value in zip(seen, _split(line, has_tabs, num_columns), strict=False):
                    values.add(value)

    def is_word(values: Sequence[str]) -> bool:
        if seen[0] and all(map(str.isdecimal, seen[0])):
            return False  # other lines begin with numbers of words
        if is_tag(values[-1]) or values[-1] in seen[-1]:
            return True
        if not has_tabs or OUTSIDE in seen[-1] or any(map(_SPACES.search, values)):
            return False
        # A part of speech that other words do not have.
        pairs = zip(values[1:], seen[1:], strict=True)
        return num_columns == 2 or any(value in known for value, known in pairs)

    return is_word


def _inline_separator(numbered: Sequence[tuple[int, str]]) -> str:
    """Return the mark in every word of every line, if lines have several words; else ""."""
    marks, longest = "|/_", 0
    for _, line in numbered:
        words = [] if _is_skipped(line) else line.split()
        marks = "".join(mark for mark in marks if all(mark in word[1:-1] for word in words))
        longest = max(longest, len(words))
        if not marks:
            return ""
    return marks[0] if longest > 1 else ""


def _read_inline(name: str, numbered: Sequence[tuple[int, str]], mark: str) -> list[WordRow]:
    """Return the words of lines that are sentences; `mark` separates a word and its tags."""
    first = next(line for _, line in numbered if not _is_skipped(line)).split()[0]
    num_marks = first.count(mark) if mark == "|" else 1
    rows = []
    for number, line in numbered:
        words = line.split()
        is_comment = line.startswith("#") and not all(mark in word for word in words)
        is_skipped = is_comment or line.startswith(_DOCSTART) or _BLANK.fullmatch(line)
        for word in () if is_skipped else words:
            values = word.rsplit(mark, num_marks)
            if len(values) <= num_marks:
                raise InputError(
                    f"{name}:{number}: {word!r} has {len(values)} parts, {first!r} has "
                    f"{num_marks + 1}. Write the same parts in every word."
                )
            rows.append(WordRow(number, number, 0, values))
    return rows


def _is_skipped(line: str) -> bool:
    return bool(_BLANK.fullmatch(line)) or line.startswith(("#", _DOCSTART))


def _is_tagged(line: str) -> bool:
    values = _split(line, "\t" in line.strip())
    return len(values) > 1 and is_tag(values[-1])


def _split(line: str, has_tabs: bool, num_columns: int = 0) -> list[str]:
    """Return the columns of a line; empty ones at its end count if there are `num_columns` then."""
    if not has_tabs:
        if line.isascii() and line.isprintable():  # a fifth of the time
            return line.split() or [""]
        return _SPACES.split(line.strip())
    values = [value.strip() for value in line.rstrip().split("\t")]
    padding = line.rstrip(" \r\n").count("\t") + 1 - len(values)
    return values + [""] * padding if len(values) + padding == num_columns else values


def _unquote(rows: list[WordRow]) -> list[WordRow]:
    """Return rows without the quotes that pandas and csv write around values with quotes."""
    values = [value for row in rows for value in row.values]
    quoted = [value for value in values if '"' in value]
    has_escapes = any('""' in value[1:-1] for value in quoted) or quoted == values
    if not has_escapes or not all(map(_QUOTED.fullmatch, quoted)):
        return rows

    def unquote(value: str) -> str:
        return value[1:-1].replace('""', '"') if value.startswith('"') else value

    return [row._replace(values=[unquote(value) for value in row.values]) for row in rows]


def has_csv_delimiters(numbered: Sequence[tuple[int, str]]) -> bool:
    """Return whether the first line that is not empty has delimiters of CSV, and no tabs."""
    first = next((line for _, line in numbered if not _BLANK.fullmatch(line)), "")
    return "\t" not in first and any(mark in first for mark in ",;|")


def read_csv_rows(name: str, numbered: Sequence[tuple[int, str]]) -> list[WordRow]:
    """Return the words in lines of CSV; an empty row ends a sentence.

    Raises:
      InputError: it is not CSV, or a row has more or fewer columns than the first one.
    """
    lines = [line for _, line in numbered]
    first = next((line for line in lines if not _BLANK.fullmatch(line)), "")
    delimiter = max(",;|", key=first.count)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    rows: list[WordRow] = []
    sentence, line, num_columns = 0, 1, 0
    try:
        for values in reader:
            if not any(map(str.strip, values)):
                sentence += 1
            elif num_columns and len(values) != num_columns:
                raise InputError(
                    f"{name}:{line}: {len(values)} columns, line {rows[0].line} has "
                    f"{num_columns}. Write the same columns on every line."
                )
            else:
                num_columns = len(values)
                rows.append(WordRow(line, sentence, 0, [value.strip() for value in values]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}:{line}: not CSV ({error}). Fix its quotes.") from None
    return rows
