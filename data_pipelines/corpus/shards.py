"""The shard format: token ids of whole documents in flat arrays, described by a manifest.

A corpus directory contains shards (`train-00003-of-00016.tokens`, `eval-00000-of-00001.tokens`),
the tokenizer's files and `manifest.json`. The manifest is written last: a directory without one is
not a corpus. A shard is one little-endian file that can be memory-mapped:

    offset  type                 content
    0       8 bytes              magic, b"BERTJAXS"
    8       uint32               version of the layout: 1, or 2 with entity spans
    12      uint32               bytes per token id, 2 or 4
    16      3 x int64            D documents, S sentences, N tokens
    40      int64 [D+1]          document d has sentences documents[d] .. documents[d+1] - 1
    ...     int64 [S+1]          sentence s has tokens sentences[s] .. sentences[s+1] - 1
    ...     uint16|uint32 [N]    token ids, without special tokens

Layout 2 has between sentences and tokens:

    ...     int64                number E of entity spans
    ...     int64 [E, 2]         span e has tokens spans[e, 0] .. spans[e, 1] - 1, ascending
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shlex
import struct
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text, is_remote, member_path
from data_pipelines.schema import check_schema, read_json_object

MANIFEST = "manifest.json"
CORPUS_VERSION = 3
MAX_PAIR_LENGTH = "max_pair_length"
"""Option in the manifest of a corpus of pairs: tokens of the longest, with special tokens."""
SPANS = "spans"
"""Option in the manifest of a corpus with entity spans: the field of the input with them."""
_LAYOUT, _SPAN_LAYOUT = 1, 2
_MAGIC = b"BERTJAXS"
_HEADER = struct.Struct("<8sIIqqq")
_BLOCK = 1 << 20  # bytes read or written at a time, so that memory does not grow with a shard
_FIX = "Prepare the corpus again."
_SHARD = {"name": str, "documents": int, "sentences": int, "tokens": int, "bytes": int}
_SHARD |= {"checksum": str}
_SCHEMA = {
    "tokenizer_fingerprint": str,
    "vocab_size": int,
    "options": {"inputs?": [str], f"{MAX_PAIR_LENGTH}?": int, f"{SPANS}?": str},
    "train_shards": [_SHARD],
    "eval_shards": [_SHARD],
    "totals": {str: float},
}


@dataclasses.dataclass(frozen=True)
class Shard:
    """Documents of one shard. A document is a run of sentences, a sentence a run of tokens."""

    tokens: np.ndarray  # uint16 or uint32 [N]
    sentences: np.ndarray  # int64 [S+1], offsets into tokens, ascending
    documents: np.ndarray  # int64 [D+1], offsets into sentences, ascending
    spans: np.ndarray = dataclasses.field(  # int64 [E, 2], entity spans: first token and end
        default_factory=lambda: np.zeros((0, 2), np.int64)
    )


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """The manifest's record of one shard: its counts, and size and checksum to detect damage."""

    name: str  # file name within the corpus directory
    documents: int
    sentences: int
    tokens: int
    bytes: int  # size of the file
    checksum: str  # CRC-32 of the whole file, eight hexadecimal digits


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a finished corpus: its tokenizer, options, shards and total counts."""

    tokenizer_fingerprint: str
    vocab_size: int
    options: dict[str, Any]
    train_shards: list[ShardInfo]
    eval_shards: list[ShardInfo]
    totals: dict[str, int | float]
    version: int = CORPUS_VERSION

    def digest(self) -> str:
        """Return a hex digest of the content: equal if tokenizer and shards are equal."""
        shards = [dataclasses.astuple(info) for info in (*self.train_shards, *self.eval_shards)]
        content = json.dumps([self.tokenizer_fingerprint, self.vocab_size, shards])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def shard_name(split: str, index: int, count: int) -> str:
    """Return the file name of shard `index` of `count` in `split` ("train" or "eval")."""
    return f"{split}-{index:05d}-of-{count:05d}.tokens"


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of stored ids: uint16 below 65,536 tokens, else uint32."""
    return np.dtype("<u2" if vocab_size < 1 << 16 else "<u4")


