"""Texts with entity spans in JSON lines, as a token classifier's `predict` writes them, to records.

Such a line is an object {"text": ..., "entities": [{"start": 0, "end": 12, ...}, ...]}. A span is
characters of the text and consists of whole words: its tokens are those of its own text. No
sentence ends within a span. Each line is a document.
"""

import bisect
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import index_documents
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.spool import Position
from data_pipelines.errors import InputError
from data_pipelines.parallel import group_by_size
from data_pipelines.parsing import parse_object
from data_pipelines.text.lines import decode_lines, read_blocks
from data_pipelines.text.records import BadRecordCounter
from data_pipelines.text.sentence_splitting import split_sentences
from data_pipelines.text.sources import BUILTIN, ReadOptions
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer

_BATCH_CHARS = 1 << 18  # of text, per batch of a worker
_MIN_CHARS = 64  # that a document counts beside its text, so that empty ones fill batches, too
_LINE = re.compile(r"[^\r\n]+")
_LINE_END = re.compile(r"[\r\n]")


class AnnotatedText(NamedTuple):
    """A document.

    Attributes:
      location: its place, such as "a.jsonl:7", for errors.
      text: its text.
      spans: first character and end of each span, ascending and disjoint.
    """

    location: str
    text: str
    spans: list[tuple[int, int]]

    def spans_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the spans that begin at the characters from `start` to `end` - 1."""
        first, last = (bisect.bisect_left(self.spans, (place, 0)) for place in (start, end))
        return self.spans[first:last]


def record_batches(
    sources: Sequence[str], options: ReadOptions, start: Position, positions: deque[Position]
) -> Iterator[list[AnnotatedText]]:
    """Yield batches of documents after a position; append the end of each batch to `positions`."""

    def records() -> Iterator[tuple[Position, AnnotatedText]]:
        for number, source in enumerate(sources[start.source :], start.source):
            skipped = start.documents if number == start.source else 0
            documents = itertools.islice(read_annotated(source, options), skipped, None)
            for done, document in enumerate(documents, skipped + 1):
                yield Position(number, done), document

    for batch in group_by_size(
        records(), lambda item: _MIN_CHARS + len(item[1].text), _BATCH_CHARS
    ):
        positions.append(batch[-1][0])
        yield [document for _, document in batch]


def read_annotated(source: str, options: ReadOptions) -> Iterator[AnnotatedText]:
    """Yield the documents of a file of JSON lines; a bad line that is skipped is an empty one.

    Raises:
      InputError: the input is no file, or too many lines are no text with spans.
    """
    if source == BUILTIN or source.startswith(TFDS):
        raise InputError(f"spans={options.spans}: {source} has none. Name files of JSON lines.")
    path, bad = epath.Path(source), BadRecordCounter(source, options.max_bad_fraction)
    lines = decode_lines(path, read_blocks(path), bad.add_line, options.max_line_mb)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        bad.count()
        location = f"{source}:{number}"
        try:
            yield _parse_document(location, parse_object(location, line), options)
        except InputError as error:
            bad.add(error)
            yield AnnotatedText(location, "", [])
    bad.end()


def _parse_document(location: str, record: dict[str, Any], options: ReadOptions) -> AnnotatedText:
    for name, kind, flag in ((options.field, str, "--field"), (options.spans, list, "--spans")):
        if not isinstance(record.get(name), kind):
            known = ", ".join(sorted(record)) or "none"
            what = "text" if kind is str else "list of spans"
            raise InputError(f"{location}: no {what} in {name!r}, of {known}. Name one by {flag}.")
    text = record[options.field]
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        raise InputError(f"{location}: field {options.field!r} is not Unicode. Fix it.")
    spans = sorted(_parse_span(location, text, entity) for entity in record[options.spans])
    for (start, end), (next_start, next_end) in itertools.pairwise(spans):
        if next_start < end:
            raise InputError(
                f"{location}: spans {start} to {end} and {next_start} to {next_end} overlap. "
                "Remove one."
            )
    return AnnotatedText(location, text, spans)


def _parse_span(location: str, text: str, entity: Any) -> tuple[int, int]:
    """Return start and end of a span without the spaces at its ends."""
    values = entity if isinstance(entity, dict) else {}
    start, end = values.get("start"), values.get("end")
    if type(start) is not int or type(end) is not int:
        raise InputError(
            f'{location}: {entity!r} is no span. Write an object with whole numbers "start" and '
            '"end".'
        )
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{location}: span {start} to {end} is not in the text of {len(text)} characters. Fix "
            "the offsets."
        )
    part, word = text[start:end], values.get("word", text[start:end])
    if word != part:
        raise InputError(
            f"{location}: span {start} to {end} is {part!r}, not {word!r}. Fix the offsets."
        )
    if not part.strip():
        raise InputError(f"{location}: span {start} to {end} is blank. Remove it.")
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def make_encoder(
    tokenizer: Tokenizer, filters: Filters
) -> Callable[[list[AnnotatedText]], tuple[np.ndarray, bytes]]:
    """Return a function of documents that returns index rows and payload, with their spans."""
    encoder = BulkEncoder(tokenizer)

    def encode(documents: list[AnnotatedText]) -> tuple[np.ndarray, bytes]:
        bounds = [_sentence_bounds(document) for document in documents]
        segments, is_span, locations = [], [], []
        counts = []  # segments of each sentence
        for document, sentences in zip(documents, bounds, strict=True):
            for sentence in sentences:
                parts = list(_segments(document, *sentence))
                segments += [text for text, _ in parts]
                is_span += [marked for _, marked in parts]
                locations += [document.location] * len(parts)
                counts.append(len(parts))
        tokens, lengths = encoder(segments)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        first = np.cumsum([0, *counts])
        _check_words(documents, bounds, tokens, ends[first], encoder)
        marked = np.flatnonzero(np.array(is_span, bool))
        for i in marked[lengths[marked] == 0][:1]:
            raise InputError(f"{locations[i]}: span {segments[i]!r} has no tokens. Remove it.")
        return index_documents(
            [document.text for document in documents],
            [len(sentences) for sentences in bounds],
            tokens,
            np.diff(ends[first]),
            tokenizer,
            filters,
            spans=np.stack([ends[marked], ends[marked + 1]], 1),
        )

    return encode


def _sentence_bounds(document: AnnotatedText) -> list[tuple[int, int]]:
    """Return first character and end of each sentence; one that ends in a span is continued."""
    starts = [start for start, _ in document.spans]
    bounds: list[tuple[int, int]] = []
    for line in _LINE.finditer(document.text):
        at = line.start()
        for sentence in split_sentences(line[0]):
            start = document.text.index(sentence, at)
            at = start + len(sentence)
            before = bisect.bisect_left(starts, start) - 1
            if before >= 0 and document.spans[before][1] > start:
                start = bounds.pop()[0]
            bounds.append((start, at))
    return bounds


def _segments(document: AnnotatedText, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a sentence within and between spans, and whether each is a span."""
    text = _LINE_END.sub(" ", document.text[start:end])
    at = start
    for first, last in document.spans_within(start, end):
        if at < first:
            yield text[at - start : first - start], False
        yield text[first - start : last - start], True
        at = last
    if at < end:
        yield text[at - start :], False


