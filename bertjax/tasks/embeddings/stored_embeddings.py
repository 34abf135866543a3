"""Embeddings in a file of `bertjax embed`, found by a digest of their texts.

The file is in NumPy's npz: `embeddings` float32 [N, D], and `text_digests` uint8 [N, 16].
"""

import functools
import hashlib
import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

EMBEDDINGS, TEXT_DIGESTS = "embeddings", "text_digests"  # arrays of the file
_DIGEST_BYTES = 16
_SHOWN_CHARACTERS = 60  # of a text without an embedding
_FIX = "Write it with `bertjax embed --output FILE.npz`."


def digest_texts(texts: Sequence[str]) -> np.ndarray:
    """Return a digest of each text without the spaces around it, uint8 [N, 16]."""
    digests = [
        hashlib.blake2b(
            text.strip().encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES
        ).digest()
        for text in texts
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)


class StoredEmbeddings:
    """The embeddings of texts in a file.

    Args:
      path: the file.

    Raises:
      InputError: there is no such file, or it is none of embeddings of texts.
    """

    def __init__(self, path: epath.PathLike) -> None:
        self.path = check_file(path)
        try:
            with self.path.open("rb") as file:
                arrays = np.load(io.BytesIO(file.read()), allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("an array without a name")
            if missing := {EMBEDDINGS, TEXT_DIGESTS} - {*arrays.files}:
                raise ValueError(f"no array {min(missing)}")
            self._embeddings, digests = arrays[EMBEDDINGS], arrays[TEXT_DIGESTS]
            is_valid = self._embeddings.ndim == 2 and self._embeddings.dtype == np.float32
            if not is_valid or not self._embeddings.shape[1]:
                raise ValueError(f"{EMBEDDINGS} of another shape")
            if digests.dtype != np.uint8 or digests.shape != (len(self._embeddings), _DIGEST_BYTES):
                raise ValueError(f"{TEXT_DIGESTS} of another shape")
        except InputError:
            raise
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, SyntaxError) as error:
            raise InputError(
                f"distill.embeddings={path}: not a file of embeddings of texts ({error}). {_FIX}"
            ) from None
        self._digests = np.ascontiguousarray(digests)

    @property
    def size(self) -> int:
        """Components of an embedding."""
        return int(self._embeddings.shape[1])

    @functools.cached_property
    def are_normalized(self) -> bool:
        """True if all embeddings have length 1."""
        lengths = np.linalg.norm(self._embeddings.astype(np.float64), axis=1)
        return bool(np.all(np.abs(lengths - 1) < 1e-3))

    def find(self, texts: Sequence[str], locations: Sequence[str]) -> np.ndarray:
        """Return the embedding of each text, float32 [n, D].

        Args:
          texts: the texts.
          locations: location of each text for messages.

        Raises:
          InputError: a text has no embedding, or two different ones, or one that is not finite.
        """
        digests = digest_texts(texts)
        rows = np.array([self._rows.get(digest.tobytes(), -1) for digest in digests], np.int64)
        if len(missing := np.flatnonzero(rows < 0)):
            text = texts[missing[0]]
            shown = text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else "")
            raise InputError(
                f"distill.embeddings={self.path}: has no embedding of {locations[missing[0]]}, "
                f"{shown!r}, nor of {len(missing) - 1:,} others of {len(texts):,}. Embed the texts "
                "of all data with `bertjax embed`."
            )
        is_all = len(rows) == len(self._embeddings) and np.array_equal(rows, np.arange(len(rows)))
        found: np.ndarray = self._embeddings if is_all else self._embeddings[rows]
        if len(wrong := np.flatnonzero(~np.isfinite(found).all(axis=1))):
            raise InputError(
                f"distill.embeddings={self.path}: the embedding of {locations[wrong[0]]} is not "
                f"finite. {_FIX}"
            )
        return found

    @functools.cached_property
    def _rows(self) -> dict[bytes, int]:
        """Digest -> the first row that has it."""
        rows: dict[bytes, Any] = {}
        for row, digest in enumerate(self._digests):
            first = rows.setdefault(digest.tobytes(), row)
            if first == row:
                continue
            pair = self._embeddings[first], self._embeddings[row]
            if not np.allclose(*pair, atol=1e-4, equal_nan=True):  # NaN has an error of its own
                raise InputError(
                    f"distill.embeddings={self.path}: rows {first + 1:,} and {row + 1:,} are of "
                    f"one text and differ. {_FIX}"
                )
        return rows
