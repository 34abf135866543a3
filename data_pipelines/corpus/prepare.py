"""Preparation of a corpus: inputs to a corpus directory, streaming and in parallel.

The result does not depend on the number of workers. Ids go to a spool in document order. At the end
of the input, the index of `documents` determines the shard of each document. The spool is then read
once from start to end. Memory holds a few batches of text, a segment of the spool and, at the end,
about 100 bytes per document. A document is held in memory as a whole.
"""

import contextlib
import functools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np
from etils import epath

from data_pipelines.corpus import annotated_text, tf_examples
from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import (
    MAX_SENTENCE_TOKENS,
    MAX_SHARD_IMBALANCE,
    ShardAssignment,
    assign_shards,
    compute_totals,
    document_sizes,
    encode_documents,
    index_dtype,
    name_shards,
    unpack_documents,
)
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.options import DEFAULT_CORPUS_OPTIONS, CorpusOptions
from data_pipelines.corpus.shards import (
    CORPUS_VERSION,
    MAX_PAIR_LENGTH,
    Manifest,
    ShardInfo,
    ShardWriter,
    token_dtype,
    write_manifest,
)
from data_pipelines.corpus.spool import Position, Spool
from data_pipelines.corpus.staging import (
    check_output,
    is_in_output,
    spool_directory,
    staging_directory,
)
from data_pipelines.errors import InputError
from data_pipelines.libraries import installed_version
from data_pipelines.parallel import group_by_size, ordered_map
from data_pipelines.paths import is_remote
from data_pipelines.text import builtin
from data_pipelines.text.layouts import Notices
from data_pipelines.text.sentence_splitting import SENTENCE_RULES_VERSION
from data_pipelines.text.sources import BUILTIN, ReadOptions, read_source, resolve_inputs
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

log = logging.getLogger(__name__)

_BATCH_CHARS = 1 << 18  # characters of text per batch of a worker
_MIN_CHARS = 64  # that a document counts beside its text, so that empty ones fill batches, too
_CHECKED_SOURCES = 16  # sources whose vocabulary coverage is measured
_CHECKED_DOCUMENTS = 50  # documents measured per source


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: epath.PathLike,
    options: CorpusOptions = DEFAULT_CORPUS_OPTIONS,
    *,
    workers: int | None = None,
    progress: TextIO | None = None,
) -> Manifest:
    """Prepare a corpus directory: shards of the train and eval splits, tokenizer and manifest.

    Equal inputs and options give identical files for any number of workers. `OUTPUT.partial` holds
    the work in progress; an interrupted preparation resumes from it, also after an input was fixed
    or appended, or with a larger `max_bad_fraction`. Remote file systems cannot rename a directory:
    there the manifest, written last, completes the corpus, and an interrupted preparation starts
    again.

    Args:
      inputs: inputs as described in `text.sources`; files of the output are left out.
      tokenizer: tokenizer of the corpus, saved with it.
      output: a directory that does not exist or is empty.
      options: options that determine the content of the corpus.
      workers: processes that tokenize, and as many that parse wikitext; see `ordered_map`.
      progress: stream for progress messages.

    Raises:
      InputError: an input is invalid, the output is not empty, or another process
        prepares it.
    """
    filters, read_options, output = options.filters, options.read_options, epath.Path(output)
    check_output(output)  # else its files would be left out of the inputs
    sources = resolve_inputs(inputs, functools.partial(is_in_output, output=output))
    if are_pairs := tf_examples.are_tf_examples(sources):
        tf_examples.check_options(options)
    dtype = token_dtype(len(tokenizer.tokens))
    progress_bar = _ProgressBar(progress)
    spool_options = _describe_options(read_options, tokenizer, filters)
    signatures = [_file_signature(source) for source in sources]
    with (
        staging_directory(output, resume=True) as stage,
        spool_directory(stage) as directory,
    ):
        has_spans = bool(read_options.spans)
        row_dtype = index_dtype(filters, has_spans)
        fraction = read_options.max_bad_fraction
        spool = Spool(directory, spool_options, signatures, row_dtype, fraction)
        for index in spool.indexes():
            progress_bar.add(index)
        if spool.position != Position():
            log.info("resume after %s", progress_bar)
        positions: deque[Position] = deque()
        start = spool.position
        batches: Iterator[list[Any]] = (
            tf_examples.record_batches(sources, start, positions)
            if are_pairs
            else annotated_text.record_batches(sources, read_options, start, positions)
            if has_spans
            else _batches(sources, read_options, tokenizer, start, positions, workers)
        )
        make_encoder = functools.partial(_make_encoder, tokenizer, filters, are_pairs, has_spans)
        try:
            for index, payload in ordered_map(make_encoder, batches, workers):
                progress_bar.add(index)
                spool.append(index, payload, positions.popleft())
        except InputError:
            if spool.position == Position():
                spool.delete()
            elif not is_remote(stage):
                log.info(
                    "%s: kept. Fix the input; the same command resumes, also with a larger "
                    "--max-bad-fraction.",
                    directory,
                )
            raise
        spool.commit_segment()
        progress_bar.close()
        index = np.concatenate([np.zeros(0, row_dtype), *spool.indexes()])
        assignment = assign_shards(index, options)
        shard_infos = _write_shards(stage, dtype, assignment, len(index), spool, has_spans)
        totals = compute_totals(index, assignment, filters)
        recorded = options.manifest_entries(inputs)
        if are_pairs:
            recorded[MAX_PAIR_LENGTH] = int(index["tokens"].max()) + 3
        return finalize_corpus(stage, tokenizer, recorded, shard_infos, totals)


