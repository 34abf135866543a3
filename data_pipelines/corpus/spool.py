"""Tokenized documents on disk, in input order, until they are assigned to shards.

A spool is a directory of segments. A segment has the payload and the index of consecutive documents
(see `documents.INDEX`), and a JSON file, written last. The JSON file has the input position at the
end of the segment, and size and checksum of the other two files. If they match, the segment is
complete. An interrupted preparation resumes after the leading complete segments of unchanged
sources.
"""

import io
import itertools
import json
import operator
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from data_pipelines.paths import atomic_write_bytes, atomic_write_text

_IDENTITY = "identity.json"
_FILE_KINDS = ("payload", "index")
_SEGMENT_BYTES = 1 << 24  # of text, about: lost in a kill, and held in memory


class Position(NamedTuple):
    """A position in the input: `documents` documents of source `source`, and all sources before."""

    source: int = 0
    documents: int = 0


class Spool:
    """Segments in a directory.

    Opening deletes segments made with other options or a larger fraction of bad records, and all
    from the first one that is damaged or has documents of a source that changed.

    Args:
      directory: created if it does not exist.
      options: describes the options; equal if a source would have the same documents.
      sources: describes each source, as JSON; equal if the source is unchanged.
      dtype: dtype of the index.
      max_bad_fraction: maximal fraction of bad records of a source. Sources with few enough for a
        smaller fraction are kept.

    Attributes:
      position: input position at the end of the complete segments.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        options: str,
        sources: Sequence[Any],
        dtype: np.dtype,
        max_bad_fraction: float = 0.0,
    ) -> None:
        self._dtype = dtype
        self._directory = directory
        previous_options, previous_fraction, previous_sources = self._read_identity()
        if previous_options != options or previous_fraction > max_bad_fraction:
            self.delete()
            directory.mkdir(parents=True)
            previous_sources = []
        same = map(operator.eq, previous_sources, sources)
        num_unchanged = sum(itertools.takewhile(bool, same))
        self._count = 0
        self.position = Position()
        while position := self._read_segment_end(self._count):
            if position.source >= num_unchanged:
                break
            self.position = position
            self._count += 1
        for path in sorted(directory.glob("[0-9]*")):
            if int(path.name.partition(".")[0]) >= self._count:
                path.unlink()
        # Written last: after a kill before it, the old segments still have the old identity.
        identity = json.dumps([options, max_bad_fraction, *sources])
        atomic_write_text(directory / _IDENTITY, identity)
        self._start_segment()

    def append(self, index: np.ndarray, payload: bytes, position: Position) -> None:
        """Add documents that end at `position`; complete the segment if it is large enough."""
        index["start"] += self._payload.tell()
        self._payload.write(payload)
        self._index.write(index.tobytes())
        self._next_position = position
        self._bytes += int(index["bytes"].sum())
        if self._bytes >= _SEGMENT_BYTES:
            self.commit_segment()

    def commit_segment(self) -> None:
        """Write the added documents to disk; to be called after the last document."""
        if self._next_position == self.position:
            return
        sums = []
        for kind, buffer in zip(_FILE_KINDS, (self._payload, self._index), strict=True):
            content = buffer.getvalue()
            atomic_write_bytes(self._path(self._count, kind), content)
            sums.append(_size_and_crc(content))
        end = json.dumps([self._next_position, sums])
        atomic_write_text(self._path(self._count, "json"), end)
        self.position = self._next_position
        self._count += 1
        self._start_segment()

    def delete(self) -> None:
        """Delete the directory; first its identity, so that an incomplete spool is never reused."""
        (self._directory / _IDENTITY).unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def indexes(self) -> Iterator[np.ndarray]:
        """Yield the index of each complete segment, in order."""
        for segment in range(self._count):
            yield np.fromfile(self._path(segment, "index"), self._dtype)

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payload of each complete segment, in order."""
        for segment in range(self._count):
            yield memoryview(self._path(segment, "payload").read_bytes())

    def _read_identity(self) -> tuple[str | None, float, list[Any]]:
        """Return options, fraction of bad records and sources of the segments; None if unknown."""
        try:
            options, fraction, *sources = json.loads((self._directory / _IDENTITY).read_text())
            return options, float(fraction), sources
        except (OSError, ValueError, TypeError):
            return None, 0.0, []

    def _read_segment_end(self, segment: int) -> Position | None:
        """Return the input position at the end of a segment; None if it is not complete."""
        try:
            position, sums = json.loads(self._path(segment, "json").read_text())
            actual = [_size_and_crc(self._path(segment, kind).read_bytes()) for kind in _FILE_KINDS]
            return Position(*position) if sums == actual else None
        except (OSError, ValueError, TypeError):
            return None

    def _start_segment(self) -> None:
        self._payload, self._index, self._bytes = io.BytesIO(), io.BytesIO(), 0
        self._next_position = self.position

    def _path(self, segment: int, kind: str) -> pathlib.Path:
        return self._directory / f"{segment:06d}.{kind}"


def _size_and_crc(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]
