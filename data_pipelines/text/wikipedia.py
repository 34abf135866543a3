"""Articles of Wikipedia's dumps, `enwiki-*-pages-articles.xml.bz2`.

    python -m data_pipelines.text.wikipedia DUMP --output articles.jsonl

writes the articles as JSON lines with "id", "title" and "text", for use elsewhere.

An article is a page of namespace 0 that is neither a redirect nor a disambiguation page. Each
article is a document, which is empty if it has no passages. Articles are chosen by their XML, and
only then parsed in worker processes, so that skipping documents costs no parsing.
"""

# ruff: noqa: RUF001 (names of templates in many languages)

import argparse
import functools
import html
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed
from data_pipelines.parallel import group_by_size, ordered_map, usable_cores
from data_pipelines.paths import atomic_write, is_remote
from data_pipelines.text.bz2_streams import read_bz2_streams
from data_pipelines.text.lines import read_blocks
from data_pipelines.text.wikitext import CONTENTS, make_extractor

_log = logging.getLogger(__name__)

_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<mediawiki\b", re.DOTALL
)
_PAGE_END = b"</page>"
_GROUP_CHARS = 1 << 18  # of wikitext, parsed at a time by a worker
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>]*>([^<]*)<')
_TITLE = re.compile(r"<title>([^<]*)</title>")
_MODEL = re.compile(r"<model>([^<]*)</model>")
_ID = re.compile(r"<id>(\d+)</id>")
_REDIRECT = re.compile(r"\s*#\s*\w+\s*:?\s*\[\[")
_DISAMBIGUATION = re.compile(
    # en, de, fr, es, it, nl, pl, pt, ru, ja, zh, cs, sv, tr, vi, ar, fa, ko, he
    r"__DISAMBIG__|\{\{\s*(?:(?:[^{}|\n]+[ _])?disambiguation(?:[ _]cleanup)?|disambig|dab|hndis"
    r"|geodis|begriffsklärung|homonymie"
    r"|desambig(?:uación|uação)?|disambigua|doorverwijspagina|dp|ujednoznacznienie|неоднозначность"
    r"|aimai|曖昧さ回避|消歧[义義]|rozcestník|förgrening|gren|anlam ayrımı|trang định hướng|توضيح"
    r"|ابهام[ _‌]?زدایی|동음이의|פירושונים)\s*[|}\n]",
    re.IGNORECASE,
)


class Article(NamedTuple):
    """An article.

    Attributes:
      id: number of the page.
      title: title of the page.
      text: its wikitext, in XML's escapes.
    """

    id: str
    title: str
    text: str


def is_dump(start: bytes) -> bool:
    """Return whether a file that starts with these bytes is a dump of MediaWiki."""
    return _START.match(start) is not None


def read_dump(
    path: epath.Path, blocks: Iterable[bytes], content: str, skip: int, workers: int | None
) -> Iterator[tuple[Article, list[str]]]:
    """Yield the articles of a dump with their lines of text.

    Memory holds a few groups of 256 thousand characters for each worker, and a page.

    Args:
      path: the dump, plain or compressed.
      blocks: its decompressed content. A local .bz2 file is opened again, for parallel reading.
      content: one of `wikitext.CONTENTS`.
      skip: number of articles to leave out at the start.
      workers: processes that parse wikitext; see `ordered_map`.

    Raises:
      InputError: the dump is incomplete, or mwparserfromhell is not installed.
    """
    if content != "markup":
        check_installed(str(path), "mwparserfromhell", install="'bertjax[wikipedia]'")
    if path.suffix == ".bz2" and workers not in (0, 1) and not is_remote(path):
        blocks = read_bz2_streams(path, workers or usable_cores())
    pages = _pages(path, blocks)
    header = next(pages)
    names = {int(key): name for key, name in _NAMESPACE.findall(header)}
    counts: Counter[str] = Counter()
    articles = itertools.islice(_articles(pages, names, counts), skip, None)
    groups, sent = itertools.tee(group_by_size(articles, lambda a: len(a.text), _GROUP_CHARS))
    namespaces = [names[key] for key in (6, 14) if key in names]
    make_parser = functools.partial(_make_parser, content, namespaces)
    unparsed: list[str] = []
    for group, texts in zip(sent, ordered_map(make_parser, groups, workers), strict=True):
        for article, lines in zip(group, texts, strict=True):
            if lines is None:
                unparsed.append(article.title)
            yield article, lines or []
    _log.info(
        "%s: %s articles; left out: %s redirects, %s disambiguation pages, %s other pages.",
        path,
        *(f"{counts[kind]:,}" for kind in ("article", "redirect", "disambiguation", "other")),
    )
    if unparsed:
        _log.warning(
            "%s: %d articles cannot be parsed and are empty. The first: %s.",
            path,
            len(unparsed),
            unparsed[0],
        )


