"""Files with one word per line: CoNLL columns, CoNLL-U, and CSV or TSV with a header."""

import bisect
import dataclasses
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import file_format
from data_pipelines.finetuning.tag_schemes import OUTSIDE, is_tag
from data_pipelines.finetuning.token_classification.cells import (
    join_sentence_lines,
    split_cells,
)
from data_pipelines.finetuning.token_classification.columns import (
    Column,
    WordRow,
    WordTable,
    choose_columns,
    has_header,
)
from data_pipelines.finetuning.token_classification.sentences import (
    ANY_COLUMNS,
    ColumnNames,
    TaggedSentence,
)
from data_pipelines.finetuning.token_classification.word_lines import (
    CONLL_2012,
    DOCUMENT_2012,
    has_csv_delimiters,
    read_csv_rows,
    read_line_rows,
)

_log = logging.getLogger("data_pipelines")

CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".conllu", ".conllup")
_LANGUAGE = re.compile(r"([a-z]{2,}(?:-[a-z]+)*):")
_SENTENCE = re.compile(r"sent(ence)?\b|sent(ence)?_")  # names of columns that name sentences
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_ID = re.compile(r"\d+(?:[-.]\d+)?")
_COLUMNS_COMMENT = "# global.columns ="  # of CoNLL-U Plus
# Formats of annotations that are not columns.
_OTHER_FORMATS = {
    "spans of brat, without their text": re.compile(r"T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t.*"),
    "spans of PubTator": re.compile(r"\d+\|[ta]\|.*"),
    "marks around words": re.compile(r".*<(\w+)\b[^<>]*>[^<>]+</\1>[^\t]*"),
}
_LONG_SENTENCE = 2000  # words; a longer one may be a file without ends of sentences


def is_conll(path: epath.PathLike) -> bool:
    """Return whether a file's suffix is that of CoNLL files, which have one word per line."""
    return file_format(epath.Path(path)) in CONLL_SUFFIXES


def parse_conll(
    name: str, lines: Iterable[str], wanted: ColumnNames = ANY_COLUMNS, has_tags: bool = True
) -> list[TaggedSentence]:
    """Return the sentences of a file whose lines have columns.

    If tabs separate the columns, a word may be empty. A line that begins with # is a comment if it
    has more or fewer columns than other lines, or does not end in a tag. If all lines have one
    column, words have no tags.

    Args:
      name: name of the file. It may have commas between columns if it ends in .csv.
      lines: its lines.
      wanted: columns of the words and the tags.
      has_tags: False reads the words alone.

    Raises:
      InputError: a line has more or fewer columns than the first one, or no tag; or several
        columns may hold the tags.
    """
    numbered = [(number, line.lstrip("\ufeff")) for number, line in enumerate(lines, 1)]
    _reject_other_formats(name, numbered)
    numbered = [*join_sentence_lines(numbered)]
    is_csv = file_format(epath.Path(name)) == ".csv" and has_csv_delimiters(numbered)
    table = WordTable(name, (read_csv_rows if is_csv else read_line_rows)(name, numbered))
    if not table.rows:
        return []
    _name_columns(table, wanted, [line for _, line in numbered if line.startswith("#")])
    if not table.rows:
        return []
    if table.names[:2] == ["id", "form"] or _has_conllu_ids(table):
        _drop_extra_lines(table, [n for n, line in numbered if line.startswith("# newdoc")])
        if has_tags and not wanted.tag and "upos" in table.names:
            wanted = dataclasses.replace(wanted, tag=_split_misc(table) or "upos")
    _split_sentences(table)
    split_cells(table)
    word, tag = choose_columns(table, wanted, has_tags)
    if is_csv and tag is not None and not (table.names or wanted.tag):
        _check_entities(table, tag)
    _check_words(table, word)
    words = _strip_language(name, [row.values[word] for row in table.rows])
    sentences = []
    pairs = zip(table.rows, words, strict=True)
    for _, group in itertools.groupby(pairs, lambda pair: pair[0].sentence):
        rows, sentence_words = map(list, zip(*group, strict=True))
        tags = None if tag is None else [_tag(table, row, tag) for row in rows]
        locations = [f"{name}:{row.line}" for row in rows]
        sentences.append(TaggedSentence(sentence_words, tags, locations, rows[0].document))
    longest = max(sentences, key=lambda sentence: len(sentence.words))
    if len(longest.words) > _LONG_SENTENCE:
        _log.warning(
            "%s: a sentence of %d words. Write an empty line after each sentence.",
            longest.locations[0], len(longest.words),
        )  # fmt: skip
    return sentences


def _name_columns(table: WordTable, wanted: ColumnNames, comments: Sequence[str]) -> None:
    """Set the names of the columns from a header, a comment, or the form of CoNLL-U."""
    values = table.rows[0].values
    if has_header(table.rows, wanted):
        table.names = [value.lower() for value in values]
        # Concatenated files repeat the header.
        table.rows = [row for row in table.rows if [*map(str.lower, row.values)] != table.names]
        return
    for comment in comments:
        if comment.startswith(DOCUMENT_2012) and len(values) == len(CONLL_2012):
            table.names = CONLL_2012
            return
        if comment.startswith(_COLUMNS_COMMENT):
            names = comment.removeprefix(_COLUMNS_COMMENT).lower().split()
            table.names = names if len(names) == len(values) else ()
            return
    if len(values) == len(_CONLLU) and all(
        _CONLLU_ID.fullmatch(row.values[0]) and re.fullmatch(r"\d+|_", row.values[6])
        for row in table.rows
    ):
        table.names = list(_CONLLU)


