"""Inputs to documents. A document is a list of lines: stripped, none of them empty.

An input is one of
- a path or a glob pattern, local or `gs://`: plain text with a blank line between documents, or
  JSON lines, one document in the text field of each, which are told by their name (`.json`,
  `.jsonl`, `.ndjson`) or by a first line that is a JSON object; either of them as it is or
  compressed (`.gz`, `.xz`, `.bz2`, `.zst`). What is neither is refused by its first bytes;
- `tfds:NAME/CONFIG`: the text feature of a TensorFlow Datasets builder's train split;
- `builtin`: the English prose that comes with Python and its packages (see `builtin.py`).

All is streamed: of a file, a block is in memory at a time, and the document being read.
"""

import bz2
import collections
import glob
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote
from data_pipelines.text import builtin

BUILTIN = "builtin"
TFDS = "tfds:"
_BLOCK = 1 << 16  # bytes read at a time
_WILDCARD = re.compile(r"[*?\[]")


def read_documents(inputs: Sequence[str], text_field: str = "text") -> Iterator[list[str]]:
    """Documents of all inputs, in the order of the inputs, files of a pattern by name.

    Raises:
      InputError: an input does not exist, is damaged, or is not UTF-8.
    """
    for source in resolve(inputs):
        yield from read_source(source, text_field)


def resolve(inputs: Sequence[str]) -> list[str]:
    """Inputs with the patterns replaced by the files they match; all of them exist."""
    sources: list[str] = []
    for given in inputs:
        special = given == BUILTIN or given.startswith(TFDS)
        sources += [given] if special else map(str, _files(given))
    for source, times in collections.Counter(sources).items():
        if times > 1:
            raise InputError(f"{source} is an input {times} times; name it once.")
    if not sources:
        raise InputError("there is no input; name a text file, tfds:NAME or builtin.")
    return sources


def _files(given: str) -> list[epath.Path]:
    path = epath.Path(given)
    if path.is_dir():
        raise InputError(f"{given} is a directory; name the files in it, as in '{given}/*.txt'.")
    if path.exists():
        return [path]
    if not _WILDCARD.search(given):
        raise InputError(f"there is no file {given}; name a file that exists.")
    if is_remote(path):
        fixed = next(parent for parent in path.parents if not _WILDCARD.search(str(parent)))
        matches: Iterable[epath.Path] = fixed.glob(str(path.relative_to(fixed)))
    else:
        matches = map(epath.Path, glob.glob(given, recursive=True))
    files = sorted(match for match in matches if not match.is_dir())
    if not files:
        raise InputError(f"no file matches {given}; mend the pattern.")
    return files


def read_source(source: str, text_field: str = "text") -> Iterator[list[str]]:
    """Documents of one input as `resolve` names it; raises what `read_documents` raises."""
    if source == BUILTIN:
        return builtin.documents()
    if source.startswith(TFDS):
        return _tfds_documents(source, text_field)
    path = epath.Path(source)
    first, lines = _peeked(_lines(path))
    if any(suffix in (".json", ".jsonl", ".ndjson") for suffix in path.suffixes) or _is_object(
        first
    ):
        return _json_documents(path, lines, text_field)
    return _text_documents(lines)


