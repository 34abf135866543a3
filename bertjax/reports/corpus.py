"""A corpus that `bertjax prepare` wrote, as text for a terminal and as a page."""

from collections.abc import Iterator, Sequence
from html import escape

from etils import epath

from bertjax.html.page import definition_list, page, section, tiles
from data_pipelines.corpus.documents import MAX_SENTENCE_TOKENS
from data_pipelines.pretraining.corpus_statistics import (
    QUANTILES,
    CorpusStatistics,
    compute_corpus_statistics,
    shard_imbalance,
)

TextTable = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, names of columns, lines
_MAX_SCRIPTS = 8
_MIN_LANGUAGE_FRACTION = (
    0.05  # share of the pieces from which on a script may be that of a language
)
_KANA = "Hiragana", "Katakana", "Katakana-Hiragana"


def describe_corpus(directory: epath.PathLike) -> Iterator[str]:
    """Lines of text that say what the corpus holds and what becomes of it in rows.

    Raises:
      InputError: it is unfinished or damaged.
    """
    statistics = compute_corpus_statistics(directory)
    yield str(statistics.directory)
    names = _facts(statistics)
    width = max(len(name) for name, _ in names)
    for name, value in names:
        yield f"  {name:{width}}  {value}"
    for title, columns, lines in _tables(statistics):
        yield f"\n{title}"
        widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
        for line in (columns, *lines):
            first, *others = (f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True))
            yield "  " + "  ".join([f"{line[0]:{len(first)}}", *others])
    for warning in _warnings(statistics):
        yield f"\nwarning: {warning}"
    for text in statistics.sample_texts:
        yield f"\n{text}"


def render_corpus(directory: epath.Path, name: str) -> str:
    """The same as a page of HTML."""
    statistics = compute_corpus_statistics(directory)
    totals = statistics.manifest.totals
    large = [
        (title, f"{totals[key]:,}")
        for title, key in (
            ("Documents", "documents"),
            ("Sentences", "sentences"),
            ("Pieces", "tokens"),
        )
    ]
    body = [
        f"<header><h1>{escape(name)}</h1>\n{tiles(large)}{definition_list(_facts(statistics))}</header>\n",
        *(f"<p>{escape(warning)}</p>\n" for warning in _warnings(statistics)),
        *(
            section(title, _html_table(columns, lines))
            for title, columns, lines in _tables(statistics)
        ),
        section(
            "How documents begin",
            "".join(f"<p>{escape(text)}</p>\n" for text in statistics.sample_texts),
        ),
    ]
    return page(name, body)


def _facts(statistics: CorpusStatistics) -> list[tuple[str, str]]:
    manifest = statistics.manifest
    totals, options = manifest.totals, manifest.options
    train_shards, eval_shards = manifest.train_shards, manifest.eval_shards
    tokens = totals["tokens"]
    held_out = sum(info.documents for info in eval_shards)
    return [
        ("text", f"{totals['text_bytes']:,} bytes from {', '.join(options['inputs'])}"),
        ("license", options.get("license") or "not told"),
        ("documents", f"{totals['documents']:,}, of which {held_out:,} are held out"),
        ("sentences", f"{totals['sentences']:,}"),
        ("tokens", f"{tokens:,}, {tokens / totals['documents']:.0f} a document"),
        ("unknown", f"{totals['unk_fraction']:.3%} of the pieces"),
        ("vocabulary", f"{manifest.vocab_size:,} pieces"),
        (
            "divided",
            f"{totals.get('long_sentences', 0):,} sentences longer than {MAX_SENTENCE_TOKENS} pieces",
        ),
        (
            "left out",
            f"{totals['empty_documents']:,} documents without text or damaged, "
            f"{totals.get('short_documents', 0):,} too short, "
            f"{totals.get('other_language_documents', 0):,} in other languages, "
            f"{totals['duplicate_documents']:,} met before",
        ),
        (
            "shards",
            f"{len(train_shards)} of about {train_shards[0].tokens:,} pieces, {shard_imbalance(train_shards):.1%} apart; "
            f"{len(eval_shards)} held out",
        ),
        ("version", f"{manifest.version}"),
    ]


def _tables(statistics: CorpusStatistics) -> Iterator[TextTable]:
    sample = (
        f"of {len(statistics.sampled_shards)} of {len(statistics.manifest.train_shards)} shards"
    )
    yield (
        f"Lengths in pieces, {sample}",
        ["", *("longest" if q == 1 else f"{q:.0%}" for q in QUANTILES)],
        [
            ["sentences", *(f"{n:,}" for n in statistics.sentence_tokens)],
            ["documents", *(f"{n:,}" for n in statistics.document_tokens)],
        ],
    )
    scripts = [*statistics.scripts[:_MAX_SCRIPTS]]
    if rest := sum(share for _, share in statistics.scripts[_MAX_SCRIPTS:]):
        scripts.append(("others", rest))
    yield (
        f"Scripts, {sample}",
        ["", "tokens"],
        [[name, f"{share:.2%}"] for name, share in scripts],
    )
    passes = range(1, len(statistics.packing[0].seen_fractions) + 1)
    yield (
        f"In rows, {sample}",
        ["pieces a row", "rows a pass", "filled", "pairs a row", "random B"]
        + [f"text seen in {n}" if n > 1 else "text seen in a pass" for n in passes],
        [
            [
                f"{r.max_seq_length}",
                f"{r.sequences_per_epoch:,}",
                f"{r.nonpad_fraction:.1%}",
                f"{r.pairs_per_sequence:.2f}",
                f"{r.random_fraction:.1%}",
            ]
            + [f"{share:.2%}" for share in r.seen_fractions]
            for r in statistics.packing
        ],
    )


def _warnings(statistics: CorpusStatistics) -> Iterator[str]:
    scripts = dict(statistics.scripts)
    if kana := sum(scripts.pop(name, 0) for name in _KANA):  # Japanese writes in all three
        scripts["Han"] = scripts.get("Han", 0) + kana
    many = [name for name, share in scripts.items() if share > _MIN_LANGUAGE_FRACTION]
    if len(many) > 1:
        yield (
            f"the text is in {' and '.join(many)}: if these are languages, a random next sentence "
            "may be of another one than the first, which tells it; prepare a directory for each, "
            'and join them by "+" where they are trained on'
        )


def _html_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>\n'