def _has_conllu_ids(table: WordTable) -> bool:
    ids = [row.values[0] for row in table.rows]
    return all(map(_CONLLU_ID.fullmatch, ids)) and 2 * sum(map(str.isdecimal, ids)) > len(ids)


def _drop_extra_lines(table: WordTable, new_documents: Sequence[int]) -> None:
    """Remove multiword tokens and empty nodes of CoNLL-U, and set the documents of the words."""
    rows = [row for row in table.rows if row.values[0].isdecimal()]
    if len(rows) < len(table.rows):
        _log.info(
            "%s: left out %d lines of multiword tokens and empty nodes.",
            table.name, len(table.rows) - len(rows),
        )  # fmt: skip
    table.rows = [
        row._replace(document=bisect.bisect(new_documents, row.line)) if new_documents else row
        for row in rows
    ]


def _split_misc(table: WordTable) -> str:
    """Add a column of the tags in MISC, as in NorNE's `name=B-PER`; return its name, or ""."""
    fields = [dict(re.findall(r"([^|=]+)=([^|]*)", row.values[-1])) for row in table.rows]
    names = {name: None for field in fields for name in field}
    for name in names if table.names[-1] == "misc" else ():
        tags = [field.get(name, OUTSIDE) for field in fields]
        inside = {*tags} - {OUTSIDE}
        if inside and all("-" in tag and is_tag(tag) for tag in inside):
            table.names = [*table.names, name.lower()]
            pairs = zip(table.rows, tags, strict=True)
            table.rows = [row._replace(values=[*row.values, tag]) for row, tag in pairs]
            return name.lower()
    return ""


def _split_sentences(table: WordTable) -> None:
    """Set the sentences from a column that names them, or from a count that begins again."""
    column = next((i for i, name in enumerate(table.names) if _SENTENCE.match(name)), None)
    if column is None and len({row.sentence for row in table.rows}) == 1:
        columns = range(len(table.rows[0].values) - 1)
        column = next((i for i in columns if _restarts(table.rows, i)), None)
        if column is None:
            return
        starts: Iterable[bool] = (row.values[column] in ("0", "1") for row in table.rows)
    elif column is None:
        return
    else:
        starts = _changes(row.values[column] for row in table.rows)
    sentence, ended = 0, table.rows[0].sentence
    rows = []
    for row, is_start in zip(table.rows, starts, strict=True):
        sentence += is_start or row.sentence != ended
        ended = row.sentence
        rows.append(row._replace(sentence=sentence))
    table.rows = rows


def _changes(values: Iterable[str]) -> Iterator[bool]:
    """Yield whether each value differs from the last one that is not empty."""
    last = ""
    for value in values:
        yield value not in ("", last)
        last = value or last


def _restarts(rows: Sequence[WordRow], column: int) -> bool:
    """Return whether a column counts words and begins again at 0 or 1."""
    values = [row.values[column] for row in rows]
    if not all(map(str.isdecimal, values)):
        return False
    first = values[0]
    pairs = itertools.pairwise(values)
    return first in ("0", "1") and all(b == first or int(b) == int(a) + 1 for a, b in pairs)


def _strip_language(name: str, words: list[str]) -> list[str]:
    """Return the words without WikiANN's language, as in `en:Oslo`, or Weibo NER's number.

    The number of a character in its word follows each character, as in `科0 技1`.
    """
    starts_word = any(word[1:] == "0" and not word.isascii() for word in words)
    if starts_word and all(re.fullmatch(r"\S\d+", word) for word in words):
        _log.info("%s: removed the number after each character, such as %r.", name, words[0])
        return [word[0] for word in words]
    matches = [_LANGUAGE.match(word) for word in words]
    if len(words) < 2 or not all(matches):
        return words
    languages = sorted({match[1] for match in matches if match})
    stripped = [word.partition(":")[2] for word in words]
    _log.info(
        "%s: removed the language %s from all words, such as %r of %r.",
        name, ", ".join(languages[:3]), stripped[0], words[0],
    )  # fmt: skip
    return stripped


def _reject_other_formats(name: str, numbered: Sequence[tuple[int, str]]) -> None:
    """Raise InputError if the first line that is not empty has annotations of another format."""
    number, line = next(((n, line) for n, line in numbered if line.strip()), (0, ""))
    for problem, pattern in _OTHER_FORMATS.items():
        if pattern.fullmatch(line) and not is_tag(line.split()[-1]):
            raise InputError(
                f"{name}:{number}: {problem}. Write JSON lines with texts and spans, such as "
                '{"text": "In Oslo", "spans": [[3, 7, "LOC"]]}.'
            )


def _check_words(table: WordTable, word: int) -> None:
    """Raise InputError if most rows have several words."""
    several = [row for row in table.rows if " " in row.values[word]]
    if 2 * len(several) > len(table.rows):
        raise InputError(
            f"{table.name}:{several[0].line}: {several[0].values[word]!r} is not one word. Write a "
            "word in each row, or as many tags as words, or choose another column with "
            "data.word_column."
        )


def _check_entities(table: WordTable, tag: int) -> None:
    """Raise InputError if a CSV has neither a known header nor tags with prefixes."""
    if Column(table.rows, tag).style != "prefix":
        raise InputError(
            f"{table.name}: no header with names such as Word and Tag. Write one, or name the "
            "columns with data.word_column and data.tag_column."
        )


def _tag(table: WordTable, row: WordRow, column: int) -> str:
    tag = row.values[column]
    if not tag or (tag == "_" and table.names[:2] == ["id", "form"]):
        raise InputError(
            f"{table.name}:{row.line}: no tag in column {table.describe(column)}. Write one, O for "
            "a word outside of entities, or choose another column with data.tag_column."
        )
    return tag
