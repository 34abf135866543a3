"""Layouts of text files, recognized by their first lines, and warnings of text's defects."""

# ruff: noqa: RUF001 (stops of many scripts)

import logging
import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from etils import epath

from data_pipelines.parsing import parse_json
from data_pipelines.text import plain_text
from data_pipelines.text.markup import reject_markup, reject_vertical
from data_pipelines.text.tables import Header, find_header

_log = logging.getLogger(__name__)

# The sample of a file. Fewer lines than bad records that stop the reading early.
_SAMPLE_LINES, _SAMPLE_CHARS = 400, 1 << 16

_JSON_SUFFIXES = {".json", ".jsonl", ".ndjson"}
_OBJECT_START = re.compile(r"""\s*\{\s*(["'])[^"']*\1\s*:""")  # also on several lines, or of Python
_LIST_START = re.compile(r'\s*\[\s*([{\]"]|$)')
_GUTENBERG = re.compile(r"\s*\*\*\* ?START OF TH(E|IS) PROJECT GUTENBERG", re.IGNORECASE)
_ESCAPE = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#x[\da-f]+);|(?<=\w) @[-,.]@ (?=\w)")
_HTML_TAG = re.compile(
    r"</?[a-z]\w*(?:\s[^<>]*)?/?>|<\|\w+\|>|\b__[a-z]+__\b"  # also <unk>, __eou__
    r"|^</?[a-z]\S*(?: \S+=[^<>]*)?>\s*$",  # any tag that is a line, as in Europarl
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"[!-~]{,30}\d[!-~]{,30}$")  # 1089-134686-0000, [12:30]
_MARKDOWN = re.compile(  # and reStructuredText, AsciiDoc
    r"\]\(https?://|^```|^\s*\|(?:\s*:?-+:?\s*\|)+|^#{1,6} \S|\*\*\w"
    r"|^\.\. [\w-]+::|^([=~-])\1{3,}$|:\w+:`"
)
_SENTENCE_END = re.compile(r"""[.!?…:;。！？。॥।؟][\])}"'”’»*_]*$""")
_MIN_PAIRS = 20  # of lines, to recognize wrapped text


class Layout(NamedTuple):
    """The layout of a text file.

    Attributes:
      name: "json_lines", "json_list", "table", "extractor", "wikitext", "separated" or "plain".
      header: header of a table.
    """

    name: str
    header: Header | None = None


class Notices:
    """Logs each kind of notice once, for the first of many files."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, level: int, kind: str, message: str, *args: object) -> None:
        """Log a message unless one of its kind was logged."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            _log.log(level, message, *args)


def take_sample(lines: Iterator[str]) -> tuple[list[str], bool]:
    """Take the first lines of a text; return them, and whether these are all."""
    sample: list[str] = []
    size = 0
    for line in lines:
        sample.append(line)
        size += len(line) + 1
        if size >= _SAMPLE_CHARS or len(sample) >= _SAMPLE_LINES:
            return sample, False
    return sample, True


def detect_layout(path: epath.Path, sample: Sequence[str], is_whole: bool, field: str) -> Layout:
    """Return the layout of a text file.

    Args:
      path: the file.
      sample: its first lines.
      is_whole: whether these are all lines.
      field: name of the text field or column.

    Raises:
      InputError: the file has a known layout that is not read.
    """
    filled = [line for line in sample if line.strip()]
    first = filled[0].lstrip("\ufeff") if filled else ""
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if _LIST_START.match(first) and (suffixes & _JSON_SUFFIXES or _is_json_list(filled)):
        return Layout("json_list")
    if suffixes & _JSON_SUFFIXES or _is_object(first) or _OBJECT_START.match("\n".join(filled[:2])):
        return Layout("json_lines")
    if plain_text.EXTRACTOR_START.match(first):
        reject_vertical(path, filled)
        return Layout("extractor")
    reject_markup(path, filled)
    if any(map(plain_text.has_separator, sample)):
        return Layout("separated")
    header = find_header(sample, is_whole, field, next(iter(suffixes & {".csv", ".tsv"}), ""))
    if header:
        return Layout("table", header)
    if filled and plain_text.is_wikitext(filled):
        return Layout("wikitext")
    return Layout("plain")


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and bool(parse_json(line))
    except ValueError:
        return False


def _is_json_list(lines: Sequence[str]) -> bool:
    """Return whether the first lines start a list of objects or texts: [{"name":, ["a", "b"."""
    start = "\n".join(lines[:3])
    return re.match(r'\s*\[\s*(?:\{\s*"[^"]*"\s*:|"(?:[^"\\]|\\.)*"\s*,\s*")', start) is not None


