"""A corpus that `bertjax prepare` wrote, as text for a terminal and as a page."""

from collections.abc import Iterator, Sequence
from html import escape

from etils import epath

from bertjax.html.page import facts, page, section, tiles
from data_pipelines.corpus.documents import LONGEST
from data_pipelines.pretraining.corpus_statistics import QUANTILES, Survey, survey, unevenness

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, names of columns, lines
_MOST_SCRIPTS = 8
_MUCH = 0.05  # share of the pieces from which on a script may be that of a language
_KANA = "Hiragana", "Katakana", "Katakana-Hiragana"


def describe(directory: epath.PathLike) -> Iterator[str]:
    """Lines of text that say what the corpus holds and what becomes of it in rows.

    Raises:
      InputError: it is unfinished or damaged.
    """
    found = survey(directory)
    yield str(found.directory)
    names = _facts(found)
    width = max(len(name) for name, _ in names)
    for name, value in names:
        yield f"  {name:{width}}  {value}"
    for title, columns, lines in _tables(found):
        yield f"\n{title}"
        widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
        for line in (columns, *lines):
            first, *others = (f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True))
            yield "  " + "  ".join([f"{line[0]:{len(first)}}", *others])
    for warning in _warnings(found):
        yield f"\nwarning: {warning}"
    for text in found.texts:
        yield f"\n{text}"


def render(directory: epath.Path, name: str) -> str:
    """The same as a page of HTML."""
    found = survey(directory)
    totals = found.manifest.totals
    large = [
        (title, f"{totals[key]:,}")
        for title, key in (
            ("Documents", "documents"),
            ("Sentences", "sentences"),
            ("Pieces", "pieces"),
        )
    ]
    body = [
        f"<header><h1>{escape(name)}</h1>\n{tiles(large)}{facts(_facts(found))}</header>\n",
        *(f"<p>{escape(warning)}</p>\n" for warning in _warnings(found)),
        *(section(title, _html(columns, lines)) for title, columns, lines in _tables(found)),
        section("How documents begin", "".join(f"<p>{escape(text)}</p>\n" for text in found.texts)),
    ]
    return page(name, body)


def _facts(found: Survey) -> list[tuple[str, str]]:
    manifest = found.manifest
    totals, options = manifest.totals, manifest.options
    train, heldout = manifest.train, manifest.heldout
    pieces = totals["pieces"]
    held_out = sum(info.documents for info in heldout)
    return [
        ("text", f"{totals['bytes_of_text']:,} bytes from {', '.join(options['inputs'])}"),
        ("license", options.get("license") or "not told"),
        ("documents", f"{totals['documents']:,}, of which {held_out:,} are held out"),
        ("sentences", f"{totals['sentences']:,}"),
        ("pieces", f"{pieces:,}, {pieces / totals['documents']:.0f} a document"),
        ("unknown", f"{totals['unknown_share']:.3%} of the pieces"),
        ("vocabulary", f"{manifest.vocab_size:,} pieces"),
        (
            "divided",
            f"{totals.get('divided_sentences', 0):,} sentences longer than {LONGEST} pieces",
        ),
        (
            "left out",
            f"{totals['dropped_documents']:,} documents without text or damaged, "
            f"{totals.get('short_documents', 0):,} too short, "
            f"{totals.get('foreign_documents', 0):,} in other languages, "
            f"{totals['duplicates']:,} met before",
        ),
        (
            "shards",
            f"{len(train)} of about {train[0].tokens:,} pieces, {unevenness(train):.1%} apart; "
            f"{len(heldout)} held out",
        ),
        ("version", f"{manifest.version}"),
    ]


def _tables(found: Survey) -> Iterator[Table]:
    sample = f"of {len(found.sampled)} of {len(found.manifest.train)} shards"
    yield (
        f"Lengths in pieces, {sample}",
        ["", *("longest" if q == 1 else f"{q:.0%}" for q in QUANTILES)],
        [
            ["sentences", *(f"{n:,}" for n in found.sentence_pieces)],
            ["documents", *(f"{n:,}" for n in found.document_pieces)],
        ],
    )
    scripts = [*found.scripts[:_MOST_SCRIPTS]]
    if rest := sum(share for _, share in found.scripts[_MOST_SCRIPTS:]):
        scripts.append(("others", rest))
    yield (
        f"Scripts, {sample}",
        ["", "pieces"],
        [[name, f"{share:.2%}"] for name, share in scripts],
    )
    passes = range(1, len(found.rows[0].seen) + 1)
    yield (
        f"In rows, {sample}",
        ["pieces a row", "rows a pass", "filled", "pairs a row", "random B"]
        + [f"text seen in {n}" if n > 1 else "text seen in a pass" for n in passes],
        [
            [f"{r.seq_len}", f"{r.rows:,}", f"{r.filled:.1%}", f"{r.pairs:.2f}", f"{r.random:.1%}"]
            + [f"{share:.2%}" for share in r.seen]
            for r in found.rows
        ],
    )


def _warnings(found: Survey) -> Iterator[str]:
    scripts = dict(found.scripts)
    if kana := sum(scripts.pop(name, 0) for name in _KANA):  # Japanese writes in all three
        scripts["Han"] = scripts.get("Han", 0) + kana
    many = [name for name, share in scripts.items() if share > _MUCH]
    if len(many) > 1:
        yield (
            f"the text is in {' and '.join(many)}: if these are languages, a random next sentence "
            "may be of another one than the first, which tells it; prepare a directory for each, "
            'and join them by "+" where they are trained on'
        )


def _html(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>\n'
