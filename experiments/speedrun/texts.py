"""The texts of the speedrun, from clones of the repositories that have their sources.

    python -m experiments.speedrun.texts --patched-distro DIR --litbank DIR --output DIR

Writes `wiki_en.txt` and `novels_en.txt`, one paragraph a line and a blank line between documents,
and compares their sha256 with those of the records. Every rule below, its oddities included,
decides about bytes of these two files; none is meant for other texts.
"""

import argparse
import hashlib
import html
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path

SHA256 = {
    "wiki_en.txt": "8dccfedc6eb529e735b1c511dd760a1fb3d0268dc4bf7223a57d5978f99aa42d",
    "novels_en.txt": "aa2f8ec871027a5d76355b047dd7316ffb9f8c86286e9e9c7b54f15c2a1af539",
}

_WIKI_FILES = slice(0, 800, 6)  # of data/*/wiki_*, in the order of their names
_ARTICLE = re.compile(r'<doc id="\d+" url="[^"]*" title="([^\n]*)">\n(.*?)</doc>', re.DOTALL)
_TAG = re.compile(r"<[^>]{1,80}>")
_MIN_LINE_WORDS, _MIN_ARTICLE_CHARACTERS = 5, 200

# Books of LitBank, by the number of their file names, that the text lacks.
_OMITTED_BOOKS = {77, 78, 215, 238, 271, 502, 521, 974, 1260, 3268, 5230, 12677}
_HEADING = re.compile(
    r"(?:chapter|book|part|volume|letter)\s+(?:[ivxlcdm]+|\d+|one|the last|[a-z]+th)\b.{0,70}"
    r"|(?-i:[IVXLC]+)\.?",
    re.IGNORECASE,
)
_MIN_CHAPTER_PARAGRAPHS = 3
_SENTENCE_ENDS = '.!?"\u201d\u2019'


def wikipedia_articles(extracted: str) -> Iterator[list[str]]:
    """Yield the paragraphs of each article in a file of WikiExtractor.

    Args:
      extracted: content of the file, with articles in `<doc>` blocks.
    """
    for title, body in _ARTICLE.findall(extracted):
        paragraphs = []
        for number, line in enumerate(body.split("\n")):
            text = html.unescape(_TAG.sub("", line))
            # What the extraction left of transcriptions and names in other scripts.
            text = text.replace("(; ", "(").replace("(, ", "(").replace(" ()", "")
            text = " ".join(text.split())
            is_title = number == 0 and text == html.unescape(title).strip()
            is_table = text.startswith(("!", "|"))
            if len(text.split()) >= _MIN_LINE_WORDS and not (is_title or is_table):
                paragraphs.append(text)
        if sum(map(len, paragraphs)) >= _MIN_ARTICLE_CHARACTERS:
            yield paragraphs


def novel_chapters(book: str) -> Iterator[list[str]]:
    """Yield the paragraphs of each chapter of a book.

    Args:
      book: its text with hard line breaks, and blank lines between paragraphs.
    """
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n", book):
        text = " ".join(block.split())
        if _HEADING.fullmatch(text):
            if len(paragraphs) >= _MIN_CHAPTER_PARAGRAPHS:  # else the next chapter follows them
                yield paragraphs
                paragraphs = []
        elif text and (len(text.split()) > 2 or text[-1] in _SENTENCE_ENDS):
            paragraphs.append(text.replace("_", ""))
    if len(paragraphs) >= _MIN_CHAPTER_PARAGRAPHS:
        yield paragraphs


def _write(path: pathlib.Path, documents: Iterator[list[str]]) -> None:
    """Write documents to a file.

    Raises:
      InputError: its digest is not that of the records.
    """
    text = "".join("\n".join(paragraphs) + "\n\n" for paragraphs in documents)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != SHA256[path.name]:
        raise InputError(
            f"{path}: sha256 {digest}, not that of the records. Check out the commit of README.md."
        )
    atomic_write_text(path, text)
    print(f"{path}: {len(text.encode()):,} bytes.")


def _source_files(clone: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    """Return the files of a clone, in the order of their names.

    Raises:
      InputError: there are none.
    """
    if not (files := sorted(clone.glob(pattern))):
        raise InputError(f"{clone}: no {pattern}. Clone the repository that README.md names.")
    return files


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speedrun.texts", description=(__doc__ or "").split("\n")[0]
    )
    for name in ("--patched-distro", "--litbank", "--output"):
        parser.add_argument(name, type=local_path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    extracted = _source_files(args.patched_distro, "data/*/wiki_*")[_WIKI_FILES]
    books = [
        path
        for path in _source_files(args.litbank, "original/*.txt")
        if int(path.name.partition("_")[0]) not in _OMITTED_BOOKS
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    for name, paths, documents in (
        ("wiki_en.txt", extracted, wikipedia_articles),
        ("novels_en.txt", books, novel_chapters),
    ):
        texts = (path.read_text(encoding="utf-8") for path in paths)
        _write(args.output / name, (item for text in texts for item in documents(text)))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