def check_documents(
    source: str, documents: Iterator[list[str]], notices: Notices, is_wrapped: bool
) -> Iterator[list[str]]:
    """Yield the documents; `warn_of_defects` of the first."""
    first: list[list[str]] = []
    size = 0
    for document in documents:
        first.append(document)
        size += sum(map(len, document)) + 1
        if size >= _SAMPLE_CHARS or len(first) >= _SAMPLE_LINES:
            break
    lines = [line for document in first for line in (*document, "")]
    warn_of_defects(source, lines, notices, is_wrapped)
    yield from chain(first, documents)


def warn_of_defects(source: str, sample: Sequence[str], notices: Notices, is_wrapped: bool) -> None:
    """Warn of wrapped lines, escapes, tags and other defects that are seldom meant.

    Args:
      source: the input.
      sample: its first lines, with blank lines between documents.
      notices: logs each kind of warning once.
      is_wrapped: whether wrapped lines are joined.
    """

    def warn(kind: str, message: str, *args: object) -> None:
        notices(logging.WARNING, kind, f"%s: {message}", source, *args)

    lines = [line for line in sample if line.strip()]
    tagged = [line for line in lines if "<" in line or "__" in line]
    if not is_wrapped and (example := _find_wrapped(sample)):
        warn(
            "wrapped",
            "lines are wrapped, such as %r and %r. The end of a line ends a sentence, a blank line "
            "a document. Join the lines with --documents wrapped.",
            *example,
        )
    if any(_GUTENBERG.match(line) for line in lines if "***" in line):
        warn(
            "gutenberg",
            "the license of Project Gutenberg is part of the text. Remove it: "
            "sed -n '/^\\*\\*\\* *START OF/,/^\\*\\*\\* *END OF/{/^\\*\\*\\*/!p}'.",
        )
    limit = 0.01 * len(lines)
    escapes = [m for line in lines if "&" in line or "@" in line if (m := _ESCAPE.search(line))]
    if len(escapes) > limit:
        warn(
            "escapes",
            "%.0f%% of the first lines have escapes such as %r, which are read as text. Decode "
            "them, with Python's html.unescape or a detokenizer of Moses.",
            100 * len(escapes) / len(lines),
            escapes[0][0].strip(),
        )
    tags = [m for line in tagged if (m := _HTML_TAG.search(line))]
    if len(tags) > limit:
        warn(
            "tags",
            "%.0f%% of the first lines have tags such as %r, which are read as text. Remove them.",
            100 * len(tags) / len(lines),
            tags[0][0],
        )
    marks = [match for line in lines if (match := _MARKDOWN.search(line))]
    if len(marks) > limit:
        warn(
            "markdown",
            "%.0f%% of the first lines have markup such as %r, which is read as text. Convert "
            "the files with pandoc -t plain --wrap=none.",
            100 * len(marks) / len(lines),
            marks[0][0],
        )
    words = (line.split(maxsplit=1)[0] for line in lines)
    ids = [word for word in words if _NUMBERED.match(word)]
    if len(lines) >= _MIN_PAIRS and len(ids) > 0.9 * len(lines):
        warn(
            "ids",
            "most lines begin with a number or id, such as %r, which is read as text.",
            ids[0],
        )
    single = sum(line.isascii() and len(line.split()) == 1 for line in lines)
    if len(lines) >= 100 and single > 0.9 * len(lines):
        warn(
            "words",
            "most lines are one word, such as %r. The end of a line ends a sentence. Join the "
            "words of a sentence.",
            lines[0].strip(),
        )


def _find_wrapped(sample: Sequence[str]) -> tuple[str, str] | None:
    """Return two lines of wrapped text, or None for other text.

    Of wrapped text, many lines end without a stop, the next begins in lower case or a script
    without case, and lengths are about equal.
    """
    pairs = [
        (line.strip(), following.strip())
        for line, following in pairwise(sample)
        if line.strip() and following.strip()
    ]
    if len(pairs) < _MIN_PAIRS:
        return None
    cut = [
        (line, following)
        for line, following in pairs
        if following[0].isalpha() and not following[0].isupper() and not _SENTENCE_END.search(line)
    ]
    if len(cut) <= 0.4 * len(pairs):
        return None
    lengths = sorted(len(line) for line, _ in cut)
    width = lengths[len(lengths) * 9 // 10]
    even = sum(0.7 * width <= length <= 1.2 * width for length in lengths)
    return cut[0] if 25 <= width <= 140 and even > 0.8 * len(cut) else None
