"""The shard format: token ids of whole documents, laid out flat, with a manifest beside them.

A corpus directory holds shards (`train-00003-of-00016.tokens`, `heldout-00000-of-00001.tokens`),
the tokenizer's files and `manifest.json`. The manifest is written last: a directory without one is
not a corpus. A shard is one little-endian file that can be memory-mapped as it stands:

    offset  type                 what
    0       8 bytes              magic, b"BERTJAXS"
    8       uint32               version of the layout, 1
    12      uint32               bytes of a token id, 2 or 4
    16      3 x int64            D documents, S sentences, N tokens
    40      int64 [D+1]          document d owns sentences [documents[d], documents[d+1])
    ...     int64 [S+1]          sentence s owns tokens [sentences[s], sentences[s+1])
    ...     uint16|uint32 [N]    token ids, no special pieces among them
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, Self

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_text, is_remote

MANIFEST = "manifest.json"
CORPUS_VERSION = 3
_LAYOUT = 1
_MAGIC = b"BERTJAXS"
_HEADER = struct.Struct("<8sIIqqq")
_BLOCK = 1 << 20  # bytes read or written at a time: what keeps memory flat
_FIX = "prepare the corpus again"


@dataclasses.dataclass(frozen=True)
class Shard:
    """Documents of one shard. A document is a run of sentences, a sentence a run of tokens."""

    tokens: np.ndarray  # uint16 or uint32 [N]
    sentences: np.ndarray  # int64 [S+1], offsets into tokens, rising
    documents: np.ndarray  # int64 [D+1], offsets into sentences, rising


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """What the manifest says of one shard: enough to plan with it and to notice damage."""

    name: str  # file name within the corpus directory
    documents: int
    sentences: int
    tokens: int
    bytes: int  # size of the file
    checksum: str  # CRC-32 of the whole file, eight hexadecimal digits


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A finished corpus. `options` is how it was made, `totals` is what was counted meanwhile."""

    tokenizer_fingerprint: str
    vocab_size: int
    options: dict[str, Any]
    train_shards: list[ShardInfo]
    eval_shards: list[ShardInfo]
    totals: dict[str, int | float]
    version: int = CORPUS_VERSION

    def digest(self) -> str:
        """Hex digest of the corpus's content: equal when tokenizer and shards are equal."""
        shards = [dataclasses.astuple(info) for info in (*self.train_shards, *self.eval_shards)]
        content = json.dumps([self.tokenizer_fingerprint, self.vocab_size, shards])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def shard_name(split: str, index: int, count: int) -> str:
    """File name of shard `index` of `count` in `split` ("train" or "heldout")."""
    return f"{split}-{index:05d}-of-{count:05d}.tokens"


def token_dtype(vocab_size: int) -> np.dtype:
    """The type token ids are stored in: uint16 below 65,536 pieces, uint32 from there on."""
    return np.dtype("<u2" if vocab_size < 1 << 16 else "<u4")


class ShardWriter:
    """Writes one shard; use as a context manager, or call `close`.

    Offsets and tokens wait in files beside the shard until `close` knows how many there are, so
    memory does not grow with the shard; those files are open only while something is added, so that
    there may be thousands of writers. Nothing named `name` exists before `close`.
    """

    def __init__(self, directory: epath.PathLike, name: str, dtype: np.dtype) -> None:
        self._path = epath.Path(directory) / name
        self._dtype = dtype
        self._counts = [0, 0, 0]  # documents, sentences, tokens
        self._temporary = contextlib.ExitStack()
        beside = os.fspath(directory)
        if is_remote(directory):
            beside = self._temporary.enter_context(tempfile.TemporaryDirectory())
        self._parts = [pathlib.Path(beside) / f".{name}.{i}" for i in range(3)]
        for part, begin in zip(self._parts, (bytes(8), bytes(8), b""), strict=True):
            part.write_bytes(begin)
            self._temporary.callback(part.unlink, missing_ok=True)

    def append(self, document: Sequence[Sequence[int]]) -> None:
        """Add a document: its sentences, each a sequence of token ids, none of them empty."""
        lengths = np.array([len(sentence) for sentence in document], np.int64)
        tokens = [token for sentence in document for token in sentence]
        self.append_flat(np.array(tokens, self._dtype), lengths, np.array([len(lengths)]))

    def append_flat(self, tokens: np.ndarray, lengths: np.ndarray, sentences: np.ndarray) -> None:
        """Add documents.

        Args:
          tokens: their ids [n].
          lengths: tokens [s] of each sentence, summing to n.
          sentences: how many [d] each document has, summing to s.
        """
        if not (lengths.all() and sentences.all()) or (lengths.sum(), sentences.sum()) != (
            len(tokens),
            len(lengths),
        ):
            raise ValueError(
                f"{self._path.name}: {len(tokens)} tokens do not make sentences of "
                f"{lengths.tolist()} in documents of {sentences.tolist()}; give every document at "
                "least one sentence, and every sentence at least one token."
            )
        _, sentences_before, tokens_before = self._counts
        arrays = (
            (np.cumsum(sentences) + sentences_before).astype("<i8"),
            (np.cumsum(lengths) + tokens_before).astype("<i8"),
            tokens.astype(self._dtype, copy=False),
        )
        for i, (part, array) in enumerate(zip(self._parts, arrays, strict=True)):
            with part.open("ab") as file:
                file.write(array.tobytes())
            self._counts[i] += len(array)

    def close(self) -> ShardInfo:
        """Write the file and return what the manifest needs to know of it."""
        header = _HEADER.pack(_MAGIC, _LAYOUT, self._dtype.itemsize, *self._counts)
        size = checksum = 0
        with self._temporary, self._path.open("wb") as file:
            for block in itertools.chain([header], *map(_blocks_of, self._parts)):
                file.write(block)
                size += len(block)
                checksum = zlib.crc32(block, checksum)
        documents, sentences, tokens = self._counts
        return ShardInfo(self._path.name, documents, sentences, tokens, size, f"{checksum:08x}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.close()


def _blocks_of(path: pathlib.Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _blocks(file)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_BLOCK), b"")


