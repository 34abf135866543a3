"""Filters that drop documents by their content: length, language, near duplicates."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

# 14 bands of 8 MinHash values find half of the pairs of documents that share 75% of their five-word
# shingles, and nearly all that share 85% (Lee et al. 2022, "Deduplicating Training Data").
NUM_BANDS, _HASHES_PER_BAND, _SHINGLE_WORDS = 14, 8, 5
# A word is one character in scripts without spaces (Thai, Lao, Burmese, Khmer, kana, Han).
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_LANGUAGE_CHARS = 1000  # characters from which the language of a document is identified


@dataclasses.dataclass(frozen=True)
class Filters:
    """Conditions that a document must meet. `languages` and `near_dedup` need the extra `filters`.

    Attributes:
      min_document_tokens: minimum length of a document in tokens.
      languages: languages to keep, ISO 639-1 codes joined by "+"; "" keeps all.
      near_dedup: drop documents that nearly repeat an earlier one.

    Raises:
      InputError: a value is invalid, or a library is missing.
    """

    min_document_tokens: int = 1
    languages: str = ""
    near_dedup: bool = False

    def __post_init__(self) -> None:
        if self.min_document_tokens < 1:
            raise InputError(
                f"min_document_tokens={self.min_document_tokens}: below the minimum. Use at least "
                "1."
            )
        check_installed("corpus filter", *self._required_libraries(), install="'bertjax[filters]'")
        if self.languages:
            known = _known_languages()
            for code in self.languages.split("+"):
                if code not in known:
                    raise InputError(
                        f"languages={self.languages}: unknown language {code!r}. Choose from "
                        f"{', '.join(sorted(known))}."
                    )

    def _required_libraries(self) -> list[str]:
        requirements = (self.languages, "py3langid"), (self.near_dedup, "datasketch")
        return [library for needed, library in requirements if needed]

    @property
    def library_versions(self) -> dict[str, str]:
        """Versions of the libraries that determine which documents are kept."""
        return {
            library: importlib.metadata.version(library) for library in self._required_libraries()
        }

    def is_other_language(self, documents: Sequence[str]) -> np.ndarray:
        """Return True for documents in a language that is not kept, bool [d]."""
        if not self.languages:
            return np.zeros(len(documents), bool)
        import py3langid

        kept = self.languages.split("+")
        return np.array(
            [py3langid.classify(text[:_LANGUAGE_CHARS])[0] not in kept for text in documents]
        )

    def minhash_bands(self, documents: Sequence[str]) -> np.ndarray:
        """Return band hashes, uint64 [d, NUM_BANDS]; near duplicates have an equal one."""
        hashes = [_hash(band.tobytes()) for text in documents for band in _minhash(text)]
        return np.frombuffer(b"".join(hashes), "<u8").reshape(len(documents), NUM_BANDS)


def is_near_duplicate(bands: np.ndarray) -> np.ndarray:
    """Return True for rows that share a band with an earlier row, bool [d].

    Args:
      bands: uint64 [d, NUM_BANDS].
    """
    duplicate = np.zeros(len(bands), bool)
    for band in bands.T:
        first = np.unique(band, return_index=True)[1]
        repeated = np.ones(len(band), bool)
        repeated[first] = False
        duplicate |= repeated
    return duplicate


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _minhash(text: str) -> np.ndarray:
    from datasketch import MinHash

    words = _WORD.findall(text.lower())
    shingles: Iterable[str] = (
        " ".join(words[i : i + _SHINGLE_WORDS])
        for i in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    )
    sketch = MinHash(num_perm=NUM_BANDS * _HASHES_PER_BAND)
    sketch.update_batch([shingle.encode(errors="surrogatepass") for shingle in shingles])
    return sketch.hashvalues.astype("<u4").reshape(NUM_BANDS, _HASHES_PER_BAND)


KEEP_ALL = Filters()


@functools.cache
def _known_languages() -> frozenset[str]:
    import py3langid

    return frozenset(code for code, _ in py3langid.rank("a"))
