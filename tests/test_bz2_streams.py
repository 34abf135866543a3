"""Parallel decompression of bzip2 files of many streams."""

import bz2
import os
import pathlib

import pytest
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.text import bz2_streams
from data_pipelines.text.bz2_streams import read_bz2_streams

PARTS = [b"one " * 9, b"", os.urandom(3000), b"x" * 100_000, os.urandom(20_000), b"end"]
WHOLE = b"".join(map(bz2.compress, PARTS))


def read(path: pathlib.Path, content: bytes) -> bytes:
    path.write_bytes(content)
    return b"".join(read_bz2_streams(epath.Path(path), threads=2))


@pytest.mark.parametrize("piece_bytes", [16, 1000, 1 << 20])
@pytest.mark.parametrize("zeros", [0, 9, 5000])
def test_streams_are_read_in_order(tmp_path, monkeypatch, piece_bytes: int, zeros: int) -> None:
    monkeypatch.setattr(bz2_streams, "_PART_BYTES", piece_bytes)
    padding = b"\0" * zeros
    assert read(tmp_path / "a.bz2", WHOLE + padding) == b"".join(PARTS)
    empty = bz2.compress(b"")
    assert read(tmp_path / "a.bz2", empty + padding + WHOLE + empty) == b"".join(PARTS)


@pytest.mark.parametrize("piece_bytes", [100, 1 << 20])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-1], "incomplete"),
        (WHOLE[: len(WHOLE) // 2], "incomplete"),
        (WHOLE[:1000] + bz2.compress(b"one"), "incomplete"),
        (WHOLE + b"x", r"damaged \(.*\)"),
        (WHOLE + b"other bytes", r"damaged \(.*\)"),
        (WHOLE[:-20] + bytes(20), r"damaged \(.*\)"),
        (b"", "incomplete"),
    ],
)
def test_damaged_files_are_rejected(tmp_path, monkeypatch, piece_bytes, content, problem) -> None:
    monkeypatch.setattr(bz2_streams, "_PART_BYTES", piece_bytes)
    with pytest.raises(InputError, match=rf"a\.bz2: {problem}\. Download it again"):
        read(tmp_path / "a.bz2", content)
