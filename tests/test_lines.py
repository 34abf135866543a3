"""Lines of text files: compression, encodings, line ends, and damaged files."""

import bz2
import codecs
import gzip
import lzma
import os
import pathlib
import tracemalloc

import pytest
import zstandard
from document_files import COMPRESS, DOCUMENTS, compressed, every_compression, read, save, text_of
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.text.bz2_streams import read_bz2_streams
from data_pipelines.text.lines import read_lines
from data_pipelines.text.sources import read_documents


@every_compression
def test_read_documents_decompresses_files(tmp_path: pathlib.Path, suffix: str) -> None:
    assert read(save(tmp_path / f"a.txt{suffix}", text_of(DOCUMENTS))) == DOCUMENTS


@every_compression
def test_read_documents_reads_documents_larger_than_a_block(
    tmp_path: pathlib.Path, suffix: str
) -> None:
    documents = [[f"{i} é{'x' * (i * 37 % 5000)}" for i in range(n)] for n in (1, 300, 2)]
    documents.append(["y" * 1_000_000])
    assert read(save(tmp_path / f"a.txt{suffix}", text_of(documents))) == documents


def test_read_documents_removes_a_byte_order_mark(tmp_path: pathlib.Path) -> None:
    assert read(save(tmp_path / "a.txt", "\ufeffOne.")) == [["One."]]


def test_only_line_feeds_and_carriage_returns_end_lines(tmp_path: pathlib.Path) -> None:
    line = "a\vb\fc\x1cd\x85e\u2028f"
    assert read(save(tmp_path / "a.txt", line)) == [[line]]


@every_compression
@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("length", [3, 65_530, 65_531, 65_535, 65_536])
def test_read_documents_accepts_line_ends_of_all_systems(
    tmp_path: pathlib.Path, end: str, length: int, suffix: str
) -> None:
    documents = [["a" * length, "b"], ["c" * length], ["d", "e"]] * 2
    text = text_of(documents).replace("\n", end)
    assert read(save(tmp_path / f"a.txt{suffix}", text)) == documents
    lines = [[line] for document in documents for line in document]
    assert read(str(tmp_path / f"a.txt{suffix}"), documents="lines") == lines


@pytest.mark.seconds
@every_compression
def test_memory_does_not_depend_on_file_size(tmp_path: pathlib.Path, suffix: str) -> None:
    peaks = []
    for documents in (10_000, 40_000):
        text = "".join(f"{os.urandom(50).hex()}\n\n" for _ in range(documents))
        path = save(tmp_path / f"{documents}.txt{suffix}", text)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_documents([path])) == documents
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


@every_compression
@pytest.mark.parametrize("before", ["", "ä" * 521, "line\n\n" * 50_000])
def test_invalid_utf8_is_rejected_with_its_offset(
    tmp_path: pathlib.Path, suffix: str, before: str
) -> None:
    content = before.encode() + b"caf\xe9 au lait\nmore"
    path = save(tmp_path / f"wiki.txt{suffix}", content)
    byte = len(before.encode()) + 3
    with pytest.raises(InputError) as caught:
        read(path)
    expected = f"{path}: byte {byte} is not UTF-8. Convert it to UTF-8."
    hint = " --max-bad-fraction skips bad records." if "\n" in before else ""
    assert str(caught.value) == expected + hint


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_one_bad_line_changes_no_other(tmp_path: pathlib.Path, line_end: str) -> None:
    documents = [[f"Line {i} of {number}." for i in range(5)] for number in range(200)]
    lines = (line_end * 2).join(line_end.join(document) for document in documents)
    content = lines.encode().replace(b"Line 2 of 7.", b"Line 2 of \xe9.")
    path = save(tmp_path / "a.txt", content)
    del documents[7][2]
    assert [d for d in read(path, max_bad_fraction=0.01) if d] == documents
    path = save(tmp_path / "b.txt", content.replace(b"Line 3 of 8.", b"\xe9"))
    with pytest.raises(InputError, match=f"byte {content.index(0xE9)} is not UTF-8"):
        read(path, max_bad_fraction=0.0005)


def test_an_incomplete_character_at_the_end_is_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="byte 4 is not UTF-8"):
        read(save(tmp_path / "a.txt", "text語".encode()[:-1]))


@compressed
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_incomplete_compressed_files_are_rejected(
    tmp_path: pathlib.Path, suffix: str, share: float
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    save(path, os.urandom(3000).hex())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"a\.txt.*: incomplete\. Download it again"):
        read(str(path))


