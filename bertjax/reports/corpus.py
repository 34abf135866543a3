"""Report of a corpus that `bertjax prepare` wrote, as text for a terminal and as a page."""

import textwrap
from collections.abc import Iterator

from etils import epath

from bertjax.html.page import Section, render_report
from bertjax.html.tables import TextTable, align_columns
from data_pipelines.corpus.documents import MAX_SENTENCE_TOKENS
from data_pipelines.pretraining.corpus_statistics import (
    QUANTILES,
    CorpusStatistics,
    compute_corpus_statistics,
    shard_imbalance,
)

_MAX_SCRIPTS = 8  # the most frequent ones are listed
_MIN_LANGUAGE_FRACTION = 0.05  # of the tokens; a rarer script is not taken for a language
_KANA = "Hiragana", "Katakana", "Katakana-Hiragana"


def describe_corpus(directory: epath.PathLike) -> Iterator[str]:
    """Yield lines of text: totals, lengths, scripts, packed sequences, warnings, sample documents.

    Raises:
      InputError: the corpus is unfinished or damaged.
    """
    statistics = compute_corpus_statistics(directory)
    yield str(statistics.directory)
    facts = _facts(statistics)
    width = max(len(term) for term, _ in facts)
    for term, description in facts:
        yield f"  {term:{width}}  {description}"
    for title, table in _tables(statistics):
        yield f"\n{title}"
        yield textwrap.indent(align_columns(*table), "  ")
    for warning in _warnings(statistics):
        yield f"\nwarning: {warning}"
    for text in statistics.sample_texts:
        yield f"\n{text}"


def render_corpus(directory: epath.Path, name: str) -> str:
    """Return the page with the content of `describe_corpus`."""
    statistics = compute_corpus_statistics(directory)
    totals = statistics.manifest.totals
    return render_report(
        name,
        [
            Section("Warnings", paragraphs=list(_warnings(statistics))),
            *(Section(title, table=table) for title, table in _tables(statistics)),
            Section("Sample documents", paragraphs=statistics.sample_texts),
        ],
        metrics=[
            (title, f"{totals[title.lower()]:,}") for title in ("Documents", "Sentences", "Tokens")
        ],
        facts=_facts(statistics),
    )


def _facts(statistics: CorpusStatistics) -> list[tuple[str, str]]:
    manifest = statistics.manifest
    totals, options = manifest.totals, manifest.options
    train_shards, eval_shards = manifest.train_shards, manifest.eval_shards
    tokens, documents = totals["tokens"], totals["documents"]
    eval_documents = sum(info.documents for info in eval_shards)
    return [
        ("text", f"{totals['text_bytes']:,} bytes from {', '.join(options['inputs'])}"),
        ("license", options.get("license") or "not specified"),
        ("documents", f"{documents:,}, {eval_documents:,} of them in the eval split"),
        ("sentences", f"{totals['sentences']:,}"),
        ("tokens", f"{tokens:,}, {tokens / documents:.0f} per document"),
        ("unknown", f"{totals['unk_fraction']:.3%} of the tokens"),
        ("vocabulary", f"{manifest.vocab_size:,} tokens"),
        (
            "split",
            f"{totals.get('long_sentences', 0):,} sentences longer than {MAX_SENTENCE_TOKENS} "
            "tokens",
        ),
        (
            "dropped",
            f"{totals['empty_documents']:,} empty or damaged documents, "
            f"{totals.get('short_documents', 0):,} too short, "
            f"{totals.get('other_language_documents', 0):,} in other languages, "
            f"{totals['duplicate_documents']:,} duplicates",
        ),
        (
            "shards",
            f"{len(train_shards)} of about {train_shards[0].tokens:,} tokens "
            f"(the largest is {shard_imbalance(train_shards):.1%} larger than the smallest), "
            f"{len(eval_shards)} in the eval split",
        ),
        ("version", f"{manifest.version}"),
    ]


def _tables(statistics: CorpusStatistics) -> Iterator[tuple[str, TextTable]]:
    """Yield titles and tables."""
    num_sampled, num_shards = len(statistics.sampled_shards), len(statistics.manifest.train_shards)
    sample = f"from {num_sampled} of {num_shards} shards"
    yield (
        f"Lengths in tokens, {sample}",
        TextTable(
            ("", *("longest" if q == 1 else f"{q:.0%}" for q in QUANTILES)),
            [
                ("sentences", *(f"{n:,}" for n in statistics.sentence_tokens)),
                ("documents", *(f"{n:,}" for n in statistics.document_tokens)),
            ],
        ),
    )
    scripts = [*statistics.scripts[:_MAX_SCRIPTS]]
    if others := sum(fraction for _, fraction in statistics.scripts[_MAX_SCRIPTS:]):
        scripts.append(("others", others))
    yield (
        f"Scripts, {sample}",
        TextTable(("", "tokens"), [(name, f"{fraction:.2%}") for name, fraction in scripts]),
    )
    num_epochs = len(statistics.packing[0].seen_fractions)
    yield (
        f"Packed sequences, {sample}",
        TextTable(
            (
                "tokens per sequence",
                "sequences per epoch",
                "not padding",
                "pairs per sequence",
                "random next",
                "text seen in 1 epoch",
                *(f"in {n}" for n in range(2, num_epochs + 1)),
            ),
            [
                (
                    f"{packing.max_seq_length}",
                    f"{packing.sequences_per_epoch:,}",
                    f"{packing.nonpad_fraction:.1%}",
                    f"{packing.pairs_per_sequence:.2f}",
                    f"{packing.random_fraction:.1%}",
                    *(f"{fraction:.2%}" for fraction in packing.seen_fractions),
                )
                for packing in statistics.packing
            ],
        ),
    )


def _warnings(statistics: CorpusStatistics) -> Iterator[str]:
    scripts = dict(statistics.scripts)
    if kana := sum(scripts.pop(name, 0) for name in _KANA):  # Japanese uses all three
        scripts["Han"] = scripts.get("Han", 0) + kana
    frequent = [name for name, fraction in scripts.items() if fraction > _MIN_LANGUAGE_FRACTION]
    if len(frequent) > 1:
        yield (
            f"scripts={'+'.join(frequent)}: if these are several languages, the script gives a "
            "random next sentence away. Prepare a directory for each language and join them "
            'with "+" in data.dir.'
        )