def read_shard(directory: epath.PathLike, info: ShardInfo, verify: bool = True) -> Shard:
    """Open one shard; `verify` reads it once and compares its checksum with the manifest's.

    Local files are memory-mapped, others read whole.

    Raises:
      InputError: the file is missing, or is not what the manifest says.
    """
    path = epath.Path(directory) / info.name
    if not path.exists():
        raise InputError(f"{path} is missing although the manifest lists it; {_FIX}.")
    if (size := path.stat().length) != info.bytes:
        raise InputError(
            f"{path} is damaged: it has {size:,} bytes where the manifest says "
            f"{info.bytes:,}; {_FIX}."
        )
    if verify and (checksum := _checksum(path)) != info.checksum:
        raise InputError(
            f"{path} is damaged: its checksum is {checksum} where the manifest says "
            f"{info.checksum}; {_FIX}."
        )
    content = (
        np.frombuffer(path.read_bytes(), np.uint8)
        if is_remote(path)
        else np.asarray(np.memmap(path, np.uint8, mode="r"))
    )
    counts = info.documents, info.sentences, info.tokens
    magic, layout, itemsize, *found_counts = _HEADER.unpack(content[: _HEADER.size].tobytes())
    if (magic, layout, *found_counts) != (_MAGIC, _LAYOUT, *counts):
        raise InputError(f"{path} does not start as the manifest says; {_FIX}.")
    a = _HEADER.size
    b = a + 8 * (info.documents + 1)
    c = b + 8 * (info.sentences + 1)
    return Shard(
        tokens=content[c:].view(f"<u{itemsize}"),
        sentences=content[b:c].view("<i8"),
        documents=content[a:b].view("<i8"),
    )


def _checksum(path: epath.Path) -> str:
    checksum = 0
    with path.open("rb") as file:
        for block in _blocks(file):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def write_manifest(directory: epath.PathLike, manifest: Manifest) -> None:
    """Declare `directory` a finished corpus: the manifest appears whole or not at all."""
    path = epath.Path(directory) / MANIFEST
    content = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False)
    atomic_write_text(path, content + "\n")


def read_manifest(directory: epath.PathLike) -> Manifest:
    """The manifest of a finished corpus.

    Raises:
      InputError: the directory is not a finished corpus, or one of another version.
    """
    path = epath.Path(directory) / MANIFEST
    if not path.exists():
        state = "is not a finished corpus" if path.parent.is_dir() else "does not exist"
        raise InputError(
            f"{path.parent} {state}: there is no {MANIFEST} in it; "
            f"run `bertjax prepare --output {path.parent}`."
        )
    try:
        content = parse_json(path.read_text())
        version = content["version"]
        if version == CORPUS_VERSION:
            train_shards, eval_shards = (
                [ShardInfo(**info) for info in content.pop(name)]
                for name in ("train_shards", "eval_shards")
            )
            return Manifest(train_shards=train_shards, eval_shards=eval_shards, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); {_FIX}.") from error
    raise InputError(
        f"{path}: version={version}, but this program reads version {CORPUS_VERSION}. Prepare the corpus again."
    )