def _describe_options(read_options: ReadOptions, tokenizer: Tokenizer, filters: Filters) -> str:
    """Return a description of what determines the content of the spool beside the sources.

    The fraction of bad records does not: it determines whether a source is rejected.
    """
    content_options = read_options.content_options()
    del content_options["max_bad_fraction"]
    description = [
        CORPUS_VERSION,
        SENTENCE_RULES_VERSION,
        MAX_SENTENCE_TOKENS,
        content_options,
        tokenizer.fingerprint(),
        getattr(tokenizer, "max_input_chars_per_word", None),  # of WordPiece, not in the above
        filters.languages,
        filters.near_dedup,
        filters.library_versions,
        installed_version("mwparserfromhell"),  # reads the markup of Wikipedia
    ]
    return json.dumps(description)


def _file_signature(source: str) -> list[str | int]:
    """Return name, size and modification time of a source."""
    if source == BUILTIN:
        return [source, builtin.signature()]
    if source.startswith(TFDS):
        return [source]
    if is_remote(source):
        remote = epath.Path(source).stat()
        return [source, remote.length, int(remote.mtime)]
    local = os.stat(source)
    return [source, local.st_size, local.st_mtime_ns]


# ---------------------------------------------------------------- documents to ids


def _batches(
    sources: Sequence[str],
    read_options: ReadOptions,
    tokenizer: Tokenizer,
    start: Position,
    positions: deque[Position],
    workers: int | None,
) -> Iterator[list[str]]:
    """Yield batches of documents after a position; append the end of each batch to `positions`.

    Warn of poor vocabulary coverage at the start of each of the first sources.
    """
    notices = Notices()

    def documents() -> Iterator[tuple[Position, str]]:
        for number, source in enumerate(sources[start.source :], start.source):
            skipped = start.documents if number == start.source else 0
            remaining = read_source(
                source, read_options, skip=skipped, workers=workers, notices=notices
            )
            for done, lines in enumerate(remaining, skipped + 1):
                yield Position(number, done), "\n".join(lines)

    next_source = start.source
    for batch in group_by_size(documents(), lambda item: _MIN_CHARS + len(item[1]), _BATCH_CHARS):
        new_texts: dict[str, list[str]] = {}
        for position, text in batch:
            if next_source <= position.source < _CHECKED_SOURCES:
                new_texts.setdefault(sources[position.source], []).append(text)
        warn_of_coverage_loss(
            tokenizer, {name: texts[:_CHECKED_DOCUMENTS] for name, texts in new_texts.items()}
        )
        end = batch[-1][0]
        next_source = end.source + 1
        positions.append(end)
        yield [text for _, text in batch]


