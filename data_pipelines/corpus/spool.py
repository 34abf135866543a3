"""Tokenised documents on the disk, in the order of the input, until it is known which go where.

A spool is a directory of segments. Each has the payload and the index of consecutive documents (see
`documents.INDEX`), and at last a file that says how far in the input it reaches, with the sizes and
checksums of the other two: if they are so, the segment is complete. A preparation that was killed
goes on behind the complete segments that it begins with.
"""

import io
import json
import pathlib
import shutil
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_pipelines.paths import atomic_write

_IDENTITY = "identity.json"
_FILE_KINDS = ("payload", "index")
_SEGMENT_BYTES = 1 << 24  # bytes of text, about: what is lost in a kill, and held at once


class Position(NamedTuple):
    """Where in the input: so many documents of source number `source`, and all before it."""

    source: int = 0
    documents: int = 0


class Spool:
    """Segments in a directory; those that another input or other options made are deleted.

    So are those from the first damaged one on.

    Args:
      directory: made if it does not exist.
      identity: equal where the same documents would be written.
      dtype: of the index.

    Attributes:
      position: how far in the input the complete segments reach.
    """

    def __init__(self, directory: pathlib.Path, identity: str, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._directory = directory
        mark = directory / _IDENTITY
        if not mark.exists() or mark.read_text() != identity:
            self.delete()
            directory.mkdir(parents=True)
            _write(mark, identity.encode())
        self._count = 0
        self.position = Position()
        while position := self._read_segment_end(self._count):
            self.position = position
            self._count += 1
        for path in sorted(directory.glob("[0-9]*")):
            if int(path.name.partition(".")[0]) >= self._count:
                path.unlink()
        self._start_segment()

    def append(self, index: np.ndarray, payload: bytes, position: Position) -> None:
        """Adds documents, `position` being where they end; completes the segment if it is large."""
        index["start"] += self._payload.tell()
        self._payload.write(payload)
        self._index.write(index.tobytes())
        self._next_position = position
        self._bytes += int(index["bytes"].sum())
        if self._bytes >= _SEGMENT_BYTES:
            self.commit_segment()

    def commit_segment(self) -> None:
        """Makes sure that what was added stays; called at the end, for the last segment."""
        if self._next_position == self.position:
            return
        sums = []
        for kind, buffer in zip(_FILE_KINDS, (self._payload, self._index), strict=True):
            content = buffer.getbuffer()
            _write(self._path(self._count, kind), content)
            sums.append(_size_and_crc(content))
        _write(self._path(self._count, "json"), json.dumps([self._next_position, sums]).encode())
        self.position = self._next_position
        self._count += 1
        self._start_segment()

    def delete(self) -> None:
        """Deletes the directory; first what would have another try believe in the rest."""
        (self._directory / _IDENTITY).unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def indexes(self) -> Iterator[np.ndarray]:
        """The index of each complete segment, in order."""
        for segment in range(self._count):
            yield np.fromfile(self._path(segment, "index"), self._dtype)

    def payloads(self) -> Iterator[memoryview]:
        """What the rows of each complete segment's index point into."""
        for segment in range(self._count):
            yield memoryview(self._path(segment, "payload").read_bytes())

    def _read_segment_end(self, segment: int) -> Position | None:
        """How far in the input a segment reaches; None if it is not complete."""
        try:
            position, sums = json.loads(self._path(segment, "json").read_text())
            found = [_size_and_crc(self._path(segment, kind).read_bytes()) for kind in _FILE_KINDS]
            return Position(*position) if sums == found else None
        except (OSError, ValueError, TypeError):
            return None

    def _start_segment(self) -> None:
        self._payload, self._index, self._bytes = io.BytesIO(), io.BytesIO(), 0
        self._next_position = self.position

    def _path(self, segment: int, kind: str) -> pathlib.Path:
        return self._directory / f"{segment:06d}.{kind}"


def _size_and_crc(content: bytes | memoryview) -> list[int]:
    """Size and CRC-32."""
    return [len(content), zlib.crc32(content)]


def _write(path: pathlib.Path, content: bytes | memoryview) -> None:
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(content)
