"""Documents of plain text with marks between them, and of wrapped text."""

import pathlib
import re

import pytest
from document_files import every_compression, read, save, text_of

from data_pipelines.errors import InputError
from data_pipelines.text import plain_text

EXTRACTED = """\
<doc id="12" url="https://example.org/wiki?curid=12" title="Tea &amp; &quot;bread&quot;">
Tea &amp; "bread"

Tea is a &lt;a href="drink"&gt;drink&lt;/a&gt; of leaves.
It is old.

</doc>
<doc id="13" revid="1" url="https://example.org/wiki?curid=13" title="Oslo">
Oslo

</doc>

<doc id="14" url="x" title="Rain">
Rain is water. It falls.

Rain
</doc>
"""
ARTICLES = [["Tea is a drink of leaves.", "It is old."], [], ["Rain is water. It falls.", "Rain"]]


@every_compression
@pytest.mark.parametrize("documents", ["blocks", "lines", "wrapped"])
def test_blocks_of_wikiextractor_are_documents(tmp_path, suffix, documents, caplog) -> None:
    caplog.set_level("INFO")
    (tmp_path / "AA").mkdir()
    for name in (f"wiki_00{suffix}", f"wiki_01{suffix}"):
        save(tmp_path / "AA" / name, EXTRACTED)
    assert read(str(tmp_path), documents=documents) == ARTICLES * 2
    (message,) = caplog.messages
    assert message.endswith("<doc> blocks, without titles, such as 'Tea is a drink of leaves.'.")


def test_text_outside_of_wikiextractors_blocks_is_rejected(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "wiki_00", f"{EXTRACTED}\nOther text.\n")
    with pytest.raises(InputError, match=r"wiki_00:19: text outside of <doc>\. Remove it"):
        read(path)
    cut = EXTRACTED.replace("</doc>\n", "")  # the next block ends one that is not closed
    assert read(save(tmp_path / "cut", cut)) == ARTICLES


def good_lines(layout: str) -> str:
    """Return 1,000 lines of text, and others, in a layout."""
    text = [f"Sentence number {i}." for i in range(1000)]
    if layout == "extractor":
        return "".join(f'<doc id="{i}" title="T">\nT\n\n{t}\n</doc>\n' for i, t in enumerate(text))
    start = {"wikitext": " = Title = \n\n = = Section = = \n", "separated": "<|endoftext|>\n"}
    return start.get(layout, "") + "".join(f"{line}\n\n" for line in text)


@pytest.mark.parametrize("layout", ["extractor", "wikitext", "separated", "plain"])
def test_bad_lines_are_a_fraction_of_all_lines(tmp_path: pathlib.Path, layout: str, caplog) -> None:
    """A line that is not UTF-8, and one outside of the blocks of WikiExtractor."""
    bad = b"caf\xe9\n" + b"Other text.\n" * (layout == "extractor")
    path = save(tmp_path / "a.txt", good_lines(layout).encode() + bad)
    assert sum(map(len, read(path, max_bad_fraction=0.01))) == 1000
    assert re.search(rf"{bad.count(10)} of [1-9],\d\d\d records are bad and skipped", caplog.text)
    with pytest.raises(InputError, match=r"records are bad, more than"):
        read(path, max_bad_fraction=0.0001)


def test_separators_end_documents(tmp_path: pathlib.Path) -> None:
    text = "One.\n\nTwo.\n<|endoftext|>\n\nThree.<|endoftext|>Four.\n<|endoftext|>"
    for documents in ("blocks", "lines"):
        path = save(tmp_path / "a.txt", text)
        assert read(path, documents=documents) == [["One.", "Two."], ["Three."], ["Four."]]


@pytest.mark.parametrize("mark", ["<|endoftext|>", "<|endoftext|><|startoftext|>"])
@pytest.mark.parametrize("ends", [("One.", "Two."), ("One", "“Two.”"), ('"One."', "Two")])
def test_separators_between_texts_end_documents(tmp_path: pathlib.Path, mark: str, ends) -> None:
    end, start = ends
    path = save(tmp_path / "a.txt", f"A line.\n\n{end}{mark}{start}\nA line.\n")
    assert read(path) == [["A line.", end], [start, "A line."]]


@pytest.mark.parametrize(
    "line",
    [
        "GPT writes <|endoftext|> between documents.",
        "It is `<|endoftext|>` in GPT-2, or (<|endoftext|>).",
        'The mark "<|endoftext|>", an id, and <|endoftext|>.',
        "eos_token=<|endoftext|>, pad_token:<|endoftext|>.",
    ],
)
def test_a_mention_of_the_separator_ends_no_document(tmp_path: pathlib.Path, line: str) -> None:
    documents = [[f"Document {i}.", "Its end."] for i in range(100)]
    documents[3].append(line)
    assert read(save(tmp_path / "a.txt", text_of(documents))) == documents


