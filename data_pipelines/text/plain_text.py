"""Documents of plain text: blocks, lines, wrapped text, and text with marks between documents."""

import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once

_log = logging.getLogger(__name__)

_START, SEPARATOR = "<|startoftext|>", "<|endoftext|>"  # of GPT's corpora
# A mark between two documents, where prose has spaces, quotes or punctuation beside it.
_JOINT = re.compile(
    r"""[^\s`'"“\u2018(\[{<*:]<\|endoftext\|>[\w"“\u2018'(]"""
    r"""|["'”\u2019)]<\|endoftext\|>\w"""
)
EXTRACTOR_START = re.compile(r"\s*<doc\s(?:[^>]*\s)?id=")
_EXTRACTOR_TITLE = re.compile(r"""\stitle=(?:"(.{,1000}?)"|'(.{,1000}?)')\s*/?>""")
_TAGS = re.compile(r"</?(?:a|b|i|u|h[1-6]|li|ul|ol|dl|dd|dt|p|br|div|span|ref)\b[^<>]*>")
_HEADING_START = re.compile(r"(?:= )+(?!=)")  # of WikiText-2 and WikiText-103, stripped
_LONG_DOCUMENT_LINES = 10_000  # a longer document of a text file may be a mistake
MAX_DOCUMENT_BYTES = 1 << 26  # as long as a page of Wikipedia's dumps may be
LINE_BYTES = 64  # that a line takes in memory beside its characters
_BLOCK_FIX = "Divide it with blank lines; if each line is a document, choose --documents lines."
# Chapters of wrapped books end at two or more blank lines. A shorter part is a heading. A longer
# one is divided, so that one book without chapters has the two documents that are the minimum.
_MIN_CHAPTER_CHARS, _MAX_CHAPTER_CHARS = 1_000, 16_000


class _Document:
    """Collects the lines of a document.

    Attributes:
      lines: the lines.
    """

    def __init__(self, source: str, fix: str) -> None:
        self._source, self._fix = source, fix
        self.lines: list[str] = []
        self._size = 0

    def add(self, line: str) -> None:
        """Add a line.

        Raises:
          InputError: the document is too large.
        """
        self.lines.append(line)
        self._size += len(line) + LINE_BYTES
        _check_size(self._source, "document", self._size, self._fix)

    def take(self) -> list[str]:
        """Return the lines, and start the next document."""
        lines, self.lines, self._size = self.lines, [], 0
        return lines


def _check_size(source: str, part: str, size: int, fix: str) -> None:
    """Raise InputError if a document or paragraph has more than `MAX_DOCUMENT_BYTES`."""
    if size > MAX_DOCUMENT_BYTES:
        limit = f"{MAX_DOCUMENT_BYTES >> 20} MiB"
        raise InputError(f"{source}: a {part} takes more than {limit} of memory. {fix}")


