"""Markup and annotated text, which is rejected with the way to extract the text."""

import re
from collections.abc import Sequence

from etils import epath

from data_pipelines.errors import InputError

_MARKUP_START = re.compile(
    r"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(\?xml|!doctype|html|head|body|sami)\b",
    re.IGNORECASE | re.DOTALL,
)
_TAG_LINE = re.compile(r"""\s*<([A-Za-z][\w:.-]*)(\s+[\w:.-]+\s*=\s*("[^"]*"|'[^']*'))*\s*>\s*""")
_TIMES = re.compile(r"\s*(\d+:)?\d\d:\d\d[,.]\d{3}\s+-->\s")
_SHORT_TIMES = re.compile(  # of Whisper, MicroDVD, lyrics (LRC), YouTube (SBV); also read by sed
    r"\[[0-9:.]+ --> [0-9:.]+\] *|\{[0-9]+\}\{[0-9]+\}|\[[0-9]+:[0-9]+[.:][0-9]+\]"
    r"|[0-9]+:[0-9:]+\.[0-9]{3},[0-9:.]+ *$"
)
_CONLLU = re.compile(r"\d+([-.]\d+)?\t([^\t]+\t){8}[^\t]+")
_TAG = re.compile(r"O|[BIESLU]-\S+")
_TAGGED_LINE = re.compile(r"\s*(?:[^\s/_]+[/_][A-Za-z.,:;()`'$*+-]{1,9}\s+){3}")  # the/DT old/JJ
_TREE = re.compile(r"\s*\((\s|TOP|ROOT|S1)?\s*\([A-Z]+\b")  # of the Penn Treebank
_WARC_FIELD = re.compile(r"WARC-Type: ")
_DUMP_INDEX = re.compile(r"\d+:\d+:.")
_SQL = re.compile(r"(/\*.*\*/\s*)?-- (MySQL|MariaDB|PostgreSQL database) dump|SQLite format 3")
_LATEX = re.compile(r"\s*\\documentclass\b")
_FASTTEXT = re.compile(r"\s*__label__\S")
_PUBTATOR = re.compile(r"\d+\|[ta]\|")
_BRAT = re.compile(r"T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t|[#AREMN*]\d*\t\S+ ")
_MAIL = re.compile(r"From \S+|(From|Return-Path|Received|Message-ID|Path|Xref): ")
_SEPARATOR = re.compile(
    r"(?<=\s)(?!@.@\s|[-.]+\s)[^\w\s]{3,}(?=\s)|::|@@+|##+|\|\|+|[\x01-\x08\x1c-\x1f^~¦]"
)
_COUNTED = re.compile(r"\S+ +\d+\s*")  # a word and how often it occurs
_FRONT_MATTER = re.compile(r"%YAML |---\s*\n[\w\"'-][^\n:]*:(\s|$)")
_FIRST_LINES = [  # of other formats: pattern, name, fix
    (r"%!PS", "PostScript", "Extract its text, for example with ps2ascii"),
    (r"PMID- ", "records of MEDLINE", "Extract their abstracts, with Bio.Medline of Biopython"),
    (r"TY  - ", "records of RIS", "Extract their abstracts, for example with rispy"),
    (r"@\w+\s*\{[^{}]*,\s*", "BibTeX", "Extract its abstracts, for example with bibtexparser"),
    (r"msg(id|ctxt) \"", "messages of gettext", "Extract their msgstr, for example with polib"),
]
_MIN_LINES = 5  # with equal marks, which are then no accident


