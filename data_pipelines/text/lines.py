"""Lines of text files: decompressed, decoded from UTF-8 or 16, with line ends of any system.

Files are streamed: one block and the current line are in memory.
"""

import bz2
import codecs
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

_LINE_END = re.compile(rb"\r\n|\n|\r")
_LINE_WITH_END = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_BLOCK = 1 << 16  # bytes read at a time
MAX_LINE_MB = 64
MAX_EXPANSION = 300  # beyond 64 MiB; text shrinks to a hundredth at most
_OUTPUT, _SLICE = 1 << 20, 1 << 8  # bytes of output at a time; bytes of input, at most 8 MiB each


def raise_error(error: InputError) -> None:
    """Raise an error of a line; the default `on_error` of `read_lines`."""
    raise error


def read_lines(
    path: epath.Path,
    on_error: Callable[[InputError], None] = raise_error,
    max_line_mb: int = MAX_LINE_MB,
    keep_line_ends: bool = False,
) -> Iterator[str]:
    """Yield the lines of a text file, plain or compressed (.gz, .xz, .bz2, .zst).

    Args:
      path: the file.
      on_error: called with the error of a line that is not UTF-8. If it returns, the line is
        skipped.
      max_line_mb: longest line, which is in memory, in megabytes.
      keep_line_ends: yield the lines with their ends, for formats in which they may be content.

    Raises:
      InputError: the file is damaged, its first bytes are those of a binary format, or a line or
        the compression is too large.
    """
    yield from decode_lines(path, read_blocks(path), on_error, max_line_mb, keep_line_ends)


def decode_lines(
    path: epath.Path,
    blocks: Iterable[bytes],
    on_error: Callable[[InputError], None],
    max_line_mb: int = MAX_LINE_MB,
    keep_line_ends: bool = False,
) -> Iterator[str]:
    """Yield the lines of a file's decompressed blocks; arguments and errors as `read_lines`."""
    offset = size = 0  # in the decompressed file, and of the parts
    parts: list[bytes] = []  # parts of a line whose end is in a later block
    for block in blocks:
        head, end, tail = block.rpartition(b"\n")
        if not end:  # a CR at the end of a block may be half of a CR LF
            head, end, tail = block[:-1].rpartition(b"\r")
            tail += block[-1:]
        if end:
            content = b"".join((*parts, head))
            whole = content.removesuffix(b"\r") if end == b"\n" else content
            line_end = content[len(whole) :] + end if keep_line_ends else None
            yield from _decode(path, whole, line_end, offset, on_error)
            offset += len(content) + 1
            parts, size = [], 0
        parts.append(tail)
        size += len(tail)
        if size > max_line_mb * 1_000_000:
            raise InputError(
                f"{path}: a line has more than {max_line_mb} MB. Split it, or raise --max-line-mb "
                "of `prepare` and `vocab`."
            )
    line_end = b"" if keep_line_ends else None
    yield from _decode(path, b"".join(parts), line_end, offset, on_error)


def check_readable(path: str) -> None:
    """Raise InputError if a compressed file needs a library that is not installed."""
    if path.endswith(".zst"):
        check_installed(path, "zstandard", install="zstandard")


def _decode(
    path: epath.Path,
    content: bytes,
    end: bytes | None,
    offset: int,
    on_error: Callable[[InputError], None],
) -> Iterator[str]:
    """Yield the lines of `content`, whose last line has no line end.

    Args:
      path: the file.
      content: bytes of the file from `offset` on.
      end: end of the last line, to yield lines with their ends; None for lines without.
      offset: number of bytes before `content`.
      on_error: as of `read_lines`.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        begin = 0
        for match in _LINE_END.finditer(content):
            line, line_end = content[begin : match.start()], None if end is None else match[0]
            yield from _decode(path, line, line_end, offset + begin, on_error)
            begin = match.end()
        if begin:
            yield from _decode(path, content[begin:], end, offset + begin, on_error)
            return
        on_error(
            InputError(f"{path}: byte {offset + error.start} is not UTF-8. Convert it to UTF-8.")
        )
        return
    if not offset:
        text = text.removeprefix("\ufeff")  # byte order mark
    if end is not None:
        yield from _LINE_WITH_END.findall(text + end.decode())
        return
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    yield from text.split("\n")


def read_blocks(path: epath.Path) -> Iterator[bytes]:
    """Yield the decompressed content of a text file in blocks; raises as `read_lines`."""
    check_readable(str(path))
    new_decompressor = _DECOMPRESSORS.get(path.suffix)
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        if new_decompressor:
            blocks = _decompress(path, blocks, new_decompressor)
        yield from _reject_binary(path, blocks)


def _reject_binary(path: epath.Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks; raise InputError if the first bytes are those of a binary format."""
    start = b""
    for block in blocks:
        start += block
        if len(start) >= _SIGNATURE_BYTES:
            break
    if path.suffix in (".tgz", ".epub", ".odt"):
        raise InputError(f"{path}: not text. {_ARCHIVE if path.suffix == '.tgz' else _OFFICE}.")
    for offset, signature, fix in _BINARY_SIGNATURES:
        if start[offset : offset + len(signature)] == signature:
            raise InputError(f"{path}: not text. {fix}.")
    if start[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):  # the former starts as UTF-16's
        raise InputError(f"{path}: not UTF-8 but UTF-32. Convert it to UTF-8.")
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # Excel's "Unicode text"
        yield from _recode_utf16(path, itertools.chain([start], blocks))
        return
    # All ASCII characters of UTF-16 and UTF-32 have zeros, which UTF-8 allows.
    if start.count(0) > _MAX_ZERO_FRACTION * len(start):
        raise InputError(
            f"{path}: not UTF-8: UTF-16 or UTF-32 without a byte order mark, or binary. Convert it "
            "to UTF-8."
        )
    yield start
    start = block = b""  # frees the memory: blocks may be large
    yield from blocks