@pytest.mark.parametrize("documents", ["blocks", "lines", "wrapped"])
@pytest.mark.parametrize("mark", ["<|endoftext|>", " <|endoftext|><|endoftext|>"])
def test_separators_after_the_first_lines_are_rejected(tmp_path, documents: str, mark: str) -> None:
    book = "A sentence of a long book.\n" * 600
    text = f"{book}{mark}\n{book}"
    path = save(tmp_path / "a.txt", text)
    with pytest.raises(InputError, match=r"a\.txt:601: <\|endoftext\|>, which none of") as caught:
        read(path, documents=documents)
    assert "Insert a line <|endoftext|> at the start of the file" in str(caught.value)
    path = save(tmp_path / "a.txt", f"<|endoftext|>\n{text}")
    assert len(read(path, documents=documents)) == 2


@pytest.mark.parametrize(
    ("line", "warns"),
    [
        ("GPT writes <|endoftext|> between documents.", False),
        ("GPT ends documents with <|endoftext|>", True),
        ("<|endoftext|>Two.", True),
        ("One.<|endoftext|>Two.", True),
    ],
)
def test_separators_within_later_lines_are_text(tmp_path, caplog, line: str, warns: bool) -> None:
    text = "A line.\n\n" * 600 + f"{line}\n" * 2
    assert len(read(save(tmp_path / "a.txt", text))) == 601
    assert caplog.text.count("in a line is read as text. Does it end documents?") == warns


@pytest.mark.parametrize(
    ("documents", "start", "message"),
    [
        ("blocks", "", "a document takes more than 1 MiB .* choose --documents lines"),
        ("wrapped", "", "a paragraph takes more than 1 MiB .* choose --documents lines"),
        ("blocks", "<|endoftext|>\n", r"a document takes .*\. Divide it with <\|endoftext\|>\."),
        ("blocks", " = Title = \n", "a document takes .* with headings"),
        ("blocks", "<doc id=1>\n", "a document takes .* with </doc>"),
    ],
)
def test_too_large_documents_are_rejected(
    tmp_path, monkeypatch, documents: str, start: str, message: str
) -> None:
    monkeypatch.setattr(plain_text, "MAX_DOCUMENT_BYTES", 1 << 20)
    line = "A line of text.\n"
    count = (1 << 20) // (len(line) - 1 + 64)
    path = save(tmp_path / "a.txt", start + line * (count + 100))
    with pytest.raises(InputError, match=rf"a\.txt: {message}"):
        read(path, documents=documents)
    if not start:
        assert len(read(path, documents="lines")) == count + 100
    half, end = line * (count // 2), start or "\n"
    assert read(save(tmp_path / "b.txt", (start + half + end) * 3), documents=documents)


def test_articles_of_wikitext_103_are_documents(tmp_path: pathlib.Path) -> None:
    text = (
        " \n = Tea = \n \n Tea is old . \n It is hot . \n \n = = Uses = = \n \n It is drunk . \n \n"
        " = Rain = \n \n Rain falls . \n"
    )
    expected = [["Tea is old .", "It is hot .", "It is drunk ."], ["Rain falls ."]]
    assert read(save(tmp_path / "wiki.train.tokens", text)) == expected


# Wrapped text


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("One two\nthree.\n\nFour\nfive.\n", ["One two three.", "Four five."]),
        ("   One two\nthree.\n   Four\nfive.", ["One two three.", "Four five."]),  # indented
        ("A well-\nknown thing--\nit was.", ["A well-known thing--it was."]),
        ("One\n\n    verse one\n    verse two\n\nTwo", ["One", "verse one verse two", "Two"]),
        ("\n\n\n", []),
    ],
)
def test_wrapped_lines_are_joined(tmp_path: pathlib.Path, text: str, paragraphs) -> None:
    documents = [paragraphs] if paragraphs else []
    assert read(save(tmp_path / "a.txt", text), documents="wrapped") == documents
    record = text.replace("\n", "\\r\\n")
    path = save(tmp_path / "a.jsonl", f'{{"text": "{record}"}}')
    assert read(path, documents="wrapped") == [paragraphs]


def test_chapters_of_wrapped_text_are_documents(tmp_path: pathlib.Path) -> None:
    paragraph = "A line of a book\nand another one.\n\n" * 20
    joined = ["A line of a book and another one."] * 20
    text = f"TITLE\n\n\nPART I\n\n\n{paragraph * 2}\n\nPART II\n\n\n{paragraph * 2}"
    expected = [["TITLE", "PART I", *joined * 2], ["PART II", *joined * 2]]
    assert read(save(tmp_path / "a.txt", text), documents="wrapped") == expected
    documents = read(save(tmp_path / "a.txt", paragraph * 200), documents="wrapped")
    assert [line for document in documents for line in document] == joined * 200
    assert {sum(map(len, document)) // 1000 for document in documents[:-1]} == {16}