def _peeked(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, and all lines."""
    before: list[str] = []
    for line in lines:
        before.append(line)
        if line.strip():
            break
    return (before[-1] if before else ""), itertools.chain(before, lines)


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and bool(json.loads(line))
    except ValueError:
        return False


def _text_documents(lines: Iterator[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in lines:
        if line := line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _json_documents(path: epath.Path, lines: Iterator[str], field: str) -> Iterator[list[str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where} is not JSON ({error}); mend the line.") from None
        yield from _field_document(where, record, field)


def _tfds_documents(source: str, field: str) -> Iterator[list[str]]:
    for number, record in enumerate(tfds_records(source, "train")):
        yield from _field_document(f"{source}: record {number}", record, field)


def tfds_records(source: str, split: str) -> Iterator[dict[str, Any]]:
    """The records of a split of `tfds:NAME/CONFIG`, always in the same order; downloads it first.

    Raises:
      InputError: there is no such data set, or it has no such split.
    """
    import tensorflow_datasets as tfds  # takes seconds to import

    name = source.removeprefix(TFDS)
    try:
        builder = tfds.builder(name)
    except ValueError:
        raise InputError(
            f"TensorFlow Datasets has no {name}; write NAME/CONFIG as its catalogue does."
        ) from None
    builder.download_and_prepare()
    if split.partition("[")[0] not in builder.info.splits:
        splits = ", ".join(builder.info.splits) or "none"
        raise InputError(f"{source} has no split {split}, but {splits}; choose another data set.")
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        records = builder.as_dataset(split=split, shuffle_files=False, read_config=in_order)
    except ValueError as error:
        raise InputError(f"{source} has no part {split} ({error}); mend it.") from None
    yield from tfds.as_numpy(records)


def _field_document(where: str, record: Any, field: str) -> Iterator[list[str]]:
    """The document in one field of a record; a blank line in it separates paragraphs only."""
    if not isinstance(record, dict):
        raise InputError(f"{where} is not an object with a field '{field}'; mend it.")
    if field not in record:
        names = ", ".join(sorted(record)) or "none"
        raise InputError(f"{where} has no field '{field}', but {names}; choose with --field.")
    text = record[field]
    try:
        if isinstance(text, bytes):
            text = text.decode()
        else:
            text.encode()
    except AttributeError:
        kind = type(text).__name__
        raise InputError(f"{where}: field '{field}' is {kind}, not text; mend it.") from None
    except UnicodeError as error:
        raise InputError(f"{where}: field '{field}' is not Unicode ({error}); mend it.") from None
    if document := [line for part in text.split("\n") if (line := part.strip())]:
        yield document


def _lines(path: epath.Path) -> Iterator[str]:
    """Lines of a text file, decompressed and decoded; bytes are counted after decompression."""
    offset = 0
    parts: list[bytes] = []  # of the line that the blocks so far have not ended
    for block in _blocks(path):
        head, newline, tail = block.rpartition(b"\n")
        if newline:
            content = b"".join((*parts, head))
            yield from _decode(path, content, offset).split("\n")
            offset += len(content) + 1
            parts = []
        parts.append(tail)
    yield _decode(path, b"".join(parts), offset)


def _decode(path: epath.Path, content: bytes, offset: int) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {offset + error.start} is not UTF-8; convert the file to UTF-8 first."
        ) from None
    return text if offset else text.removeprefix("\ufeff")  # byte order mark


def _blocks(path: epath.Path) -> Iterator[bytes]:
    new_decompressor = _DECOMPRESSORS.get(path.suffix)
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        if not new_decompressor:
            yield from _text_alone(path, blocks)
            return
        yield from _text_alone(path, _decompressed(path, blocks, new_decompressor))


def _text_alone(path: epath.Path, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks, if the first bytes are not those of a format that is no text."""
    first = True
    for block in blocks:
        if first and block:
            first = False
            for place, mark, cure in _NO_TEXT:
                if block[place : place + len(mark)] == mark:
                    raise InputError(f"{path} is no text: {cure}.")
        yield block


def _decompressed(
    path: epath.Path, blocks: Iterator[bytes], new_decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    decompressor = new_decompressor()
    for block in blocks:
        while block:
            decompressor = decompressor or new_decompressor()
            try:
                yield decompressor.decompress(block)
            except Exception as error:  # each library has its own
                raise InputError(f"{path} is damaged ({error}); fetch it again.") from None
            block = b""
            if decompressor.eof:  # compressed files may be concatenated, or padded with zeros
                block, decompressor = decompressor.unused_data.lstrip(b"\0"), None
    if decompressor:
        raise InputError(f"{path} is cut short; fetch it again.")


def _zstd_decompressor() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


_ARCHIVE = "it is an archive, so unpack it and name the files in it"
_NO_TEXT = [  # place in the file, bytes there, what to do
    (257, b"ustar", _ARCHIVE),
    (0, b"PK\x03\x04", _ARCHIVE),
    (0, b"PAR1\x15", "it is Parquet, so write its text column as JSON lines"),
    (0, b"ARROW1\0\0", "it is Arrow, so write its text column as JSON lines"),
    (0, b"%PDF-", "it is PDF, so extract its text"),
    (0, b"\x1f\x8b", "it is compressed, so let its name end in .gz"),
    (0, b"\xfd7zXZ\0", "it is compressed, so let its name end in .xz"),
    (4, b"1AY&SY", "it is compressed, so let its name end in .bz2"),
    (0, b"\x28\xb5\x2f\xfd", "it is compressed, so let its name end in .zst"),
]

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": _zstd_decompressor,
}
