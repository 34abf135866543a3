"""Tests of the shard format and the manifest."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest
from corpus_shards import append_document
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.corpus.shards import (
    MANIFEST,
    Manifest,
    Shard,
    ShardInfo,
    ShardWriter,
    read_manifest,
    read_shard,
    shard_name,
    token_dtype,
    write_manifest,
)
from data_pipelines.errors import InputError

Documents = list[list[list[int]]]

DOCUMENTS: Documents = [[[1, 2, 3], [4]], [[65535]], [[7, 8], [9], [10, 11, 12]]]


def write(
    directory: pathlib.Path, documents: Documents = DOCUMENTS, vocab_size: int = 30522
) -> ShardInfo:
    with ShardWriter(directory, shard_name("train", 0, 1), token_dtype(vocab_size)) as writer:
        for document in documents:
            append_document(writer, document)
        return writer.close()


def documents_of(shard: Shard) -> Documents:
    return [
        [
            shard.tokens[shard.sentences[s] : shard.sentences[s + 1]].tolist()
            for s in range(shard.documents[d], shard.documents[d + 1])
        ]
        for d in range(len(shard.documents) - 1)
    ]


def manifest_of(*train: ShardInfo) -> Manifest:
    return Manifest("f1e2", 30522, {"inputs": ["ä.txt"]}, list(train), [], {"documents": 3})


sentences = st.lists(st.integers(0, 65535), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(sentences, min_size=1, max_size=4), max_size=6))
def test_read_shard_returns_the_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents
) -> None:
    directory = tmp_path_factory.mktemp("shard")
    info = write(directory, documents)
    assert documents_of(read_shard(directory, info)) == documents
    assert info.documents == len(documents)
    assert info.sentences == sum(map(len, documents))
    assert info.tokens == sum(len(sentence) for document in documents for sentence in document)
    assert info.bytes == (directory / info.name).stat().st_size


def test_append_of_several_documents_equals_single_appends(tmp_path: pathlib.Path) -> None:
    info = write(tmp_path)
    with ShardWriter(tmp_path, info.name, token_dtype(30522)) as writer:
        for part in (DOCUMENTS[:1], DOCUMENTS[1:]):
            sentences = [sentence for document in part for sentence in document]
            lengths = np.array([len(sentence) for sentence in sentences])
            counts = np.array([len(document) for document in part])
            writer.append(np.concatenate(sentences), lengths, counts)
        assert writer.close() == info


def test_token_dtype_depends_on_the_vocabulary(tmp_path: pathlib.Path) -> None:
    assert token_dtype(65535) == np.uint16
    assert token_dtype(65536) == np.uint32
    many = [[[65536, 119546]]]
    info = write(tmp_path, many, vocab_size=119547)
    shard = read_shard(tmp_path, info)
    assert shard.tokens.dtype == np.uint32
    assert documents_of(shard) == many


def test_read_shard_returns_read_only_arrays(tmp_path: pathlib.Path) -> None:
    shard = read_shard(tmp_path, write(tmp_path))
    assert shard.tokens.dtype == np.uint16
    assert shard.sentences.dtype == shard.documents.dtype == np.int64
    assert not shard.tokens.flags.writeable
    assert shard.tokens.flags.aligned


def test_shard_appears_with_close(tmp_path: pathlib.Path) -> None:
    with ShardWriter(tmp_path, "train-00000-of-00001.tokens", token_dtype(10)) as writer:
        append_document(writer, [[1]])
        assert all(path.name.startswith(".") for path in tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


# Damage


@pytest.mark.parametrize("where", [0, 8, 12, 16, 39, 40, 60, 80, -1])
def test_read_shard_detects_a_changed_byte(tmp_path: pathlib.Path, where: int) -> None:
    info = write(tmp_path)
    path = tmp_path / info.name
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{info.name}: damaged.*Prepare the corpus again"):
        read_shard(tmp_path, info)


@pytest.mark.parametrize("size", [0, 20, 100])
def test_read_shard_detects_a_truncated_file(tmp_path: pathlib.Path, size: int) -> None:
    info = write(tmp_path)
    path = tmp_path / info.name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=rf"{info.name}: damaged, {size} bytes instead of"):
        read_shard(tmp_path, info)


def test_read_shard_detects_a_missing_file(tmp_path: pathlib.Path) -> None:
    info = write(tmp_path)
    (tmp_path / info.name).unlink()
    with pytest.raises(InputError, match=rf"{info.name}: missing.*Prepare the corpus again"):
        read_shard(tmp_path, info)


def test_read_shard_checks_the_counts_of_the_header(tmp_path: pathlib.Path) -> None:
    info = dataclasses.replace(write(tmp_path), documents=2)
    with pytest.raises(InputError, match="header differs from the manifest"):
        read_shard(tmp_path, info)


# Manifest


def test_read_manifest_returns_the_manifest(tmp_path: pathlib.Path) -> None:
    manifest = manifest_of(write(tmp_path))
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert not list(tmp_path.glob("*.partial"))


def test_write_manifest_accepts_names_of_files_that_are_not_utf8(tmp_path: pathlib.Path) -> None:
    names = [os.fsdecode(b"caf\xe9.txt"), "café.txt"]
    manifest = dataclasses.replace(manifest_of(write(tmp_path)), options={"inputs": names})
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path).options == {"inputs": names}


def test_digest_depends_on_content_and_tokenizer_alone(tmp_path: pathlib.Path) -> None:
    manifest = manifest_of(write(tmp_path))
    other_options = dataclasses.replace(manifest, options={"workers": 8})
    other_tokenizer = dataclasses.replace(manifest, tokenizer_fingerprint="aaaa")
    other_tokens = manifest_of(write(tmp_path, [[[1, 2, 3], [4]]]))
    assert manifest.digest() == other_options.digest()
    assert len({m.digest() for m in (manifest, other_tokenizer, other_tokens)}) == 3


def test_read_manifest_rejects_a_directory_without_manifest(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match=r"not a finished corpus.*bertjax prepare"):
        read_manifest(tmp_path)


def test_read_manifest_names_a_missing_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="nowhere: does not exist"):
        read_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 3}', '{"version": 3, "x": 2}'])
def test_read_manifest_rejects_a_damaged_manifest(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match=r"manifest.json: .*Prepare the corpus again"):
        read_manifest(tmp_path)


def test_read_manifest_rejects_another_version(tmp_path: pathlib.Path) -> None:
    (tmp_path / MANIFEST).write_text('{"version": 2}')
    with pytest.raises(InputError, match=r"version=2, but this program reads version 3\. Prepare"):
        read_manifest(tmp_path)