def reject_markup(path: epath.Path, lines: Sequence[str]) -> None:
    """Raise InputError for markup and annotated text, with the fix.

    Args:
      path: the file.
      lines: its first lines, blank ones left out.
    """
    first = lines[0].lstrip("\ufeff") if lines else ""
    tokens = [line for line in lines if not line.startswith("#")]  # lines of annotated text
    is_tag = _TAG_LINE.fullmatch(first) and any("</" in line for line in lines)
    if _MARKUP_START.match("\n".join([first, *lines[1:5]])) or is_tag:
        problem = f"HTML or XML ({first.strip()[:40]})"
        fix = "Extract its text, for example with trafilatura or html2text"
    elif first.startswith("WARC/") and _count(_WARC_FIELD, lines):
        problem, fix = "a WARC archive", "Extract its text, for example with warcio"
    elif len(lines) >= _MIN_LINES and all(map(_DUMP_INDEX.match, lines)):
        problem, fix = "the index of a Wikipedia dump", "Leave it out and name the dump"
    elif _SQL.match("\n".join([first, *lines[1:5]])):
        problem, fix = "a database", "Export its text as CSV"
    elif any(_LATEX.match(line) for line in lines if "\\" in line):
        problem, fix = "LaTeX", "Extract its text, for example with pandoc -t plain"
    elif other := next(
        (x for x in _FIRST_LINES if re.match(x[0], tokens[0] if tokens else "")), None
    ):
        _, problem, fix = other
    elif {".yaml", ".yml"} & {*path.suffixes} or _FRONT_MATTER.match(
        "\n".join([first, *lines[1:2]])
    ):
        problem, fix = (
            "YAML, or text below it",
            "Extract the text, for example with pandoc -t plain",
        )
    elif _PUBTATOR.match(first):
        problem = "annotations of PubTator"
        fix = _command(path, "sed -nE 's/^([0-9]+\\|[ta]\\||$)//p'")
    elif _count(_BRAT, lines) == len(lines) > 0:
        problem, fix = "annotations of brat", "Leave it out and name the .txt files"
    elif _TREE.match(first):
        problem, fix = "syntax trees", "Extract their words, for example with NLTK"
    elif first.startswith("[Script Info]"):
        problem = "subtitles with times"
        fix = _command(path, "sed -n 's/^Dialogue: \\([^,]*,\\)\\{9\\}//p'")
    elif _MAIL.match(first) and any(line.startswith(("Subject:", "Message-ID:")) for line in lines):
        problem, fix = "mail with headers", "Extract its text, with Python's mailbox and email"
    elif _count(_TIMES, lines) > (not first.startswith("WEBVTT")):
        problem = "subtitles with times"
        fix = _command(path, "grep -vE '^(WEBVTT.*|[0-9]+|.*-->.*)?\\s*$'")
    elif _count(_SHORT_TIMES, lines) > max(1, 0.4 * len(lines)):
        problem = "subtitles or lyrics with times"
        fix = _command(path, f"sed -E 's/^({_SHORT_TIMES.pattern})//'")
    elif tokens and all(map(_CONLLU.fullmatch, tokens)):
        problem = "CoNLL-U"
        fix = _command(path, "sed -n 's/^# text = //p'", "--documents lines")
    elif len(tokens) >= _MIN_LINES and all(map(_ends_with_tag, tokens)):
        problem = "a token and its tags a line"
        command = 'awk \'NF {printf "%s ", $1; next} {print ""}\''
        fix = _command(path, command, "--documents lines")
        fix = f"{fix}, where $1 is the column of the tokens"
    elif len(lines) >= _MIN_LINES and _count(_TAGGED_LINE, lines) > 0.9 * len(lines):
        problem = "tags behind the words"
        fix = _command(path, "sed -E 's#[/_][^ /_]+( |$)#\\1#g'")
    elif _count(_FASTTEXT, lines) > 0.9 * len(lines) > 0:
        problem = "labels of fastText before the text"
        fix = _command(path, "sed -E 's/(__label__[^ ]+ ?)+//'")
    elif len(lines) >= _MIN_LINES and all(map(_COUNTED.fullmatch, lines)):
        problem, fix = "words and their counts", "Leave it out and name the text they are from"
    elif separator := _find_separator(lines):
        problem = f"columns between {separator!r}"
        mark = re.escape(separator) if separator >= " " else f"\\{ord(separator):03o}"
        fix = _command(path, f"awk -F ' *{mark} *' '{{print $NF}}'")
        fix = f"{fix}, where $NF is the last column"
    else:
        return
    raise InputError(f"{path}: {problem}. {fix}.")


def reject_vertical(path: epath.Path, lines: Sequence[str]) -> None:
    """Raise InputError for Sketch Engine's files: a token and its tags a line, between tags."""
    words = [line for line in lines if not line.startswith("<")]
    if words and all("\t" in line for line in words):
        command = "awk -F'\\t' '/^<\\/s/ {print \"\"} !/^</ {printf \"%s \", $1}'"
        fix = _command(path, command, "--documents lines")
        raise InputError(f"{path}: a token and its tags a line, between tags. {fix}.")


def _command(path: epath.Path, command: str, option: str = "") -> str:
    """Return the fix that a shell command writes the text to another file."""
    reader = f", which is read with {option}" if option else ""
    return f"Write its text{reader}: {command} {path.name} > {path.stem}.text.txt"


def _count(pattern: re.Pattern[str], lines: Sequence[str]) -> int:
    return sum(pattern.match(line) is not None for line in lines)


def _ends_with_tag(line: str) -> bool:
    """Return whether a line is a token with a tag behind it, or with three empty columns."""
    fields = line.split()
    has_tag = len(fields) > 1 and _TAG.fullmatch(fields[-1]) is not None
    return has_tag or sum(field in ("-", "_", "*") for field in fields) > 2


def _find_separator(lines: Sequence[str]) -> str:
    """Return the mark between columns, such as +++$+++ or ^; "" for none.

    It is in every line, equally often unless spaces are around it.
    """
    if len(lines) < _MIN_LINES:
        return ""
    common = set(_SEPARATOR.findall(lines[0]))
    for line in lines[1:]:
        if not common:
            return ""
        common &= set(_SEPARATOR.findall(line))
    spaced = {mark for mark in common if all(f" {mark} " in line for line in lines)}
    return min(spaced or (mark for mark in common if _is_even(mark, lines)), default="")


def _is_even(mark: str, lines: Sequence[str]) -> bool:
    """Return whether a mark is equally often in every line, and no column is empty in all."""
    rows = [line.split(mark) for line in lines]
    return len({*map(len, rows)}) == 1 and all(
        any(map(str.strip, column)) for column in zip(*rows, strict=True)
    )
