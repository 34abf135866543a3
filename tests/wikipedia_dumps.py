"""Dumps of a Wikipedia of our own: articles with every kind of markup, and what is left of them."""

import bz2
import random
from typing import NamedTuple
from xml.sax.saxutils import escape

from conftest import sample_text

NAMESPACES = {-1: "Special", 0: "", 1: "Talk", 6: "Datei", 10: "Template", 14: "Kategorie"}


class Page(NamedTuple):
    """A page and the passages of its article; None for a page that is no article."""

    id: int
    title: str
    namespace: int
    text: str
    passages: list[str] | None
    redirect: bool = False


def make_pages(seed: int, articles: int) -> list[Page]:
    """Return articles and, between them, redirects, talk pages and disambiguation pages."""
    rng = random.Random(seed)
    sentences = sample_text(seed=seed, documents=60).split()
    words = sorted({word.strip(".!?,").lower() for word in sentences} - {""})

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(6, 20))).capitalize() + "."

    pages: list[Page] = []
    for number in range(articles):
        title = f"{rng.choice(words).title()} {number}"
        passages, parts = [], [_infobox(sentence, rng)]
        for section in range(rng.randint(2, 5)):
            if section:
                parts.append(f"{'=' * 2} {rng.choice(words)} {'=' * 2}<!-- a heading -->")
            for _ in range(rng.randint(1, 4)):
                text = " ".join(sentence() for _ in range(rng.randint(2, 5)))
                passages.append(text)
                parts.append(_marked(text, sentence, rng))
            parts += rng.sample(_blocks(sentence, rng), 2)
        parts.append(
            "{{reflist|refs=<ref name=z>{{cite book|title=A}}</ref>}}\n{{DEFAULTSORT:X}}\n"
            "[[Kategorie:Things]] [[Category:Others|x]]\n[[de:Ding]]\n[[zh-min-nan:Ding]]"
        )
        pages.append(Page(3 * number + 5, title, 0, "\n\n".join(parts), passages))
        if number % 3 == 0:
            redirect = f"#REDIRECT [[{title}]]\n\n{{{{R from move}}}}"
            pages.append(Page(3 * number + 6, f"{title} moved", 0, redirect, None, number % 2 == 0))
        if number % 4 == 0:
            pages.append(Page(3 * number + 7, f"Talk:{title}", 1, sentence(), None))
        if number % 5 == 0:
            text = f"'''{title}''' may be:\n* [[{title}]]\n\n{{{{disambiguation|geo}}}}"
            pages.append(Page(3 * number + 8, f"{title} (x)", 0, text, None))
    return pages


def _infobox(sentence, rng) -> str:
    rows = "\n".join(f"| key{i} = {{{{nowrap|{sentence()}}}}}" for i in range(rng.randint(3, 12)))
    return f"{{{{short description|{sentence()}}}}}\n{{{{Infobox thing\n{rows}\n}}}}"


def _marked(text: str, sentence, rng) -> str:
    """Add markup to a passage that leaves its text as it is."""
    words = text.split(" ")
    for at in rng.sample(range(len(words)), 3):
        word = words[at]
        words[at] = rng.choice(
            [
                *(f"[[{word}]]", f"[[Some place#Part|{word}]]", f"[[:Category:Things|{word}]]"),
                *(f"''{word}''", f"'''''{word}'''''", f"<span class=x>{word}</span>"),
                *(
                    f"[http://example.org/?a=1&b=2 {word}]",
                    f"{{{{efn|{{{{x|{sentence()}}}}}}}}}{word}",
                ),
            ]
        )
    cite = f"{{{{cite web|url=http://example.org|title={sentence()}|date={{{{date|2020}}}}}}}}"
    refs = [f"<ref>{cite}</ref>", f'<ref name="a/b">{cite}</ref>', '<ref name="c" />', ""]
    ends = [f"{word}{rng.choice(refs)}" if word.endswith(".") else word for word in words]
    hidden = ["", "<!-- not {{seen}} -->", "<math>x_{1} < \\{y\\}</math>"]
    return " ".join(ends) + rng.choice(hidden)


def _blocks(sentence, rng) -> list[str]:
    """Return blocks that are no passages."""
    row = f"|-\n| {sentence()} || [[a|b]]\n| style=x | {{{{nowrap|c}}}}\n"
    return [
        f'{{| class="wikitable"\n|+ {sentence()}\n! a !! b\n{row * rng.randint(1, 9)}|}}',
        f"{{|\n{row}| \n{{|\n| nested {sentence()}\n|}}\n|}}",
        f"* [[{sentence()}]]\n** {sentence()}\n# {sentence()}\n; term : {sentence()}",
        f"[[File:A b.jpg|thumb|left|{sentence()} [[inner|link]] <ref>x</ref>]]",
        f"[[Datei:C.png|mini|{sentence()}]]",
        f"<gallery mode=packed>\nA.jpg|{sentence()}\n</gallery>",
        f":<math display=block>\\frac{{{{a}}}}{{{{b}}}}</math>\n:{sentence()}",
        f"{{{{quote|{{{{nested|{sentence()}}}}}|by=[[x]]}}}}",
        f"<div class=x>\n{{{{main|{sentence()}}}}}\n</div>",
    ]


def to_xml(pages: list[Page]) -> tuple[str, list[str], str]:
    """Return the start of the XML, that of each page, and its end, as MediaWiki writes them."""
    names = "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n'
        for key, name in NAMESPACES.items()
    )
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">\n'
        f"  <siteinfo>\n    <namespaces>\n{names}    </namespaces>\n  </siteinfo>\n"
    )
    return head, list(map(_page_xml, pages)), "</mediawiki>\n"


def _page_xml(page: Page) -> str:
    redirect = '    <redirect title="X" />\n' if page.redirect else ""
    text = escape(page.text, {'"': "&quot;"})
    return (
        f"  <page>\n    <title>{escape(page.title)}</title>\n    <ns>{page.namespace}</ns>\n"
        f"    <id>{page.id}</id>\n{redirect}    <revision>\n      <id>9{page.id}</id>\n"
        "      <contributor>\n        <username>A &lt;b&gt;</username>\n      </contributor>\n"
        "      <model>wikitext</model>\n"
        f'      <text bytes="{len(text)}" xml:space="preserve">{text}</text>\n'
        "      <sha1>x</sha1>\n    </revision>\n  </page>\n"
    )


def to_bytes(pages: list[Page]) -> bytes:
    """Return a dump as XML."""
    head, middle, end = to_xml(pages)
    return "".join([head, *middle, end]).encode()


def to_multistream(pages: list[Page], pages_per_stream: int = 10) -> bytes:
    """Return a dump as bzip2 streams of some pages each."""
    head, middle, end = to_xml(pages)
    groups = [
        "".join(middle[i : i + pages_per_stream]) for i in range(0, len(middle), pages_per_stream)
    ]
    return b"".join(bz2.compress(part.encode()) for part in [head, *groups, end])