def _make_encoder(
    tokenizer: Tokenizer, filters: Filters, are_pairs: bool, has_spans: bool
) -> Callable[[list[Any]], tuple[np.ndarray, bytes]]:
    if are_pairs:
        return tf_examples.make_encoder(tokenizer)
    if has_spans:
        return annotated_text.make_encoder(tokenizer, filters)
    encoder = BulkEncoder(tokenizer)
    return lambda documents: encode_documents(documents, encoder, filters)


# ---------------------------------------------------------------- documents to shards


def _write_shards(
    directory: epath.Path,
    dtype: np.dtype,
    assignment: ShardAssignment,
    num_documents: int,
    spool: Spool,
    has_spans: bool,
) -> dict[str, list[ShardInfo]]:
    """Distribute the documents of the spool to the shards, one segment at a time."""
    names, shard_of_document = name_shards(assignment, num_documents)
    first = 0
    shard_infos: dict[str, list[ShardInfo]] = {split: [] for split in assignment}
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(ShardWriter(directory, name, dtype, has_spans)) for _, name in names
        ]
        for index, payload in zip(spool.indexes(), spool.payloads(), strict=True):
            segment_shards = shard_of_document[first : first + len(index)]
            first += len(index)
            ends = np.cumsum(np.bincount(segment_shards, minlength=len(names) + 1))
            order = np.argsort(segment_shards, kind="stable")
            for writer, documents in zip(writers, np.split(order, ends[:-1]), strict=False):
                rows = index[documents]
                locations = zip(rows["start"].tolist(), rows["size"].tolist(), strict=True)
                records = [payload[start : start + size] for start, size in locations]
                if records:
                    tokens, lengths, spans = unpack_documents(rows, records, dtype)
                    writer.append(tokens, lengths, document_sizes(rows), spans)
        for writer, (split, _) in zip(writers, names, strict=True):
            shard_infos[split].append(writer.close())
    return shard_infos


def finalize_corpus(
    directory: epath.Path,
    tokenizer: Tokenizer,
    options: dict[str, Any],
    shard_infos: dict[str, list[ShardInfo]],
    totals: dict[str, int | float],
) -> Manifest:
    """Save the tokenizer and then the manifest, which completes the corpus."""
    sizes = [info.tokens for info in shard_infos["train"]]
    if max(sizes) > (1 + MAX_SHARD_IMBALANCE) * min(sizes):
        log.warning(
            "shards have %s to %s tokens, because some documents are longer than a shard should "
            "be. "
            "Every process opens all shards and draws random next sentences from few documents. "
            "Omit num_shards to get equal shards.",
            f"{min(sizes):,}",
            f"{max(sizes):,}",
        )
    manifest = Manifest(
        tokenizer.fingerprint(),
        len(tokenizer.tokens),
        options,
        shard_infos["train"],
        shard_infos["eval"],
        totals,
    )
    tokenizer.save(directory)
    write_manifest(directory, manifest)
    return manifest


# ---------------------------------------------------------------- progress


class _ProgressBar:
    """Progress of a preparation: one redrawn line in a terminal, a line every 10 s elsewhere."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._redraws = stream is not None and stream.isatty()
        self._begin = self._shown = time.monotonic()
        self._documents = self._bytes = self._tokens = 0

    def add(self, index: np.ndarray) -> None:
        """Count documents, and show the progress if it is time."""
        self._documents += len(index)
        self._bytes += int(index["bytes"].sum(dtype=np.int64))
        self._tokens += int(index["tokens"].sum(dtype=np.int64))
        if self._stream and time.monotonic() - self._shown > (0.2 if self._redraws else 10):
            self._show(self._stream)

    def close(self) -> None:
        """Complete the line in a terminal."""
        if self._stream and self._redraws:
            self._show(self._stream)
            self._stream.write("\n")

    def __str__(self) -> str:
        return (
            f"{self._documents:,} documents, {self._bytes / 1e6:,.1f} MB of text, "
            f"{self._tokens:,} tokens"
        )

    def _show(self, stream: TextIO) -> None:
        self._shown = time.monotonic()
        rate = self._tokens / (self._shown - self._begin)
        line = f"{self}, {rate:,.0f} tokens/s"
        stream.write(f"\r\x1b[K{line}" if self._redraws else f"{line}\n")
        stream.flush()
