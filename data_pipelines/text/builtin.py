"""The built-in corpus: English prose that is already on any machine with Python.

It is the help topics of `pydoc` and the docstrings of the standard library and of the installed
packages, read from source files without importing them. Which text that is depends on what is
installed; for one installation it is always the same, in the same order.
"""

import ast
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
_MIN_DOCUMENT_CHARACTERS = 400  # characters of prose
_MIN_QUOTED_FRACTION = (
    0.25  # share of a file between triple quotes, below which it is not worth parsing
)
_MIN_PARAGRAPH_WORDS = 6  # of a paragraph
_MIN_PLAIN_FRACTION = 0.85  # share of a paragraph's words that are plain English words

_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_MARKUP = [  # (a sign that tells where it may be, pattern, replacement)
    (":`", re.compile(r":[a-z][a-z:+-]*:`[~!]?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # roles
    ("`", re.compile(r"`+([^`]*?)(?:\s*<[^`>]*>)?`+_{0,2}"), r"\1"),  # literals and links
    ("](", re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # Markdown links
    ("]_", re.compile(r"\s*\[\w+\]_"), ""),  # citations
    ("*", re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?![\w*])"), r"\1"),  # emphasis
]
_RULE = re.compile(r"[=~^*#\"'+-]{3,}")
# What stands before the prose of an item: a bullet, a number, "name:" or "name (type):".
_ITEM = re.compile(r"(?:[*+-]|\d+[.)]|\(\d+\)|\*{0,2}\w+(?: \([^)]*\))?:)\s+(?=\S)")
_PLAIN_WORD = re.compile(r"[(\"']?[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"']*")
_NOT_PROSE = re.compile(r">>>|^\.\. |^[.:]\w+|[{}|\\]|::=|\s=\s|==")


def documents() -> Iterator[list[str]]:
    """One document for each help topic and each module; a line is a paragraph of prose.

    A paragraph that occurs a second time, word for word, is left out.
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


def _topics() -> Iterator[list[str]]:
    path = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
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
    """Docstrings of a module, its classes and functions, in the order of the source."""
    try:
        source = path.read_bytes()
        quoted = sum(map(len, _TRIPLE_QUOTED.findall(source)))
        if quoted < max(_MIN_DOCUMENT_CHARACTERS, _MIN_QUOTED_FRACTION * len(source)):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in other people's strings
            pending: list[ast.AST] = [ast.parse(source)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # a template or a test of a parser: no module
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node, clean=False):
                yield inspect.cleandoc(docstring)
            pending += reversed(node.body)


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of English prose in a text, each as one line, markup removed."""
    for paragraph in _paragraphs(text):
        if paragraph[-1] not in ".!?:)" or _NOT_PROSE.search(paragraph):
            continue
        for sign, pattern, replacement in _MARKUP:
            if sign in paragraph:
                paragraph = pattern.sub(replacement, paragraph)
        words = paragraph.split()
        begun = not paragraph[0].islower()  # else it is the rest of something
        if begun and len(words) >= _MIN_PARAGRAPH_WORDS and paragraph.isprintable():
            plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
            if plain >= _MIN_PLAIN_FRACTION * len(words):
                yield " ".join(words)


def _paragraphs(text: str) -> Iterator[str]:
    """Runs of lines of one indentation; the lines of a list's item may hang below its first."""
    lines: list[str] = []
    indent = 0
    hangs = False  # the paragraph is the first line of an item
    for line in itertools.chain(text.expandtabs().split("\n"), [""]):
        content = line.strip()
        here = len(line) - len(line.lstrip())
        marker = _ITEM.match(content)
        if _RULE.fullmatch(content):  # what is underlined is a title
            lines = []
        elif content and lines and not marker and (here == indent or (hangs and here > indent)):
            lines.append(content)
        else:
            if lines:
                yield " ".join(lines)
            lines = [content[marker.end() :] if marker else content] if content else []
        hangs = marker is not None
        indent = here