@compressed
def test_files_with_a_wrong_compression_suffix_are_rejected(
    tmp_path: pathlib.Path, suffix: str
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_text("plain text under the wrong name\n" * 10)
    with pytest.raises(InputError, match=r"a\.txt.*: damaged \(.*\)\. Download it again"):
        read(str(path))


@pytest.mark.parametrize("zeros", [8, 200_000])
@compressed
def test_concatenated_and_padded_compressed_files_are_read(
    tmp_path: pathlib.Path, suffix: str, zeros: int
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one ") + COMPRESS[suffix](b"two") + b"\0" * zeros)
    assert read(str(path)) == [["one two"]]


def test_zstd_with_a_long_window_is_read(tmp_path: pathlib.Path) -> None:
    """`zstd --long=28` and more write such files."""
    long = zstandard.ZstdCompressionParameters(
        window_log=28, chain_log=6, hash_log=6, min_match=3, strategy=1
    )
    compressor = zstandard.ZstdCompressor(compression_params=long).compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(compressor.compress(b"One.\n") + compressor.flush())
    assert read(str(path)) == [["One."]]


@every_compression
@pytest.mark.parametrize(
    ("content", "fix"),
    [
        (b"x" * 257 + b"ustar\x0000", "Unpack the archive"),
        (b"PK\x03\x04\x14\0", "Unpack the archive"),
        (b"PAR1\x15\x04\x15", r"uncompressed, with a name that ends in \.parquet"),
        (b"ARROW1\0\0\xff", r"uncompressed, with a name that ends in \.arrow"),
        (b"%PDF-1.7\n", "Extract the text"),
        (b"\x80\x04\x95\0", "Load it with Python's pickle"),
        (b"\x93NUMPY\x01", "Write its texts"),
        (gzip.compress(b"text"), r"Let the name of the compressed file end in \.gz"),
        (lzma.compress(b"text"), r"Let the name of the compressed file end in \.xz"),
        (bz2.compress(b"text"), r"Let the name of the compressed file end in \.bz2"),
        (zstandard.compress(b"text"), r"Let the name of the compressed file end in \.zst"),
    ],
    ids=["tar", "zip", "parquet", "arrow", "pdf", "pickle", "numpy", "gzip", "xz", "bzip2", "zstd"],
)
def test_binary_files_are_rejected_with_a_fix(
    tmp_path: pathlib.Path, content: bytes, fix: str, suffix: str
) -> None:
    path = save(tmp_path / f"a.txt{suffix}", content)
    with pytest.raises(InputError, match=rf"a\.txt{suffix}: not text\. .*{fix}"):
        read(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_read_lines_decodes_utf_16(encoding: str, tmp_path) -> None:
    path = tmp_path / "t.txt"
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    text = "é 😀\r\n" * 30_000 + "end"
    path.write_bytes(mark + text.encode(encoding))
    assert list(read_lines(path)) == text.split("\r\n")
    path.write_bytes(codecs.BOM_UTF16_LE + b"a\0\x00\xd8")
    with pytest.raises(InputError, match=r"t\.txt: not UTF-16 .*\. Convert it to UTF-8"):
        list(read_lines(path))


@every_compression
@pytest.mark.parametrize(
    ("encoding", "problem"),
    [
        ("utf-16-le", "not UTF-8: UTF-16 or UTF-32 without a byte order mark, or binary"),
        ("utf-16-be", "not UTF-8: UTF-16 or UTF-32 without a byte order mark, or binary"),
        ("utf-32-le", "not UTF-8: UTF-16 or UTF-32 without a byte order mark, or binary"),
        ("utf-32", "not UTF-8 but UTF-32"),
    ],
)
def test_other_encodings_of_unicode_are_rejected(tmp_path, encoding, problem, suffix) -> None:
    """Their zeros are characters of UTF-8, so that blank lines would end no document."""
    for text in ("One.\n\nTwo.\n", text_of(DOCUMENTS) * 9000):
        path = save(tmp_path / f"a.txt{suffix}", text.encode(encoding))
        with pytest.raises(InputError, match=rf"a\.txt.*: {problem}\. Convert it to UTF-8\."):
            read(path)


def test_single_zeros_are_text(tmp_path: pathlib.Path) -> None:
    assert read(save(tmp_path / "a.txt", b"A b.\0\n\nC d.\n")) == [["A b.\0"], ["C d."]]


@every_compression
@pytest.mark.parametrize("length", [3, 65_530, 65_534, 65_535, 65_536])
def test_read_lines_keeps_line_ends(tmp_path: pathlib.Path, length: int, suffix: str) -> None:
    written = ["a" * length + "\r\n", "\n", "b\r", "\r", "\n", "c\x85d\n", "é\r\n", "\r\n", "end"]
    path = epath.Path(save(tmp_path / f"a.txt{suffix}", "\ufeff" + "".join(written)))
    expected = ["a" * length + "\r\n", "\n", "b\r", "\r\n", *written[5:]]
    assert list(read_lines(path, keep_line_ends=True)) == expected
    assert list(read_lines(path)) == [line.rstrip("\r\n") for line in expected]


def test_read_lines_keeps_the_ends_of_lines_around_a_bad_one(tmp_path: pathlib.Path) -> None:
    path, errors = epath.Path(save(tmp_path / "a.txt", b"a\r\n\xe9\rb\nc\r\n")), []
    assert list(read_lines(path, errors.append, keep_line_ends=True)) == ["a\r\n", "b\n", "c\r\n"]
    assert len(errors) == 1


def bomb(suffix: str, size: int) -> bytes:
    """Return a letter `size` times, compressed."""
    content = b"a" * size
    if suffix == ".zst":
        return zstandard.ZstdCompressor().compress(content)
    return {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix](content)


@pytest.mark.seconds
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_read_lines_rejects_bombs_and_endless_lines(tmp_path, suffix: str) -> None:
    path = epath.Path(tmp_path / f"bomb{suffix}")
    path.write_bytes(bomb(suffix, 200_000_000))
    for limit, message in ((1, "a line has more than 1 MB"), (1000, "expands to more than 300")):
        tracemalloc.start()
        with pytest.raises(InputError, match=message):
            list(read_lines(path, max_line_mb=limit))
        assert limit > 1 or tracemalloc.get_traced_memory()[1] < 150_000_000
        tracemalloc.stop()


@pytest.mark.seconds
def test_read_bz2_streams_rejects_a_bomb(tmp_path) -> None:
    path = epath.Path(tmp_path / "bomb.bz2")
    path.write_bytes(bomb(".bz2", 200_000_000))
    with pytest.raises(InputError, match="expands more than text does"):
        list(read_bz2_streams(path, 2))
