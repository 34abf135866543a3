"""Parallel decompression of bzip2 files of many streams, such as Wikipedia's multistream dumps."""

import bz2
from collections.abc import Iterator
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parallel import thread_map
from data_pipelines.text.lines import max_expansion

_START = b"1AY&SY"  # of the first block, behind the header of a stream: "BZh" and a digit
_HEADER_BYTES = 4
_PART_BYTES = 1 << 20


def read_bz2_streams(path: epath.Path, threads: int) -> Iterator[bytes]:
    """Yield the content of a .bz2 file in blocks; threads decompress streams of up to 1 MiB.

    Longer streams are decompressed in this thread, like other files.

    Raises:
      InputError: the file is damaged.
    """
    last: Any = None  # decompressor of the stream before, which may continue in the next part
    try:
        for part, content, decompressor in thread_map(_decompress, _parts(path), threads):
            if last is None or last.eof:
                if decompressor is None:  # an empty stream, or zeros behind a stream
                    part = part if last is None else part.lstrip(b"\0")
                    decompressor = bz2.BZ2Decompressor()
                    content = _expand(decompressor, part)
                    if not part:
                        continue
                last = decompressor
            elif decompressor is None:
                content = _expand(last, part)
            else:
                raise EOFError
            yield content
            while following := last.unused_data.lstrip(b"\0"):
                last = bz2.BZ2Decompressor()
                yield _expand(last, following)
        if last is None or not last.eof:
            raise EOFError
    except EOFError:
        raise InputError(f"{path}: incomplete. Download it again.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}). Download it again.") from None


def _decompress(part: bytes) -> tuple[bytes, bytes, Any]:
    """Return a part, its content, and its decompressor; None if it continues a stream."""
    if part[_HEADER_BYTES : _HEADER_BYTES + len(_START)] != _START:
        return part, b"", None
    decompressor = bz2.BZ2Decompressor()
    return part, _expand(decompressor, part), decompressor


def _expand(decompressor: bz2.BZ2Decompressor, part: bytes) -> bytes:
    """Return the content of a part; raise ValueError if it is much larger than that of text."""
    content = decompressor.decompress(part, max_expansion(len(part)))
    if not decompressor.eof and not decompressor.needs_input:
        raise ValueError("it expands more than text does")
    return content


def _parts(path: epath.Path) -> Iterator[bytes]:
    """Yield the compressed file, cut at the starts of streams and after `_PART_BYTES`."""
    margin = _HEADER_BYTES + len(_START) - 1  # a start may be cut by the end of a block
    buffer = b""
    with path.open("rb") as file:
        while block := file.read(_PART_BYTES):
            buffer += block
            begin, at = 0, 1 + _HEADER_BYTES
            while (at := buffer.find(_START, at)) >= 0:
                start = at - _HEADER_BYTES
                if buffer[start : start + 3] == b"BZh":
                    yield buffer[begin:start]
                    begin = start
                at += 1
            buffer = buffer[begin:]
            if len(buffer) > _PART_BYTES + margin:
                yield buffer[:-margin]
                buffer = buffer[-margin:]
    yield buffer
