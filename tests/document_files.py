"""Text files, plain and compressed, that tests of text sources and of preparation use."""

import bz2
import functools
import gzip
import lzma
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from conftest import sample_text

from data_pipelines.text.sources import ReadOptions, read_documents

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": functools.partial(lzma.compress, preset=0),
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
every_compression = pytest.mark.parametrize("suffix", COMPRESS)
compressed = pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
DOCUMENTS = [["One line.", "Zwei Zeilen: ä, 語."], ["Another document."]]


def save(path: pathlib.Path, content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return str(path)


def text_of(documents: list[list[str]]) -> str:
    return "\n\n".join("\n".join(document) for document in documents) + "\n"


def read(*inputs: str, **read_options: Any) -> list[list[str]]:
    return list(read_documents(inputs, ReadOptions(**read_options)))


def small(path: pathlib.Path, documents: int = 40) -> str:
    path.write_text(sample_text(seed=3, documents=documents))
    return str(path)


def content(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
