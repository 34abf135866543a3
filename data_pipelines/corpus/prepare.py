"""Inputs to a corpus directory: streamed, in parallel, the same result on any number of workers.

Ids go to a spool file in the order of the documents; when the input ends, the index of `documents`
tells what goes into which shard. So memory holds a few batches of text and, at the end, 80 bytes a
document. A document is the unit: it is in memory as a whole.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TextIO

import numpy as np
from etils import epath

from data_pipelines.corpus.bulk import BulkEncoder, grouped
from data_pipelines.corpus.documents import INDEX, assign_shards, count, encode_documents, unpack
from data_pipelines.corpus.records import (
    MANIFEST,
    Manifest,
    ShardInfo,
    ShardWriter,
    shard_name,
    temporary_file,
    token_dtype,
    write_manifest,
)
from data_pipelines.errors import InputError
from data_pipelines.parallel import ordered_map
from data_pipelines.paths import is_remote
from data_pipelines.text.sources import AS_IT_IS, Reading, read_source, resolve
from data_pipelines.vocabulary.tokenization import Tokenizer

_BATCH = 1 << 18  # characters of text that a worker gets at a time
_BLOCK = 1 << 20  # bytes of ids that are written to a shard at a time
_PARTIAL = ".partial"


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: epath.PathLike,
    *,
    workers: int | None = None,
    held_out: float = 0.01,
    dedup: bool = False,
    shards: int | None = None,
    reading: Reading = AS_IT_IS,
    progress: TextIO | None = None,
) -> Manifest:
    """Make a corpus directory: shards of train and held-out documents, tokenizer and manifest.

    With equal inputs and options the files are equal to the byte, whatever `workers` is. Work in
    progress is in `OUTPUT.partial`, which becomes `output` when all is done. (Remote file systems
    cannot rename a directory: there the manifest, written last, is what makes it a corpus.)

    Args:
      inputs: what `sources` describes.
      tokenizer: gives the ids, and is saved with the corpus.
      output: a directory that does not exist yet or is empty.
      workers: processes that tokenise; see `ordered_map`.
      held_out: share of the documents to hold out, chosen by the hash of their text.
      dedup: whether only the first of documents with the same text is kept.
      shards: number of train shards; None chooses a power of two by the size of the corpus.
      reading: how the inputs are read.
      progress: where to show how it goes.

    Raises:
      InputError: unusable inputs or options, or an output that already holds something.
    """
    check_output(output)
    options = checked_options(inputs, reading, held_out, dedup, shards)
    sources = resolve(inputs)
    documents = itertools.chain.from_iterable(read_source(s, reading) for s in sources)
    batches = grouped(map("\n".join, documents), len, _BATCH)
    dtype = token_dtype(len(tokenizer.pieces))
    meter = _Meter(progress)
    with (
        stage_for(epath.Path(output)) as stage,
        temporary_file(stage) as spool,
        temporary_file(stage) as rows,
    ):
        make = functools.partial(_encoder, tokenizer)
        for index, payload in ordered_map(make, batches, workers):
            index["start"] += spool.tell()
            spool.write(payload)
            rows.write(index.tobytes())
            meter.add(index)
        meter.end()
        spool.flush()
        rows.seek(0)
        index = np.fromfile(rows, INDEX)
        members = assign_shards(index, held_out, dedup, shards)
        infos = {
            split: [
                _write_shard(stage, shard_name(split, i, len(parts)), dtype, index[part], spool)
                for i, part in enumerate(parts)
            ]
            for split, parts in members.items()
        }
        return finish(stage, tokenizer, options, infos, count(index, members))


def checked_options(
    inputs: Sequence[str], reading: Reading, held_out: float, dedup: bool, shards: int | None
) -> dict[str, Any]:
    """The options of a preparation as its manifest records them; InputError if they cannot work."""
    if not 0 <= held_out < 1:
        raise InputError(f"held_out is {held_out}; choose a share from 0 (none) to below 1.")
    if shards is not None and shards < 1:
        raise InputError(f"shards is {shards}; choose 1 or more, or leave it out.")
    return {
        "inputs": list(inputs),
        **dataclasses.asdict(reading),
        "held_out": held_out,
        "dedup": dedup,
        "shards": shards,
    }


def check_output(output: epath.PathLike) -> None:
    """Refuse an output that holds something (InputError)."""
    output = epath.Path(output)
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; choose another output directory.")
    unfinished = is_remote(output) and not (output / MANIFEST).exists()
    if output.is_dir() and not unfinished and any(output.iterdir()):
        held = "a finished corpus" if (output / MANIFEST).exists() else "other files"
        raise InputError(
            f"{output} already holds {held}; choose another output or delete it first."
        )


# ---------------------------------------------------------------- documents to ids


def _encoder(tokenizer: Tokenizer) -> Callable[[list[str]], tuple[np.ndarray, bytes]]:
    encoder = BulkEncoder(tokenizer)
    return lambda documents: encode_documents(documents, encoder)


# ---------------------------------------------------------------- documents to shards


def _write_shard(
    directory: epath.Path, name: str, dtype: np.dtype, rows: np.ndarray, spool: IO[bytes]
) -> ShardInfo:
    with ShardWriter(directory, name, dtype) as writer:
        blocks = np.cumsum(rows["size"]) // _BLOCK
        for part in np.split(rows, np.flatnonzero(np.diff(blocks)) + 1):
            where = zip(part["size"].tolist(), part["start"].tolist(), strict=True)
            records = [os.pread(spool.fileno(), size, start) for size, start in where]
            writer.append_flat(*unpack(part, records, dtype), part["sentences"])
        return writer.close()


def finish(
    directory: epath.Path,
    tokenizer: Tokenizer,
    options: dict[str, Any],
    infos: dict[str, list[ShardInfo]],
    totals: dict[str, int | float],
) -> Manifest:
    """Save the tokenizer and then the manifest, which declares the directory a corpus."""
    fingerprint = tokenizer.fingerprint()
    manifest = Manifest(
        fingerprint, len(tokenizer.pieces), options, infos["train"], infos["heldout"], totals
    )
    tokenizer.save(directory)
    write_manifest(directory, manifest)
    return manifest


# ---------------------------------------------------------------- files


@contextlib.contextmanager
def stage_for(output: epath.Path) -> Iterator[epath.Path]:
    """Where to write what shall be `output`: it appears when the block ends, and only then."""
    if is_remote(output):
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    stage = output.with_name(output.name + _PARTIAL)
    if stage.exists():
        stage.rmtree()  # of a preparation that was killed
    stage.mkdir(parents=True)
    try:
        yield stage
        os.replace(stage, output)
    except BaseException:
        stage.rmtree()
        raise


class _Meter:
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

    def end(self) -> None:
        if self._stream and self._redraws:
            self._show(self._stream)
            self._stream.write("\n")

    def _show(self, stream: TextIO) -> None:
        self._shown = time.monotonic()
        rate = self._pieces / (self._shown - self._begin)
        line = (
            f"{self._documents:,} documents, {self._bytes / 1e6:,.1f} MB of text, "
            f"{self._pieces:,} pieces, {rate:,.0f} pieces/s"
        )
        stream.write(f"\r\x1b[K{line}" if self._redraws else f"{line}\n")
        stream.flush()
