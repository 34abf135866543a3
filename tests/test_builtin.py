"""The built-in corpus: prose, always the same, read without importing modules."""

import itertools
import pathlib
import re
import sysconfig
import textwrap

import pytest

from data_pipelines.text import builtin

MODULE = '''
"""Summary of the module, which says in a few words what it does.

A :class:`~package.Name` holds ``values`` and *nothing* else; see `the manual
<https://example.com>`_ or [the guide](https://example.com/guide) for more [1]_.

Usage
-----
It is used like this::

    for x in range(10):
        print(x)

>>> this_is(code)
never

.. math:: x^2 + y^2
"""
raise SystemExit("nobody runs this")


def function(x, y):
    """Adds two numbers that the caller has chosen for a reason.

    Args:
      x: The first of the numbers that are to be added, which
        may be negative.
      y (int, optional): The second of the numbers that are to be added.

    Parameters
    ----------
    z : array_like
        The third number, which nobody has ever asked for so far.

    Returns:
      A + b = c
    """


class Class:
    """Summary of the module, which says in a few words what it does."""

    def method(self):
        "Says in one line of text what a method with one line does."
'''
EXPECTED = """\
Summary of the module, which says in a few words what it does.
A package.Name holds values and nothing else; see the manual or the guide for more.
Adds two numbers that the caller has chosen for a reason.
The first of the numbers that are to be added, which may be negative.
The second of the numbers that are to be added.
The third number, which nobody has ever asked for so far.
Says in one line of text what a method with one line does."""


@pytest.fixture
def installation(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A Python installation with two empty directories of modules."""
    roots = {"stdlib": tmp_path / "lib", "purelib": tmp_path / "site-packages"}
    for root in roots.values():
        root.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(roots[name]))
    return tmp_path


def install(path: pathlib.Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))


def test_documents_contain_prose_and_no_code(installation: pathlib.Path) -> None:
    install(installation / "lib" / "module.py", MODULE)
    assert ["\n".join(document) for document in builtin.documents()] == [EXPECTED]


def test_signature_changes_with_the_installation(installation: pathlib.Path) -> None:
    install(installation / "lib" / "module.py", MODULE)
    before = builtin.signature()
    assert builtin.signature() == before
    install(installation / "lib" / "other.py", MODULE)
    assert builtin.signature() != before


def test_documents_skip_repeated_paragraphs(installation: pathlib.Path) -> None:
    for name in ("lib/a.py", "lib/b.py", "site-packages/c.py"):
        install(installation / name, MODULE)
    assert len(list(builtin.documents())) == 1


def test_documents_skip_tests_and_vendored_packages(installation: pathlib.Path) -> None:
    for name in ("lib/test/a.py", "site-packages/p/_vendor/b.py", "lib/site-packages/c.py"):
        install(installation / name, MODULE)
    assert list(builtin.documents()) == []


@pytest.mark.parametrize(
    "source",
    ["def broken(:" + '"""' + "x" * 2000 + '"""', '"""\\ud800 """' + MODULE, "\0" + MODULE],
)
def test_documents_skip_files_that_do_not_parse(installation: pathlib.Path, source: str) -> None:
    install(installation / "lib" / "a.py", source)
    list(builtin.documents())


def test_documents_include_help_topics(installation: pathlib.Path) -> None:
    paragraph = " ".join(["It is a sentence about {0} that is long enough to count."] * 8)
    topics = {name: f"Title\n*****\n\n{paragraph.format(name)}\n" for name in ("while", "break")}
    install(installation / "lib" / "pydoc_data" / "topics.py", f"topics = {topics!r}")
    assert list(builtin.documents()) == [[paragraph.format("break")], [paragraph.format("while")]]


def check_prose(documents: list[list[str]], min_characters: int) -> None:
    lines = [line for document in documents for line in document]
    assert sum(map(len, lines)) > min_characters
    assert len(set(lines)) == len(lines)
    assert all(line == " ".join(line.split()) for line in lines)
    words = [word for line in lines for word in line.split()]
    plain = sum(1 for word in words if re.fullmatch(r"[A-Za-z'-]+[.,;:)]*", word))
    assert plain > 0.9 * len(words)


@pytest.mark.slow
def test_documents_are_prose_in_a_fixed_order() -> None:
    documents = list(itertools.islice(builtin.documents(), 100))
    assert documents == list(itertools.islice(builtin.documents(), 100))
    check_prose(documents, min_characters=300_000)


@pytest.mark.slow
def test_documents_of_this_python_are_megabytes() -> None:
    documents, remaining = [], 2_100_000  # all documents take too long
    for document in builtin.documents():
        documents.append(document)
        remaining -= sum(map(len, document))
        if remaining < 0:
            break
    check_prose(documents, min_characters=2_000_000)
