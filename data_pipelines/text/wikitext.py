"""Text of articles in wikitext.

Passages are the paragraphs of an article, each a line, as BERT was trained on them. Lists, tables,
headings, references, templates, galleries, formulas, images, categories and language links are
left out; links keep their text. Needs mwparserfromhell.
"""

import html
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

CONTENTS = ("passages", "lists", "markup")

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# These are removed, and templates and tables without others in them, before the text is parsed:
# mwparserfromhell would build objects for all of it. That is 2.5 times as fast. What is unbalanced
# is left to the parser.
_REMOVED_TAGS = (
    "ref|references|gallery|math|chem|ce|timeline|score|hiero|syntaxhighlight|source|imagemap|graph"
    "|mapframe|maplink|templatestyles|templatedata|indicator|inputbox|includeonly|section"
)
_OPENING = re.compile(rf"<({_REMOVED_TAGS})\b(?:[^<>/]|/(?!>))*(/?)>", re.IGNORECASE)
_MAX_NESTING = 50  # of templates and tables; time grows with it
_MAX_UNBALANCED = 100  # for which mwparserfromhell takes little of its quadratic time
_NO_HEADING = re.compile(rf"^=+(?=(?:[^=\n]+=+){{{_MAX_UNBALANCED}}})", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{\{[^{}]*\}\}\}|\{\{[^{}]*\}\}")
_TABLE = re.compile(
    r"^[ \t:]*\{\|(?:(?!^[ \t:]*\{\|).)*?^[ \t]*\|\}(?!\})", re.DOTALL | re.MULTILINE
)
_VARIANT = re.compile(r"-\{(?:[A-Za-z-]+\|)?(?:[a-z-]+:)?([^{};]*)(?:;[^{}]*)?\}-")  # of Chinese
_QUOTES = re.compile(r"'{2,5}")  # italic and bold
_SWITCH = re.compile(r"__[^\W\d_]+__")  # __NOTOC__
_LEFTOVER_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*|simple")
_MEDIA = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gv]|webm|mp3|pdf)$", re.IGNORECASE)
_GAP = re.compile(
    r"(?<!\s)\s*\(\W{,200}\)|(?<=\()[\s,;:]+|(?<=\S)\s+(?=[,.;:!?)](?:\s|$))|(?<=\s)\s+"
)
_NAMESPACES = ("file", "image", "media", "category")
_BLOCKS = {"blockquote", "center", "div", "p", "poem", "h1", "h2", "h3", "h4", "h5", "h6", "ul"}
_BLOCKS |= {"ol", "dl"}
_ITEMS = {"li", "dt", "dd"}
_LEFT_OUT = {"table", "tr", "td", "th", "caption", "pre", "code", "hr", *_REMOVED_TAGS.split("|")}
_MARK = "\0"  # before a heading or list item


def make_extractor(content: str, namespaces: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function of an article's wikitext that returns its lines.

    Args:
      content: one of `CONTENTS`: passages alone, also headings and list items, or all markup.
      namespaces: local names of the namespaces of files and categories.
    """
    if content == "markup":
        return lambda text: [line for part in text.split("\n") if (line := part.strip())]
    import mwparserfromhell

    left_out = {*_NAMESPACES, *map(str.lower, namespaces)}

    def extract(text: str) -> list[str]:
        text = _remove_tags(_COMMENT.sub("", text.replace(_MARK, "")))
        for pattern in (_TEMPLATE, _TABLE):
            for _ in range(_MAX_NESTING):  # from the inside out
                text, count = pattern.subn("", text)
                if not count:
                    break
        for opening in ("{{", "{|", "[[", "<"):
            if text.count(opening) > _MAX_UNBALANCED and not _is_balanced(text, opening):
                text = text.replace(opening, "")
        text = _NO_HEADING.sub("", text)
        nodes = mwparserfromhell.parse(text, skip_style_tags=True).nodes
        parts: list[str] = []
        _append_text(nodes, parts, left_out)
        return _lines("".join(parts), has_lists=content == "lists")

    return extract


def _remove_tags(text: str) -> str:
    """Remove elements of `_REMOVED_TAGS` with their content."""
    parts, at, unclosed = [], 0, set()
    for match in _OPENING.finditer(text):
        name = match[1].lower()
        if match.start() < at:
            continue
        end = match.end()
        if not match[2] and name not in unclosed:  # an unclosed tag alone is removed
            closing = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, end)
            if closing is None:
                unclosed.add(name)
            else:
                end = closing.end()
        parts.append(text[at : match.start()])
        at = end
    return "".join([*parts, text[at:]])


def _is_balanced(text: str, opening: str) -> bool:
    """Return whether all but a few openings have an end."""
    closing = {"{{": "}}", "{|": "|}", "[[": "]]", "<": ">"}[opening]
    return text.count(opening) - text.count(closing) <= _MAX_UNBALANCED


def _append_text(nodes: Iterable[Any], parts: list[str], left_out: Collection[str]) -> None:
    """Append the text of nodes; `_MARK` precedes headings and list items."""
    for node in nodes:
        kind = type(node).__name__
        if kind == "Text":
            parts.append(_LEFTOVER_TAG.sub("", node.value))  # &lt;b&gt; is text, an entity
        elif kind == "Wikilink":
            _append_link(node, parts, left_out)
        elif kind == "ExternalLink":
            if node.title is not None:
                _append_text(node.title.nodes, parts, left_out)
        elif kind == "HTMLEntity":
            parts.append(html.unescape(str(node)))
        elif kind == "Heading":
            parts.append(f"\n{_MARK}")
            _append_text(node.title.nodes, parts, left_out)
            parts.append("\n")
        elif kind == "Tag":
            _append_tag(node, parts, left_out)


def _append_link(node: Any, parts: list[str], left_out: Collection[str]) -> None:
    title = str(node.title).strip()
    prefix = title.partition(":")[0].strip() if ":" in title else ""
    if prefix.lower() in left_out or _LANGUAGE.fullmatch(prefix) or _MEDIA.search(title):
        return
    if node.text is None:
        parts.append(html.unescape(title.lstrip(":")))
    elif "|" not in str(node.text):  # otherwise a file in a namespace with another local name
        _append_text(node.text.nodes, parts, left_out)


def _append_tag(node: Any, parts: list[str], left_out: Collection[str]) -> None:
    name = str(node.tag).strip().lower()
    if name in _LEFT_OUT:
        return
    if name == "br":
        parts.append(" ")  # a line end would end a list item
    elif name in _ITEMS:
        parts.append(_MARK if node.wiki_markup else f"\n{_MARK}")
    elif name in _BLOCKS:
        parts.append("\n\n")
    if node.contents is not None:
        _append_text(node.contents.nodes, parts, left_out)
    if name in _BLOCKS:
        parts.append("\n\n")


def _lines(text: str, has_lists: bool) -> list[str]:
    """Return paragraphs as lines, with `has_lists` also headings and list items.

    As in MediaWiki, only a blank line, a heading or a list ends a paragraph.
    """
    text = _SWITCH.sub("", _QUOTES.sub("", _VARIANT.sub(r"\1", text)))
    lines: list[str] = []
    paragraph: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        is_marked = _MARK in line
        if paragraph and (not line or is_marked):
            lines.append(" ".join(paragraph))
            paragraph = []
        if is_marked and has_lists:
            lines.append(line.replace(_MARK, "").strip())
        elif line and not is_marked and line[0] not in "|!{}":  # parts of unclosed tables
            paragraph.append(line)
    cleaned = (_GAP.sub("", line).strip() for line in lines)
    return [line for line in cleaned if any(map(str.isalnum, line))]
