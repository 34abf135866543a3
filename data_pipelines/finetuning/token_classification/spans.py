"""Texts with labeled spans, such as those of annotation tools, as sentences of tagged words."""

import bisect
import collections
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow
from data_pipelines.finetuning.tag_schemes import Entity, entities_to_tags
from data_pipelines.finetuning.token_classification.running_text import word_offsets
from data_pipelines.finetuning.token_classification.sentences import (
    TEXT_KEYS,
    ColumnNames,
    TaggedSentence,
)
from data_pipelines.finetuning.token_classification.span_layouts import (
    Span,
    has_spans,
    parse_spans,
)
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("data_pipelines")

_SPAN_KEYS = ("spans", "entities", "label", "labels", "annotations", "annotation", "ner")
_OTHER_KEYS = ("predictions", "relations")
_MAX_BAD_FRACTION = 0.25  # of spans that cut a word, or whose text is another one


class SpanRow(NamedTuple):
    """A text with its spans; `location` names it in error messages."""

    location: str
    text: str
    spans: list[Span]


def sentences_from_spans(
    name: str,
    rows: Sequence[TableRow],
    columns: ColumnNames,
    fix_tags: bool,
    load_tokenizer: Callable[[], Tokenizer] | None = None,
) -> list[TaggedSentence] | None:
    """Return texts as sentences of words, tagged from their spans; None if no row has spans.

    Words are those of `word_offsets`. A span that begins or ends within a word gets the whole word.

    Args:
      name: name of the file.
      rows: a text and its spans in each.
      columns: columns of the texts and the spans.
      fix_tags: keep the longest of overlapping spans; accept any number of spans that cut words.
      load_tokenizer: returns the tokenizer, whose added tokens are words; None for none.

    Raises:
      InputError: a span is not one, spans overlap, or offsets do not fit the texts.
    """
    accepted = [row for row in rows if row.values.get("answer", "accept") == "accept"]
    if len(accepted) < len(rows):  # Prodigy
        skipped = len(rows) - len(accepted)
        _log.warning('%s: left out %d texts whose "answer" is not accept.', name, skipped)
    key = columns.tag or _span_column(accepted)
    if not key:
        return None
    annotated = [row for row in accepted if _is_annotated(row, key)]
    if len(annotated) < len(accepted):
        missing = len(accepted) - len(annotated)
        _log.warning("%s: left out %d texts without annotation in %r.", name, missing, key)
    read = [_read_row(row, key, columns) for row in annotated]
    read = _without_offset_errors(name, read)
    counts: collections.Counter[str] = collections.Counter()
    sentences: list[TaggedSentence] = []
    tokenizer = load_tokenizer() if load_tokenizer else None
    example = ""
    for location, text, spans in read:
        offsets = list(word_offsets(text, tokenizer))
        if not offsets:
            raise InputError(f"{location}: no words. Write some or delete the row.")
        kept = _without_overlaps(location, spans, fix_tags, counts)
        starts, ends = ([*bounds] for bounds in zip(*offsets, strict=True))
        entities: list[Entity] = []
        for span in kept:
            first, last = _words_of(location, text, span, starts, ends)
            if (offsets[first][0], offsets[last][1]) != (span.start, span.end):
                counts["cut"] += 1
                whole = text[offsets[first][0] : offsets[last][1]]
                example = example or f"{location}: {text[span.start : span.end]!r} of {whole!r}"
            if entities and first <= entities[-1].last:
                counts["same word"] += 1
                continue
            entities.append(Entity(span.label, first, last))
        counts["spans"] += len(kept)
        tags = entities_to_tags(entities, len(offsets))
        words = [text[start:end] for start, end in offsets]
        locations = [f"{location}, word {number}" for number in range(1, len(words) + 1)]
        sentences.append(TaggedSentence(words, tags, locations, len(sentences)))
    _report(name, key, read, counts, example, fix_tags)
    return sentences


def _report(
    name: str,
    key: str,
    rows: Sequence[SpanRow],
    counts: collections.Counter[str],
    example: str,
    fix_tags: bool,
) -> None:
    """Log what was read; raise InputError if too many spans cut words."""
    shown = next((row for row in rows if row.spans), None)
    if shown:
        span = shown.spans[0]
        _log.info(
            "%s: %d spans of %d texts in column %r, such as %s %r.",
            name, counts["spans"], len(rows), key, span.label, shown.text[span.start : span.end],
        )  # fmt: skip
    if counts["cut"] > _MAX_BAD_FRACTION * counts["spans"] and not fix_tags:
        # Words split at the spans would have tokens that no text has whose spans are unknown.
        raise InputError(
            f"{example}: {counts['cut']} of {counts['spans']} spans begin or end within a word. "
            "Fix the offsets if they are wrong. If words are written together, as in Thai or "
            "Korean, write them in a list with their tags, or tag whole words with "
            "data.fix_tags=True."
        )
    if counts["cut"]:
        _log.warning(
            "%d of %d spans begin or end within a word; the whole word is tagged. The first: %s.",
            counts["cut"], counts["spans"], example,
        )  # fmt: skip
    for problem in ("overlap", "same word"):
        if counts[problem]:
            _log.warning("%s: left out %d spans that %s with others.", name, counts[problem],
                         "overlap" if problem == "overlap" else "share a word")  # fmt: skip


def _span_column(rows: Sequence[TableRow]) -> str:
    """Return the column whose values are lists of spans; "" without one."""
    order = {name: index for index, name in enumerate(_SPAN_KEYS)}
    found = {name for row in rows for name in row.values}
    names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
    for name in names:
        if name not in _OTHER_KEYS and any(has_spans(row.values.get(name)) for row in rows):
            return name
    empty = (n for n in names if all(row.values.get(n) in (None, []) for row in rows))
    return next((name for name in empty if name in _SPAN_KEYS), "")


