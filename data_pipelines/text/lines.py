"""A text file to lines: decompressed, decoded, line ends of any system.

A file is streamed: a block of it is in memory at a time, and the line being read.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError

_BLOCK = 1 << 16  # bytes read at a time


def read_lines(path: epath.Path, on_error: Callable[[InputError], None]) -> Iterator[str]:
    """Lines of a text file, plain or compressed as its name says (.gz, .xz, .bz2, .zst).

    Args:
      path: the file.
      on_error: gets the complaint of a line that is not UTF-8. If it returns, the line is left out.

    Raises:
      InputError: the file is damaged, or no text by its first bytes.
    """
    offset = 0  # after decompression
    parts: list[bytes] = []  # of the line that the blocks so far have not ended
    for block in _blocks(path):
        head, end, tail = block.rpartition(b"\n")
        if not end:  # a CR may be half of an end, if it is the last
            head, end, tail = block[:-1].rpartition(b"\r")
            tail += block[-1:]
        if end:
            content = b"".join((*parts, head))
            whole = content.removesuffix(b"\r") if end == b"\n" else content
            yield from _decode(path, whole, offset, on_error)
            offset += len(content) + 1
            parts = []
        parts.append(tail)
    yield from _decode(path, b"".join(parts), offset, on_error)


def _decode(
    path: epath.Path, content: bytes, offset: int, on_error: Callable[[InputError], None]
) -> Iterator[str]:
    """The lines of `content`, the last of which has lost its end."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        lines = content.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                yield from _decode(path, line, offset, on_error)
                offset += len(line) + 1
            return
        on_error(
            InputError(
                f"{path}: byte {offset + error.start} is not UTF-8; convert the file to UTF-8 "
                "first."
            )
        )
        return
    if not offset:
        text = text.removeprefix("\ufeff")  # byte order mark
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    yield from text.split("\n")


def _blocks(path: epath.Path) -> Iterator[bytes]:
    new_decompressor = _DECOMPRESSORS.get(path.suffix)
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        if new_decompressor:
            blocks = _decompress(path, blocks, new_decompressor)
        yield from _reject_binary(path, blocks)


def _reject_binary(path: epath.Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, if the first bytes are not those of a format that is no text."""
    begin = b""
    for block in blocks:
        begin += block
        if len(begin) >= _SIGNATURE_BYTES:
            break
    for place, mark, fix in _BINARY_SIGNATURES:
        if begin[place : place + len(mark)] == mark:
            raise InputError(f"{path} is no text: {fix}.")
    yield begin
    begin = block = b""  # it may be large
    yield from blocks


def _decompress(
    path: epath.Path, blocks: Iterable[bytes], new_decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    decompressor = new_decompressor()
    for block in blocks:
        while True:
            if not decompressor:  # compressed files may be concatenated, or padded with zeros
                block = block.lstrip(b"\0")
            if not block:
                break
            decompressor = decompressor or new_decompressor()
            try:
                yield decompressor.decompress(block)
            except Exception as error:  # each library has its own
                raise InputError(f"{path} is damaged ({error}); fetch it again.") from None
            block = b""
            if decompressor.eof:
                block, decompressor = decompressor.unused_data, None
    if decompressor:
        raise InputError(f"{path} is cut short; fetch it again.")


def _zstd_decompressor() -> Any:
    import zstandard

    # Windows of up to 2 GiB, as `zstd --long=31` makes them; what a file needs is what is taken.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


_ARCHIVE = "it is an archive, so unpack it and name the files in it"
_BINARY_SIGNATURES = [  # place in the file, bytes there, what to do
    (257, b"ustar", _ARCHIVE),
    (0, b"PK\x03\x04", _ARCHIVE),
    (0, b"PAR1\x15", "it is Parquet, so give it uncompressed under a name that ends in .parquet"),
    (0, b"ARROW1\0\0", "it is Arrow, so give it uncompressed under a name that ends in .arrow"),
    (0, b"%PDF-", "it is PDF, so extract its text"),
    (0, b"\x1f\x8b", "it is compressed, so let its name end in .gz"),
    (0, b"\xfd7zXZ\0", "it is compressed, so let its name end in .xz"),
    (4, b"1AY&SY", "it is compressed, so let its name end in .bz2"),
    (0, b"\x28\xb5\x2f\xfd", "it is compressed, so let its name end in .zst"),
]
_SIGNATURE_BYTES = max(place + len(mark) for place, mark, _ in _BINARY_SIGNATURES)

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": _zstd_decompressor,
}