_MAX_PAGE_BYTES = 1 << 26


def _pages(path: epath.Path, blocks: Iterable[bytes]) -> Iterator[str]:
    """Yield the XML before the first page, and the XML of each page without its end tag.

    XML escapes `<` in text, so tags are found without parsing.

    Raises:
      InputError: the end is missing.
    """
    buffer, at, is_first = bytearray(), 0, True
    for block in blocks:
        buffer += block
        begin = 0
        while (end := buffer.find(_PAGE_END, max(at, begin))) >= 0:
            page = buffer[begin:end].decode("utf-8", "replace")
            if is_first:
                header, _, page = page.partition("<page>")
                yield header
                is_first = False
            yield page
            begin = at = end + len(_PAGE_END)
        del buffer[:begin]
        if len(buffer) > _MAX_PAGE_BYTES:
            raise InputError(f"{path}: a page has more than 64 MiB. Download it again.")
        at = max(0, len(buffer) - len(_PAGE_END))
    if b"</mediawiki>" not in buffer:
        raise InputError(
            f"{path}: incomplete. Download it again, or append </mediawiki> to a part of one."
        )
    if is_first:
        yield buffer.decode("utf-8", "replace")


def _articles(
    pages: Iterable[str], names: dict[int, str], counts: Counter[str]
) -> Iterator[Article]:
    """Yield the articles among pages, and count all pages by kind."""
    others = {name for key, name in names.items() if key}
    for page in pages:
        head = page[: page.find("<revision>")]
        match = _TITLE.search(head)
        title = html.unescape(match[1]) if match else ""
        revision = page.rfind("<revision>")  # the last: a dump of histories has all of them
        begin = page.find("<text", revision)
        content = page.find(">", begin)
        end = page.find("</text>", content)
        text = page[content + 1 : end] if begin >= 0 and end >= 0 else ""
        model = _MODEL.search(page, revision, begin if begin >= 0 else len(page))
        has_namespace = "<ns>0</ns>" not in head and (
            "<ns>" in head or title.partition(":")[0] in others
        )
        if has_namespace or (model and model[1] != "wikitext"):  # such as an item of Wikidata
            kind = "other"
        elif "<redirect" in head or _REDIRECT.match(text):
            kind = "redirect"
        elif _DISAMBIGUATION.search(text) or title.endswith(" (disambiguation)"):
            kind = "disambiguation"
        else:
            kind = "article"
            number = _ID.search(head)
            yield Article(number[1] if number else "", title, text)
        counts[kind] += 1


def _make_parser(
    content: str, namespaces: Iterable[str]
) -> Callable[[list[Article]], list[list[str] | None]]:
    extract = make_extractor(content, namespaces)

    def parse(article: Article) -> list[str] | None:
        try:
            return extract(html.unescape(article.text))
        except Exception:  # one page of millions must not end a preparation; it is reported
            return None

    return lambda articles: [parse(article) for article in articles]


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write the articles of a dump as JSON lines.")
    parser.add_argument("dump", type=epath.Path)
    parser.add_argument("--output", type=epath.Path, required=True)
    parser.add_argument("--wikitext", choices=CONTENTS, default="passages")
    args = parser.parse_args()
    articles = read_dump(args.dump, read_blocks(args.dump), args.wikitext, 0, None)
    with atomic_write(args.output) as partial, partial.open("w") as file:
        for article, lines in articles:
            record = {"id": article.id, "title": article.title, "text": "\n".join(lines)}
            file.write(f"{json.dumps(record, ensure_ascii=False)}\n")


if __name__ == "__main__":
    _main()
