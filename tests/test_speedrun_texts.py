"""The texts of the speedrun: rules for articles and chapters, and digests that they must have."""

import hashlib
import pathlib

import pytest

from data_pipelines.errors import InputError
from experiments.speedrun import texts

LONG = "The river rises in the hills north of the town and flows through three lakes. " * 3


def articles(*lines: str, title: str = "River") -> list[list[str]]:
    """Return the articles of a file that has one with these lines."""
    body = "\n".join((title, "", *lines))
    extracted = f'<doc id="1" url="http://x/?curid=1" title="{title}">\n{body}\n</doc>\n'
    return list(texts.wikipedia_articles(extracted))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "It lies on the Oder (; , also Odra) in Poland.",
            "It lies on the Oder (also Odra) in Poland.",
        ),
        ("Its mouth () is near the town.", "Its mouth is near the town."),
        ("Fish &amp; birds<br> live in the river.", "Fish & birds live in the river."),
        ("Its  length\u00a0is some 40 km.", "Its length is some 40 km."),
    ],
)
def test_a_line_of_an_article_is_a_paragraph(line: str, expected: str) -> None:
    assert articles(LONG, line) == [[LONG.strip(), expected]]


@pytest.mark.parametrize(
    "line", ["River", "See also the lakes.", "! Lake || Area || Depth || Fish"]
)
def test_an_article_lacks_titles_headings_and_tables(line: str) -> None:
    assert articles(LONG, line) == [[LONG.strip()]]


def test_an_article_has_200_characters() -> None:
    line = "a b c d " + "e" * 191
    assert articles(line) == []
    assert articles(line + "e") == [[line + "e"]]


def chapters(*paragraphs: str) -> list[list[str]]:
    """Return the chapters of a book."""
    return list(texts.novel_chapters("\n\n".join(paragraphs)))


def test_a_paragraph_of_a_novel_is_one_line_without_emphasis() -> None:
    three = ["It was\nlate, _very_ late.", "She left.", "“Yes.”"]
    assert chapters(*three) == [["It was late, very late.", "She left.", "“Yes.”"]]


@pytest.mark.parametrize(
    "heading",
    ["CHAPTER I", "Chapter 2. The Town", "Book Eleventh", "XIV", "LETTER V.", "Chapter the last."],
)
def test_headings_separate_chapters(heading: str) -> None:
    three = ["It was late.", "She left.", "He slept."]
    assert chapters(heading, *three, heading, *three) == [three, three]


def test_a_chapter_of_two_paragraphs_joins_the_next() -> None:
    two = ["It was late.", "She left."]
    assert chapters("I", *two, "II", *two, "III", *two) == [two * 2]


@pytest.mark.parametrize("line", ["In Chancery", "Madam,", "THE END", "CHAPTER TWO"])
def test_one_or_two_words_are_no_paragraph_without_the_end_of_a_sentence(line: str) -> None:
    three = ["It was late.", "She left.", "He slept."]
    assert chapters(*three, line, "Then came the morning") == [[*three, "Then came the morning"]]


@pytest.fixture
def clones(tmp_path) -> dict[str, pathlib.Path]:
    """Return clones with an article and a chapter in the first files, as they are named there."""
    wiki, novels = tmp_path / "PatchedDistro", tmp_path / "litbank"
    for directory in (wiki / "data" / "AA", novels / "original"):
        directory.mkdir(parents=True)
    article = f'<doc id="1" url="http://x" title="River">\nRiver\n\n{LONG}\n</doc>\n'
    (wiki / "data" / "AA" / "wiki_01").write_text(article)
    (novels / "original" / "11_a_book.txt").write_text("I\n\nIt was.\n\nShe left.\n\nHe slept.\n")
    (novels / "original" / "78_omitted.txt").write_text("I\n\nA.\n\nB.\n\nC.\n")
    return {"--patched-distro": wiki, "--litbank": novels, "--output": tmp_path / "texts"}


def arguments(clones: dict[str, pathlib.Path]) -> list[str]:
    return [text for name, path in clones.items() for text in (name, str(path))]


def test_documents_are_separated_by_blank_lines(clones, monkeypatch) -> None:
    expected = {
        "wiki_en.txt": f"{LONG.strip()}\n\n",
        "novels_en.txt": "It was.\nShe left.\nHe slept.\n\n",
    }
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in expected.items()}
    monkeypatch.setattr(texts, "SHA256", digests)
    texts.main(arguments(clones))
    written = {path.name: path.read_text() for path in clones["--output"].iterdir()}
    assert written == expected


def test_other_bytes_than_those_of_the_records_are_rejected(clones) -> None:
    with pytest.raises(InputError, match=r"wiki_en\.txt: sha256 \w{64}, not that of the records"):
        texts.main(arguments(clones))
    assert not list(clones["--output"].iterdir())


def test_a_directory_that_is_no_clone_is_rejected(clones, tmp_path) -> None:
    clones["--litbank"] = tmp_path
    with pytest.raises(InputError, match=r"no original/\*\.txt\. Clone the repository"):
        texts.main(arguments(clones))