def _is_annotated(row: TableRow, key: str) -> bool:
    """Return False for a null, and for a task of Label Studio that nobody has done."""
    value = row.values.get(key, ())
    if isinstance(row.values.get("data"), dict) and isinstance(value, list):
        return not all(isinstance(item, dict) and item.get("was_cancelled") for item in value)
    return value is not None


def _read_row(row: TableRow, key: str, columns: ColumnNames) -> SpanRow:
    values = row.values.get("data") if isinstance(row.values.get("data"), dict) else row.values
    assert isinstance(values, dict)
    value = row.values.get(key)
    try:
        spans = list(dict.fromkeys(parse_spans([] if value is None else value)))
    except (TypeError, ValueError, KeyError) as error:
        reason = f" ({error})" if isinstance(error, InputError) else ""
        raise InputError(
            f"{row.location}: column {key!r} is no list of spans{reason}. Write spans as [start, "
            "end, label] with whole numbers."
        ) from None
    texts = {name: text for name, text in values.items() if isinstance(text, str)}
    names = [columns.word] if columns.word else TEXT_KEYS
    text = next((texts[name] for name in names if name in texts), None)
    if text is None and not columns.word:
        end = max((span.end for span in spans), default=0)
        long_texts = [text for name, text in texts.items() if len(text) >= end and name != key]
        text = long_texts[0] if len(long_texts) == 1 and spans else None
    lists = (value for name, value in values.items() if name != key)
    if text is None and any(isinstance(words, list) and words for words in lists):
        raise InputError(
            f"{row.location}: spans {key!r} of words, not of characters. Write a list of tags, one "
            "for each word."
        )
    if text is None:
        raise InputError(
            f"{row.location}: no text in {', '.join(map(repr, values)) or 'an empty row'}. Name "
            "its column with data.word_column."
        )
    return SpanRow(row.location, text, spans)


def _strip(text: str, span: Span) -> Span:
    """Return a span without the spaces at its ends."""
    part = text[span.start : span.end]
    start = span.start + len(part) - len(part.lstrip())
    return Span(start, start + len(part.strip()), span.label)


def _without_offset_errors(name: str, rows: Sequence[SpanRow]) -> list[SpanRow]:
    """Return the rows without spaces at the ends of spans, and with exclusive ends.

    Raises:
      InputError: a span is blank or ends after the text, or many have another text than in their
        annotation.
    """
    annotated = [(row, span) for row in rows for span in row.spans if span.surface]
    shift = sum(_has_surface(row, span, 1) - _has_surface(row, span) for row, span in annotated) > 0
    if shift:
        _log.info("%s: ends of spans are those of their last characters.", name)
    wrong = [pair for pair in annotated if not _has_surface(*pair, shift)]
    if wrong:
        row, span = wrong[0]
        example = (
            f"{row.location}: {span.label!r} at {span.start} to {span.end} is "
            f"{row.text[span.start : span.end + shift]!r}, not {span.surface!r}"
        )
        count = f"{len(wrong)} of {len(annotated)} spans have another text"
        if len(wrong) > _MAX_BAD_FRACTION * len(annotated):
            raise InputError(f"{example} ({count}). Fix the offsets.")
        _log.warning("%s. The first: %s.", count, example)
    result = []
    for location, text, old in rows:
        spans = [span._replace(end=span.end + shift) for span in old]
        for span in spans:
            if not 0 <= span.start < span.end <= len(text):
                raise InputError(
                    f"{location}: {span.label!r} at {span.start} to {span.end} is not in the text "
                    f"of {len(text)} characters. Fix the offsets."
                )
        stripped = [_strip(text, span) for span in spans]
        result.append(SpanRow(location, text, [span for span in stripped if span.start < span.end]))
        if len(result[-1].spans) < len(spans):
            raise InputError(f"{location}: a span of spaces alone. Fix its offsets.")
    return result


def _has_surface(row: SpanRow, span: Span, shift: int = 0) -> bool:
    part = row.text[max(span.start, 0) : span.end + shift]
    return part.strip().lower() == span.surface.strip().lower()


def _without_overlaps(
    location: str, spans: Iterable[Span], fix_tags: bool, counts: collections.Counter[str]
) -> list[Span]:
    """Return spans by their start; of overlapping ones the longest if `fix_tags`."""
    kept: list[Span] = []  # by their start
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        index = bisect.bisect(kept, span)
        neighbors = kept[max(0, index - 1) : index + 1]
        other = next((o for o in neighbors if span.start < o.end and o.start < span.end), None)
        if other is None:
            kept.insert(index, span)
        elif fix_tags:
            counts["overlap"] += 1
        else:
            raise InputError(
                f"{location}: {span.label!r} at {span.start} to {span.end} overlaps "
                f"{other.label!r} at {other.start} to {other.end}. Remove one, or keep the "
                "longest with data.fix_tags=True."
            )
    return kept


def _words_of(
    location: str, text: str, span: Span, starts: Sequence[int], ends: Sequence[int]
) -> tuple[int, int]:
    """Return the first and the last word that a span touches.

    Args:
      location: file and line for error messages.
      text: the text.
      span: a span of the text.
      starts: index of the first character of each word.
      ends: index after the last character of each word.

    Raises:
      InputError: the span touches no word.
    """
    first = bisect.bisect_right(ends, span.start)
    last = bisect.bisect_left(starts, span.end) - 1
    if first > last:
        raise InputError(
            f"{location}: no word in {text[span.start : span.end]!r}. Fix the offsets of "
            f"{span.label!r}."
        )
    return first, last