def _recode_utf16(path: epath.Path, blocks: Iterable[bytes]) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(blocks, "utf-16"):
            yield text.encode()
    except UnicodeError as error:
        raise InputError(f"{path}: not UTF-16 ({error}). Convert it to UTF-8.") from None


def _decompress(
    path: epath.Path, blocks: Iterable[bytes], new_decompressor: Callable[[], Any]
) -> Iterator[bytes]:
    decompressor = new_decompressor()
    num_read = num_written = 0
    for block in blocks:
        num_read += len(block)
        while True:
            if not decompressor:  # compressed files may be concatenated, or padded with zeros
                block = block.lstrip(b"\0")
            if not block:
                break
            decompressor = decompressor or new_decompressor()
            content = b"-"
            while (block or content) and not decompressor.eof:  # output may be left over
                try:
                    content, block = _expand(decompressor, block)
                except Exception as error:  # every library has its own error class
                    raise InputError(f"{path}: damaged ({error}). Download it again.") from None
                num_written += len(content)
                if num_written > max_expansion(num_read):
                    raise InputError(
                        f"{path}: expands to more than {MAX_EXPANSION} times its size, which text "
                        "does not. Do not use it, or decompress it yourself."
                    )
                yield content
            if decompressor.eof:
                block, decompressor = decompressor.unused_data + block, None
    if decompressor:
        raise InputError(f"{path}: incomplete. Download it again.")


def _expand(decompressor: Any, block: bytes) -> tuple[bytes, bytes]:
    """Return a part of the content of a block, and what is left of the block."""
    if isinstance(decompressor, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        return decompressor.decompress(block, _OUTPUT), b""  # it keeps what is left
    if isinstance(decompressor, type(zlib.decompressobj())):
        return decompressor.decompress(block, _OUTPUT), decompressor.unconsumed_tail
    return decompressor.decompress(block[:_SLICE]), block[_SLICE:]


def max_expansion(num_bytes: int) -> int:
    """Return the most bytes that compressed text of a size expands to."""
    return (1 << 26) + MAX_EXPANSION * num_bytes


def _zstd_decompressor() -> Any:
    import zstandard

    # `zstd --long=31` writes windows of 2 GiB; memory is only taken as the file needs it.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


_ARCHIVE = "Unpack the archive and name the files in it"
_OFFICE = "Save the sheet as CSV UTF-8, or the document as plain text"
_BINARY_SIGNATURES = [  # (offset in the file, bytes there, fix)
    (257, b"ustar", _ARCHIVE),
    (30, b"[Content_Types].xml", _OFFICE),
    (0, b"\xd0\xcf\x11\xe0", _OFFICE),
    (0, b"PK\x03\x04", _ARCHIVE),
    (0, b"PAR1\x15", "Give Parquet uncompressed, with a name that ends in .parquet"),
    (0, b"ARROW1\0\0", "Give Arrow uncompressed, with a name that ends in .arrow"),
    (0, b"%PDF-", "Extract the text of the PDF"),
    (0, b"{\\rtf", "Save it as plain text"),
    (0, b"7z\xbc\xaf\x27\x1c", "Unpack it with 7z x and name the files in it"),
    (0, b"GGUF", "It is a model of llama.cpp. Name a file of text"),
    (0, b"\x93NUMPY", "It is an array of NumPy. Write its texts, one a line"),
    (0, b"\x89HDF", "Write the texts of the HDF5 file, one a line"),
    (0, b"\x80\x04\x95", "Load it with Python's pickle and write its texts, one a line"),
    (0, b"\x1f\x8b", "Let the name of the compressed file end in .gz"),
    (0, b"\xfd7zXZ\0", "Let the name of the compressed file end in .xz"),
    (4, b"1AY&SY", "Let the name of the compressed file end in .bz2"),
    (0, b"\x28\xb5\x2f\xfd", "Let the name of the compressed file end in .zst"),
]
_MAX_ZERO_FRACTION = 0.1  # of the first bytes of a text
_SIGNATURE_BYTES = max(offset + len(signature) for offset, signature, _ in _BINARY_SIGNATURES)

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".zst": _zstd_decompressor,
}
