"""Embeddings of a teacher in a file: found by their texts, and files that do not fit."""

import pathlib
from typing import Any

import numpy as np
import pytest
import toy_embeddings
from toy_embeddings import configure_student, read_texts, write_embeddings, write_teacher

from bertjax.tasks.embeddings.stored_embeddings import StoredEmbeddings, digest_texts
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    return path


@pytest.fixture(scope="module")
def teacher(folder) -> pathlib.Path:
    return write_teacher(folder, folder / "teacher")


@pytest.fixture(scope="module")
def stored(folder, teacher) -> pathlib.Path:
    return write_embeddings(teacher, read_texts(folder), folder / "teacher.npz")


@pytest.mark.seconds
def test_embeddings_are_found_by_their_texts_in_any_order(stored, folder, teacher) -> None:
    texts, file = read_texts(folder), StoredEmbeddings(stored)
    assert file.size == 64 and file.are_normalized
    assert sorted(np.load(stored).files) == ["embeddings", "text_digests"]
    reverse = [f" {text} " for text in texts[::-1]]
    found = file.find(reverse, reverse)
    np.testing.assert_array_equal(found, np.load(stored)["embeddings"][::-1])
    np.testing.assert_array_equal(file.find(texts, texts), found[::-1])


def test_digests_differ_where_texts_do() -> None:
    texts = ["a", "b", "A", "a b", "ab", "", "a  b", "\ud800"]
    digests = digest_texts(texts)
    assert len({*map(bytes, digests)}) == len(texts)
    np.testing.assert_array_equal(digest_texts(["a\n", " a"]), digests[[0, 0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None}, "not a file of embeddings of texts .no array embeddings."),
        ({"text_digests": None}, "not a file of embeddings of texts .no array text_digests."),
        ({"embeddings": np.zeros((2, 2, 4), np.float32)}, "embeddings of another shape"),
        ({"embeddings": np.zeros((2, 4))}, "embeddings of another shape"),
        ({"text_digests": np.zeros((3, 16), np.uint8)}, "text_digests of another shape"),
    ],
)
def test_file_of_something_else_is_rejected(change, message, tmp_path) -> None:
    arrays = {"embeddings": np.ones((2, 4), np.float32), "text_digests": digest_texts(["a", "b"])}
    arrays |= change
    path = tmp_path / "other.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=f"^distill.embeddings=.*{message}"):
        StoredEmbeddings(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04damaged"])
def test_damaged_file_is_rejected(content: bytes, tmp_path) -> None:
    (path := tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"^distill.embeddings=.*: not a file of embeddings"):
        StoredEmbeddings(path)


def test_missing_contradictory_and_infinite_embeddings_are_rejected(tmp_path) -> None:
    def write(embeddings: Any, texts: list[str]) -> StoredEmbeddings:
        arrays = {"embeddings": np.array(embeddings, np.float32)}
        np.savez(tmp_path / "x.npz", **arrays, text_digests=digest_texts(texts))
        return StoredEmbeddings(tmp_path / "x.npz")

    file = write([[1, 0], [0, 1]], ["a", "b"])
    message = "has no embedding of row 2, 'c', nor of 1 others of 3. Embed the texts of all data"
    with pytest.raises(InputError, match=message):
        file.find(["a", "c", "d"], ["row 1", "row 2", "row 3"])
    with pytest.raises(InputError, match="rows 1 and 2 are of one text and differ"):
        write([[1, 0], [0, 1]], ["a", "a"]).find(["a"], ["row 1"])
    with pytest.raises(InputError, match="the embedding of row 1 is not finite"):
        write([[np.inf, 0]], ["a"]).find(["a"], ["row 1"])
    with pytest.raises(InputError, match="the embedding of row 1 is not finite"):
        write([[np.nan, 0], [np.nan, 0]], ["a", "a"]).find(["a"], ["row 1"])


@pytest.mark.slow
def test_run_does_not_resume_with_other_stored_embeddings(folder, teacher, tmp_path) -> None:
    file = write_embeddings(teacher, read_texts(folder), tmp_path / "teacher.npz")
    config = configure_student(folder, "", {"embeddings": str(file)}, steps=2)
    make_trainer(config, tmp_path / "run").train()
    arrays = dict(np.load(file))
    np.savez(file, **arrays | {"embeddings": arrays["embeddings"][:, ::-1]})
    with pytest.raises(InputError, match="holds a run on other data"):
        make_trainer(config, tmp_path / "run").train()