class ShardWriter:
    """A writer of one shard, a context manager.

    Offsets and tokens are appended to temporary files beside the shard, so that memory does not
    grow with the shard. These files are open only during an append, so that thousands of writers
    can exist. The shard itself appears with `close`.

    Args:
      directory: the corpus directory.
      name: file name of the shard.
      dtype: dtype of the ids.
      has_spans: the corpus has entity spans.
    """

    def __init__(
        self, directory: epath.PathLike, name: str, dtype: np.dtype, has_spans: bool = False
    ) -> None:
        self._path = epath.Path(directory) / name
        self._dtype, self._has_spans = dtype, has_spans
        self._counts = [0, 0, 0, 0]  # documents, sentences, spans, tokens
        self._temporary = contextlib.ExitStack()
        local_directory = os.fspath(directory)
        if is_remote(directory):
            local_directory = self._temporary.enter_context(tempfile.TemporaryDirectory())
        self._parts = [pathlib.Path(local_directory) / f".{name}.{i}" for i in range(4)]
        for part, begin in zip(self._parts, (bytes(8), bytes(8), b"", b""), strict=True):
            part.write_bytes(begin)
            self._temporary.callback(part.unlink, missing_ok=True)

    def append(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        sentences: np.ndarray,
        spans: np.ndarray | None = None,
    ) -> None:
        """Append documents.

        Args:
          tokens: ids of all documents [n].
          lengths: tokens of each sentence [s], at least 1, with sum n.
          sentences: sentences of each document [d], at least 1, with sum s.
          spans: first token and end of each entity span [e, 2], ascending.
        """
        _, sentences_before, _, tokens_before = self._counts
        spans = np.zeros((0, 2), np.int64) if spans is None else spans
        arrays = (
            (np.cumsum(sentences) + sentences_before).astype("<i8"),
            (np.cumsum(lengths) + tokens_before).astype("<i8"),
            (spans + tokens_before).astype("<i8"),
            tokens.astype(self._dtype, copy=False),
        )
        for i, (part, array) in enumerate(zip(self._parts, arrays, strict=True)):
            with part.open("ab") as file:
                file.write(array.tobytes())
            self._counts[i] += len(array)

    def close(self) -> ShardInfo:
        """Write the shard and return its record for the manifest."""
        documents, sentences, spans, tokens = self._counts
        layout = _SPAN_LAYOUT if self._has_spans else _LAYOUT
        counts = documents, sentences, tokens
        header = _HEADER.pack(_MAGIC, layout, self._dtype.itemsize, *counts)
        blocks = [_file_blocks(part) for part in self._parts]
        blocks.insert(2, iter([struct.pack("<q", spans)] if self._has_spans else []))
        size = checksum = 0
        with self._temporary, self._path.open("wb") as file:
            for block in itertools.chain([header], *blocks):
                file.write(block)
                size += len(block)
                checksum = zlib.crc32(block, checksum)
        return ShardInfo(self._path.name, *counts, size, f"{checksum:08x}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.close()


def _file_blocks(path: epath.PathLike) -> Iterator[bytes]:
    with epath.Path(path).open("rb") as file:
        yield from iter(lambda: file.read(_BLOCK), b"")


def read_shard(directory: epath.PathLike, info: ShardInfo) -> Shard:
    """Verify and open one shard. Local files are memory-mapped, remote files read into memory.

    Args:
      directory: the corpus directory.
      info: the manifest's record of the shard.

    Raises:
      InputError: the file is missing or differs from its record.
    """
    directory = epath.Path(directory)
    path = member_path(directory, info.name, directory / MANIFEST)
    if not path.exists():
        raise InputError(f"{path}: missing, but listed in the manifest. {_FIX}")
    if (size := path.stat().length) != info.bytes:
        raise InputError(
            f"{path}: damaged, {size:,} bytes instead of {info.bytes:,} as in the manifest. {_FIX}"
        )
    checksum = 0
    for block in _file_blocks(path):
        checksum = zlib.crc32(block, checksum)
    if f"{checksum:08x}" != info.checksum:
        raise InputError(
            f"{path}: damaged, checksum {checksum:08x} instead of {info.checksum} as in the "
            f"manifest. {_FIX}"
        )
    if size < _HEADER.size:
        raise InputError(f"{path}: too short for its header. {_FIX}")
    content = (
        np.frombuffer(path.read_bytes(), np.uint8)
        if is_remote(path)
        else np.asarray(np.memmap(path, np.uint8, mode="r"))
    )
    counts = info.documents, info.sentences, info.tokens
    magic, layout, itemsize, *header_counts = _HEADER.unpack(content[: _HEADER.size].tobytes())
    layouts = _LAYOUT, _SPAN_LAYOUT
    if (magic, *header_counts) != (_MAGIC, *counts) or layout not in layouts:
        raise InputError(f"{path}: header differs from the manifest. {_FIX}")
    documents_start = _HEADER.size
    sentences_start = documents_start + 8 * (info.documents + 1)
    spans_start = tokens_start = sentences_start + 8 * (info.sentences + 1)
    if layout == _SPAN_LAYOUT:
        spans_start += 8
        num_spans = int.from_bytes(content[spans_start - 8 : spans_start].tobytes(), "little")
        tokens_start = spans_start + 16 * num_spans
    sizes = tokens_start - _HEADER.size + itemsize * info.tokens
    if itemsize not in (2, 4) or min(counts) < 0 or len(content) != _HEADER.size + sizes:
        raise InputError(f"{path}: its size is not that of its header. {_FIX}")
    sentences_end = sentences_start + 8 * (info.sentences + 1)
    return Shard(
        tokens=content[tokens_start:].view(f"<u{itemsize}"),
        sentences=content[sentences_start:sentences_end].view("<i8"),
        documents=content[documents_start:sentences_start].view("<i8"),
        spans=content[spans_start:tokens_start].view("<i8").reshape(-1, 2),
    )


def write_manifest(directory: epath.PathLike, manifest: Manifest) -> None:
    """Write the manifest atomically, which makes `directory` a finished corpus."""
    # ASCII, as UTF-8 has no bytes of names of files that are not UTF-8.
    content = json.dumps(dataclasses.asdict(manifest), indent=1)
    atomic_write_text(epath.Path(directory) / MANIFEST, content + "\n")


def read_manifest(directory: epath.PathLike) -> Manifest:
    """Read the manifest of a finished corpus.

    Raises:
      InputError: the directory is not a finished corpus, or its version differs.
    """
    path = epath.Path(directory) / MANIFEST
    if not path.exists():
        problem = "not a finished corpus" if path.parent.is_dir() else "does not exist"
        raise InputError(
            f"{path.parent}: {problem}, {MANIFEST} is missing. Run `bertjax prepare --output "
            f"{shlex.quote(str(path.parent))}`."
        )
    content = read_json_object(path, {"version": int}, _FIX)
    if (version := content["version"]) != CORPUS_VERSION:
        raise InputError(
            f"{path}: version={version}, but this program reads version {CORPUS_VERSION}. {_FIX}"
        )
    check_schema(f"{path}: ", content, _SCHEMA, _FIX)
    fields = {field.name: content[field.name] for field in dataclasses.fields(Manifest)}
    for name in ("train_shards", "eval_shards"):
        fields[name] = [ShardInfo(**{key: info[key] for key in _SHARD}) for info in fields[name]]
    return Manifest(**fields)