def block_documents(source: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the blocks between blank lines.

    Raises:
      InputError: a block is too large.
    """
    document = _Document(source, _BLOCK_FIX)
    for line in lines:
        if line := line.strip():
            document.add(line)
            if len(document.lines) == _LONG_DOCUMENT_LINES:
                _log.warning(
                    "%s: a document has more than %d lines. A blank line ends a document; if each "
                    "line is a document, choose --documents lines.",
                    source,
                    _LONG_DOCUMENT_LINES,
                )
        elif document.lines:
            yield document.take()
    if document.lines:
        yield document.take()


def has_separator(line: str) -> bool:
    """Return whether a mark `<|endoftext|>` in a line seems to end a document.

    It starts or ends the line, or two documents are joined by it: "One.<|endoftext|>Two." Others
    are mentions of the mark in prose.
    """
    if SEPARATOR not in line:
        return False
    text = line.replace(_START, "").strip()
    return text.startswith(SEPARATOR) or text.endswith(SEPARATOR) or bool(_JOINT.search(text))


def reject_separators(source: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text whose first lines have no mark `<|endoftext|>` between documents.

    A mark in a later line is text, with a warning if it seems to end a document.

    Raises:
      InputError: a later line is the mark, which would not end a document.
    """
    fix = f"Insert a line {SEPARATOR} at the start of the file: then they alone end documents."
    for number, line in enumerate(lines, 1):
        if SEPARATOR in line:
            text = line.replace(_START, "").strip()
            if not text.replace(SEPARATOR, "").strip():
                raise InputError(
                    f"{source}:{number}: {SEPARATOR}, which none of the first lines has. They "
                    f"determine the layout. {fix} Or remove such lines."
                )
            if has_separator(line):
                message = f"{source}: {SEPARATOR} in a line is read as text. Does it end documents?"
                warn_once((source, SEPARATOR), f"{message} {fix}")
        yield line


def line_documents(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield each line that is not blank as a document."""
    for line in lines:
        if line := line.strip():
            yield [line]


def wrapped_documents(source: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the chapters of wrapped text, a paragraph a line.

    Two or more blank lines end a chapter of at least 1,000 characters. After 16,000 characters,
    the end of a paragraph does.

    Raises:
      InputError: a paragraph is too large.
    """
    document: list[str] = []
    size = 0
    for gap, paragraph in _wrapped_paragraphs(lines, source):
        if size >= _MAX_CHAPTER_CHARS or (gap > 1 and size >= _MIN_CHAPTER_CHARS):
            yield document
            document, size = [], 0
        document.append(paragraph)
        size += len(paragraph)
    if document:
        yield document


def join_wrapped_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of wrapped text, each as a line."""
    return (paragraph for _, paragraph in _wrapped_paragraphs(lines))


def _wrapped_paragraphs(
    lines: Iterable[str], source: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and the number of blank lines before each.

    A blank line ends a paragraph, and a line that is indented more than the line before. The
    hyphen at the end of a line is kept, without a space behind it: it may be part of the word.
    Paragraphs of a `source` are limited; those of a field are in memory already.
    """
    parts: list[str] = []
    gap = blank = indent = size = 0
    for line in lines:
        stripped = line.strip()
        previous_indent, indent = indent, len(line) - len(line.lstrip())
        if parts and (not stripped or indent > previous_indent):
            yield gap, "".join(parts)
            parts, size = [], 0
        if not stripped:
            blank += 1
            continue
        if parts and not parts[-1].endswith("-"):
            parts.append(" ")
        if not parts:
            gap, blank = blank, 0
        parts.append(stripped)
        size += len(stripped) + LINE_BYTES
        if source is not None:
            _check_size(source, "paragraph", size, _BLOCK_FIX)
    if parts:
        yield gap, "".join(parts)


def separated_documents(source: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the documents between marks `<|endoftext|>`; blank lines do not end a document.

    Raises:
      InputError: a document is too large.
    """
    document = _Document(source, f"Divide it with {SEPARATOR}.")
    for line in lines:
        for number, part in enumerate(line.replace(_START, "").split(SEPARATOR)):
            if number and document.lines:
                yield document.take()
            if part := part.strip():
                document.add(part)
    if document.lines:
        yield document.take()


def wikitext_documents(source: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the articles of WikiText-2 and WikiText-103 without their headings.

    Raises:
      InputError: an article is too large.
    """
    document = _Document(source, 'Divide it with headings "= Title =".')
    for line in lines:
        line = line.strip()
        if _is_heading(line):
            if document.lines and not line.startswith("= ="):
                yield document.take()
        elif line:
            document.add(line)
    if document.lines:
        yield document.take()


def _is_heading(line: str) -> bool:
    """Return whether a line is "= Title =", "= = Section = =" and so on."""
    start = _HEADING_START.match(line)
    return start is not None and line.endswith(" =") and len(line) >= start.end() + 3


def is_wikitext(lines: Sequence[str]) -> bool:
    """Return whether the first lines, blank ones left out, are those of WikiText's articles."""
    stripped = [line.strip() for line in lines]
    is_title = _is_heading(stripped[0]) and not stripped[0].startswith("= =")
    has_section = any(line.startswith("= = ") and _is_heading(line) for line in stripped)
    return bool(is_title) and (has_section or lines[0].startswith(" = "))


def extractor_documents(
    source: str, lines: Iterable[str], add_bad: Callable[[InputError], None]
) -> Iterator[list[str]]:
    """Yield the articles in WikiExtractor's `<doc id= url= title=>` blocks.

    Titles are dropped, as by BERT's users: a title is no sentence. Entities and tags, which some
    of its versions and options leave, are resolved and removed.

    Args:
      source: the file, for errors.
      lines: its lines.
      add_bad: called with the error of a line outside of the blocks.

    Raises:
      InputError: an article is too large.
    """
    document: _Document | None = None
    title = ""
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if EXTRACTOR_START.match(line):
            if document is not None:
                yield document.take()
            document = _Document(source, "Divide it with </doc> and <doc id=...>.")
            match = _EXTRACTOR_TITLE.search(line)
            title = html.unescape(match[1] or match[2] or "") if match else ""
        elif line == "</doc>" and document is not None:
            yield document.take()
            document = None
        elif line and document is None:
            add_bad(InputError(f"{source}:{number}: text outside of <doc>. Remove it."))
        elif line:
            assert document is not None
            is_last = line.endswith("</doc>")  # without a line end before it
            text = _TAGS.sub("", html.unescape(line.removesuffix("</doc>"))).strip()
            if text and not (title and text == title and not document.lines):
                document.add(text)
            elif text:
                title = ""
            if is_last:
                yield document.take()
                document = None
    if document is not None:
        yield document.take()