def _check_words(
    documents: Sequence[AnnotatedText],
    bounds: Sequence[Sequence[tuple[int, int]]],
    tokens: np.ndarray,
    offsets: np.ndarray,
    encoder: BulkEncoder,
) -> None:
    """Raise InputError if a span cuts a word: the tokens of its sentence are then others.

    Args:
      documents: the documents.
      bounds: their sentences.
      tokens: ids of all parts of all sentences.
      offsets: first id of each sentence, and the end of the last one.
      encoder: the tokenizer.
    """
    sentences = [
        (number, document, start, end)
        for number, (document, (start, end)) in enumerate(
            (document, sentence)
            for document, own in zip(documents, bounds, strict=True)
            for sentence in own
        )
    ]
    annotated = [item for item in sentences if item[1].spans_within(item[2], item[3])]
    if not annotated:
        return
    texts = [_LINE_END.sub(" ", document.text[a:b]) for _, document, a, b in annotated]
    ids, lengths = encoder(texts)
    for (number, document, a, b), whole in zip(
        annotated, np.split(ids, np.cumsum(lengths)[:-1]), strict=True
    ):
        if np.array_equal(whole, tokens[offsets[number] : offsets[number + 1]]):
            continue
        for first, last in document.spans_within(a, b):
            parts = document.text[a:first], document.text[first:last], document.text[last:b]
            cut, _ = encoder([_LINE_END.sub(" ", part) for part in parts])
            if not np.array_equal(cut, whole):
                raise InputError(
                    f"{document.location}: span {first} to {last}, {parts[1]!r}, begins or ends "
                    "within a word. Fix the offsets."
                )
