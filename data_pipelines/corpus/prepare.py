"""Inputs to a corpus directory: streamed, in parallel, the same result on any number of workers.

Ids go to a spool in the order of the documents; when the input ends, the index of `documents` tells
what goes into which shard, and the spool is read once, from its start to its end. So memory holds a
few batches of text, a segment of the spool and, at the end, some 100 bytes a document. A document
is the unit: it is in memory as a whole.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np
from etils import epath

from data_pipelines.corpus.bulk_encoder import BulkEncoder, group_by_size
from data_pipelines.corpus.documents import (
    MAX_SENTENCE_TOKENS,
    MAX_SHARD_IMBALANCE,
    ShardAssignment,
    assign_shards,
    count,
    encode_documents,
    index_dtype,
    unpack_documents,
)
from data_pipelines.corpus.filters import KEEP_ALL, Filters
from data_pipelines.corpus.shards import (
    CORPUS_VERSION,
    Manifest,
    ShardInfo,
    ShardWriter,
    shard_name,
    token_dtype,
    write_manifest,
)
from data_pipelines.corpus.spool import Position, Spool
from data_pipelines.corpus.staging import spool_directory, staging_directory
from data_pipelines.errors import InputError
from data_pipelines.parallel import ordered_map
from data_pipelines.paths import is_remote
from data_pipelines.text.sentence_splitting import SENTENCE_RULES_VERSION
from data_pipelines.text.sources import (
    BUILTIN,
    DEFAULT_READ_OPTIONS,
    TFDS,
    ReadOptions,
    read_source,
    resolve_inputs,
)
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

log = logging.getLogger(__name__)

_BATCH_CHARS = 1 << 18  # characters of text that a worker gets at a time
_CHECKED_SOURCES = 16  # sources of which it is told what the tokenizer loses
_CHECKED_DOCUMENTS = 50  # documents of each that tell it


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: epath.PathLike,
    *,
    workers: int | None = None,
    eval_fraction: float = 0.01,
    dedup: bool = False,
    shards: int | None = None,
    filters: Filters = KEEP_ALL,
    read_options: ReadOptions = DEFAULT_READ_OPTIONS,
    license: str = "",
    progress: TextIO | None = None,
) -> Manifest:
    """Make a corpus directory: shards of train and held-out documents, tokenizer and manifest.

    With equal inputs and options the files are equal to the byte, whatever `workers` is. Work in
    progress is in `OUTPUT.partial`, from where a preparation that was killed goes on. (Remote file
    systems cannot rename a directory: there the manifest, written last, is what makes it a corpus,
    and a preparation begins anew.)

    Args:
      inputs: what `sources` describes.
      tokenizer: gives the ids, and is saved with the corpus.
      output: a directory that does not exist yet or is empty.
      workers: processes that tokenise; see `ordered_map`.
      eval_fraction: share of the documents to hold out, chosen by the hash of their text.
      dedup: whether only the first of documents with the same text is kept.
      shards: number of train shards; None chooses a power of two by the size of the corpus.
      filters: what else is left out.
      reading: how the inputs are read.
      license: of the text, for those who get a model that is trained on it.
      progress: where to show how it goes.

    Raises:
      InputError: unusable inputs or options, or an output that already holds something or that
        another process is preparing.
    """
    options = checked_options(inputs, read_options, eval_fraction, dedup, shards, filters, license)
    sources = resolve_inputs(inputs)
    dtype = token_dtype(len(tokenizer.tokens))
    meter = _ProgressBar(progress)
    identity = _identity(sources, read_options, tokenizer, filters)
    with (
        staging_directory(epath.Path(output), resume=True) as stage,
        spool_directory(stage) as scratch,
    ):
        spool = Spool(scratch, identity, index_dtype(filters))
        for index in spool.indexes():
            meter.add(index)
        if spool.position != Position():
            log.info("goes on after %s", meter)
        positions: deque[Position] = deque()
        batches = _batches(sources, read_options, tokenizer, spool.position, positions)
        make = functools.partial(_make_encoder, tokenizer, filters)
        try:
            for index, payload in ordered_map(make, batches, workers):
                meter.add(index)
                spool.append(index, payload, positions.popleft())
        except InputError:
            spool.delete()
            raise
        spool.commit_segment()
        meter.close()
        index = np.concatenate([np.zeros(0, index_dtype(filters)), *spool.indexes()])
        assignment = assign_shards(index, eval_fraction, dedup, shards, filters)
        shard_infos = _write_shards(stage, dtype, assignment, len(index), spool)
        return finalize_corpus(
            stage, tokenizer, options, shard_infos, count(index, assignment, filters)
        )


def _identity(
    sources: Sequence[str], read_options: ReadOptions, tokenizer: Tokenizer, filters: Filters
) -> str:
    """Of what decides the spool: not of what is decided from its index alone."""
    how = [
        CORPUS_VERSION,
        SENTENCE_RULES_VERSION,
        MAX_SENTENCE_TOKENS,
        dataclasses.asdict(read_options),
        tokenizer.fingerprint(),
    ]
    told = [filters.languages, filters.near_dedup, filters.library_versions]
    return json.dumps([*how, *told, [_file_signature(source) for source in sources]])


def _file_signature(source: str) -> list[str | int]:
    """What changes when a file does."""
    if source == BUILTIN or source.startswith(TFDS):
        return [source]
    if is_remote(source):
        found = epath.Path(source).stat()
        return [source, found.length, int(found.mtime)]
    local = os.stat(source)
    return [source, local.st_size, local.st_mtime_ns]


def checked_options(
    inputs: Sequence[str],
    read_options: ReadOptions,
    eval_fraction: float,
    dedup: bool,
    shards: int | None,
    filters: Filters,
    license: str,
) -> dict[str, Any]:
    """The options of a preparation as its manifest records them; InputError if they cannot work."""
    if not 0 <= eval_fraction < 1:
        raise InputError(
            f"eval_fraction is {eval_fraction}; choose a share from 0 (none) to below 1."
        )
    if shards is not None and shards < 1:
        raise InputError(f"shards is {shards}; choose 1 or more, or leave it out.")
    if "+" in filters.languages:
        log.warning(
            "languages=%s go into one corpus, where a random next sentence may be of another "
            "language than the first, which tells it: prepare a directory for each, and join them "
            'by "+" where they are trained on',
            filters.languages,
        )
    return {
        "inputs": list(inputs),
        **dataclasses.asdict(read_options),
        "sentence_rules": SENTENCE_RULES_VERSION,
        "eval_fraction": eval_fraction,
        "dedup": dedup,
        "shards": shards,
        **dataclasses.asdict(filters),
        "license": license,
    }


# ---------------------------------------------------------------- documents to ids


def _batches(
    sources: Sequence[str],
    read_options: ReadOptions,
    tokenizer: Tokenizer,
    start: Position,
    positions: deque[Position],
) -> Iterator[list[str]]:
    """Documents behind a position, grouped; where each batch ends is added to `positions`.

    Tells of the first sources, of each when it begins, whether the tokenizer loses a part.
    """

    def documents() -> Iterator[tuple[Position, str]]:
        for number, source in enumerate(sources[start.source :], start.source):
            skipped = start.documents if number == start.source else 0
            found = itertools.islice(read_source(source, read_options), skipped, None)
            for done, lines in enumerate(found, skipped + 1):
                yield Position(number, done), "\n".join(lines)

    new = start.source
    for batch in group_by_size(documents(), lambda item: len(item[1]), _BATCH_CHARS):
        begun: dict[str, list[str]] = {}
        for place, text in batch:
            if new <= place.source < _CHECKED_SOURCES:
                begun.setdefault(sources[place.source], []).append(text)
        warn_of_coverage_loss(
            tokenizer, {name: texts[:_CHECKED_DOCUMENTS] for name, texts in begun.items()}
        )
        new = batch[-1][0].source + 1
        positions.append(batch[-1][0])
        yield [text for _, text in batch]


def _make_encoder(
    tokenizer: Tokenizer, filters: Filters
) -> Callable[[list[str]], tuple[np.ndarray, bytes]]:
    encoder = BulkEncoder(tokenizer)
    return lambda documents: encode_documents(documents, encoder, filters)


# ---------------------------------------------------------------- documents to shards


def _write_shards(
    directory: epath.Path,
    dtype: np.dtype,
    assignment: ShardAssignment,
    documents: int,
    spool: Spool,
) -> dict[str, list[ShardInfo]]:
    """Deals out the spool, a segment at a time."""
    names = [
        (split, shard_name(split, i, len(parts)), part)
        for split, parts in assignment.items()
        for i, part in enumerate(parts)
    ]
    shard_of = np.full(documents, len(names), np.int32)
    for shard, (_, _, part) in enumerate(names):
        shard_of[part] = shard
    first = 0
    shard_infos: dict[str, list[ShardInfo]] = {split: [] for split in assignment}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(ShardWriter(directory, name, dtype)) for _, name, _ in names]
        for index, payload in zip(spool.indexes(), spool.payloads(), strict=True):
            here = shard_of[first : first + len(index)]
            first += len(index)
            ends = np.cumsum(np.bincount(here, minlength=len(names) + 1))
            order = np.argsort(here, kind="stable")
            for writer, chosen in zip(writers, np.split(order, ends[:-1]), strict=False):
                rows = index[chosen]
                where = zip(rows["start"].tolist(), rows["size"].tolist(), strict=True)
                records = [payload[start : start + size] for start, size in where]
                if records:
                    writer.append_flat(*unpack_documents(rows, records, dtype), rows["sentences"])
        for writer, (split, _, _) in zip(writers, names, strict=True):
            shard_infos[split].append(writer.close())
    return shard_infos


def finalize_corpus(
    directory: epath.Path,
    tokenizer: Tokenizer,
    options: dict[str, Any],
    shard_infos: dict[str, list[ShardInfo]],
    totals: dict[str, int | float],
) -> Manifest:
    """Save the tokenizer and then the manifest, which declares the directory a corpus."""
    sizes = [info.tokens for info in shard_infos["train"]]
    if max(sizes) > (1 + MAX_SHARD_IMBALANCE) * min(sizes):
        log.warning(
            "the shards have from %s to %s pieces, as some documents are longer than shards should "
            "be: every host will open all of them, and take a random next sentence from few "
            "documents; leave shards out for as many as can be even",
            f"{min(sizes):,}",
            f"{max(sizes):,}",
        )
    fingerprint = tokenizer.fingerprint()
    manifest = Manifest(
        fingerprint,
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
    """Tells how far a preparation is: one line, redrawn, in a terminal; a few lines elsewhere."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._redraws = stream is not None and stream.isatty()
        self._begin = self._shown = time.monotonic()
        self._documents = self._bytes = self._pieces = 0

    def add(self, index: np.ndarray) -> None:
        self._documents += len(index)
        self._bytes += int(index["bytes"].sum(dtype=np.int64))
        self._pieces += int(index["tokens"].sum(dtype=np.int64))
        if self._stream and time.monotonic() - self._shown > (0.2 if self._redraws else 10):
            self._show(self._stream)

    def close(self) -> None:
        if self._stream and self._redraws:
            self._show(self._stream)
            self._stream.write("\n")

    def __str__(self) -> str:
        return (
            f"{self._documents:,} documents, {self._bytes / 1e6:,.1f} MB of text, "
            f"{self._pieces:,} pieces"
        )

    def _show(self, stream: TextIO) -> None:
        self._shown = time.monotonic()
        rate = self._pieces / (self._shown - self._begin)
        line = f"{self}, {rate:,.0f} pieces/s"
        stream.write(f"\r\x1b[K{line}" if self._redraws else f"{line}\n")
        stream.flush()
