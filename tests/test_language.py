"""Docstrings open in Google style; retired terms stay rare."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = [
    path
    for folder in ("bertjax", "data_pipelines", "experiments", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "bertjax/html/templates").iterdir()),
]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
OPENERS = re.compile(r"(What|Whether|How|Of|Where|Which|Those|As|Why|So|That|To)\b")
# Former terms of this project for which the field has other words.
RETIRED = re.compile(
    r"\bpieces?\b|pack_ids|\bheld[- ]?out\b|\btagger\b|\bgo(es)? on\b|\bmend(s|ed)?\b"
    r"|neighbours|optimis|tokenis|initialis",
    re.IGNORECASE,
)
MAX_RETIRED_LINES = 20  # SentencePiece's API, names of published data, ordinary prose


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    docstrings = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, DOCUMENTED):
                docstring = ast.get_docstring(node) or ""
                if OPENERS.match(docstring):
                    docstrings.append(f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}")
    assert not docstrings, "\n".join(docstrings)


def test_retired_terms_are_rare() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*SOURCES, *DOCUMENTS]
        if path != pathlib.Path(__file__)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if RETIRED.search(line)
    ]
    assert len(lines) <= MAX_RETIRED_LINES, "\n".join(lines)
