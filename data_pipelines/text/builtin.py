"""The built-in corpus: English prose that comes with Python and installed packages.

It contains the help topics of `pydoc` and the docstrings of the standard library and the installed
packages. They are parsed from source files, not imported. The same installation always gives the
same text in the same order.
"""

import ast
import contextlib
import hashlib
import inspect
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = {"__pycache__", "_api", "_tf_keras", "_vendor", "site-packages", "test", "tests"}
_MIN_DOCUMENT_CHARACTERS = 400
# Fraction of a file between triple quotes. Files with less prose are not worth parsing.
_MIN_QUOTED_FRACTION = 0.25
_MIN_PARAGRAPH_WORDS = 6
_MIN_PLAIN_FRACTION = 0.85  # fraction of a paragraph's words that are plain English words

_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_MARKUP = [  # (a quick test: text that every match contains, pattern, replacement)
    (":`", re.compile(r":[a-z][a-z:+-]*:`[~!]?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # roles
    ("`", re.compile(r"`+([^`]*?)(?:\s*<[^`>]*>)?`+_{0,2}"), r"\1"),  # literals and links
    ("](", re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # Markdown links
    ("]_", re.compile(r"\s*\[\w+\]_"), ""),  # citations
    ("*", re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?![\w*])"), r"\1"),  # emphasis
]
_RULE = re.compile(r"[=~^*#\"'+-]{3,}")
# The marker of a list item: a bullet, a number, "name:" or "name (type):".
_ITEM = re.compile(r"(?:[*+-]|\d+[.)]|\(\d+\)|\*{0,2}\w+(?: \([^)]*\))?:)\s+(?=\S)")
_PLAIN_WORD = re.compile(r"[(\"']?[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*")
_NOT_PROSE = re.compile(r">>>|^\.\. |^[.:]\w+|[{}|\\]|::=|\s=\s|==")


def documents() -> Iterator[list[str]]:
    """Yield a document for each help topic and each module; a line is a paragraph of prose.

    Repeated paragraphs are skipped.
    """
    seen: set[bytes] = set()
    for texts in itertools.chain(_topics(), map(_docstrings, _modules())):
        document = []
        for paragraph in itertools.chain.from_iterable(map(_prose, texts)):
            digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
            if digest not in seen:
                seen.add(digest)
                document.append(paragraph)
        if sum(map(len, document)) >= _MIN_DOCUMENT_CHARACTERS:
            yield document


def signature() -> str:
    """Return a hex digest of names, sizes and times of the files that the corpus is made of."""
    digest = hashlib.blake2b(digest_size=8)
    for path in (_topics_path(), *_modules()):
        with contextlib.suppress(OSError):  # as `documents` skips it
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _topics_path() -> Path:
    return Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")


def _topics() -> Iterator[list[str]]:
    path = _topics_path()
    if not path.exists():
        return
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics = ast.literal_eval(statement.value)
            yield from ([topics[name]] for name in sorted(topics))


def _modules() -> Iterator[Path]:
    for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib")):
        for directory, subdirectories, files in os.walk(root):
            subdirectories[:] = sorted(set(subdirectories) - _SKIPPED)
            yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions in source order."""
    try:
        source = path.read_bytes()
        quoted = sum(map(len, _TRIPLE_QUOTED.findall(source)))
        if quoted < max(_MIN_DOCUMENT_CHARACTERS, _MIN_QUOTED_FRACTION * len(source)):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings of these packages
            pending: list[ast.AST] = [ast.parse(source)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # not a module: a template or a test of a parser
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node, clean=False):
                yield inspect.cleandoc(docstring)
            pending += reversed(node.body)


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of English prose in a text as lines without markup."""
    for paragraph in _paragraphs(text):
        if paragraph[-1] not in ".!?:)" or _NOT_PROSE.search(paragraph):
            continue
        for part, pattern, replacement in _MARKUP:
            if part in paragraph:
                paragraph = pattern.sub(replacement, paragraph)
        words = paragraph.split()
        is_start = not paragraph[0].islower()  # not the continuation of a sentence
        if is_start and len(words) >= _MIN_PARAGRAPH_WORDS and paragraph.isprintable():
            plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
            if plain >= _MIN_PLAIN_FRACTION * len(words):
                yield " ".join(words)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield runs of lines of the same indentation; lines of a list item may be indented more."""
    lines: list[str] = []
    indent = 0
    is_item = False  # whether the paragraph is the first line of a list item
    for line in itertools.chain(text.expandtabs().split("\n"), [""]):
        content = line.strip()
        line_indent = len(line) - len(line.lstrip())
        marker = _ITEM.match(content)
        if _RULE.fullmatch(content):  # the line above is a title
            lines = []
        elif (
            content
            and lines
            and not marker
            and (line_indent == indent or (is_item and line_indent > indent))
        ):
            lines.append(content)
        else:
            if lines:
                yield " ".join(lines)
            lines = [content[marker.end() :] if marker else content] if content else []
        is_item = marker is not None
        indent = line_indent
