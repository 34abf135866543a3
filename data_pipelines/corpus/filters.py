"""Which documents a corpus leaves out by what they say, beside exact copies."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipelines.errors import InputError

# Fourteen bands of eight values of MinHash: of two documents that share 75% of their five-word
# runs, every second pair is found, of those that share 85% nearly all (Lee et al. 2022, and
# the corpora made since).
NUM_BANDS, _HASHES_PER_BAND, _SHINGLE_WORDS = 14, 8, 5
# Of scripts without spaces (Thai, Lao, Burmese, Khmer, kana, Han) a word is a character.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_LANGUAGE_CHARS = 1000  # characters that tell a document's language


@dataclasses.dataclass(frozen=True)
class Filters:
    """What is kept. The two that look at the text need the extra `filters`.

    Attributes:
      shortest: pieces of the shortest document.
      languages: codes of ISO 639-1, "+" between them; "" for all.
      near_dedup: leaves out what nearly repeats an earlier document.

    Raises:
      InputError: a value that cannot be, or a library that is missing.
    """

    min_document_tokens: int = 1
    languages: str = ""
    near_dedup: bool = False

    def __post_init__(self) -> None:
        if self.min_document_tokens < 1:
            raise InputError(f"shortest is {self.min_document_tokens} pieces; choose 1 or more.")
        for library in self._required_libraries():
            if importlib.util.find_spec(library) is None:
                raise InputError(f"{library} is missing; pip install 'bertjax[filters]'.")
        if self.languages:
            known = _known_languages()
            for code in self.languages.split("+"):
                if code not in known:
                    raise InputError(
                        f"language {code!r} is unknown; choose of {', '.join(sorted(known))}."
                    )

    def _required_libraries(self) -> list[str]:
        asked = (self.languages, "py3langid"), (self.near_dedup, "datasketch")
        return [library for use, library in asked if use]

    @property
    def library_versions(self) -> dict[str, str]:
        """The versions of those that decide what is kept."""
        return {
            library: importlib.metadata.version(library) for library in self._required_libraries()
        }

    def is_other_language(self, documents: Sequence[str]) -> np.ndarray:
        """Whether each document is in another language than those that are kept, bool [d]."""
        if not self.languages:
            return np.zeros(len(documents), bool)
        import py3langid

        wanted = self.languages.split("+")
        return np.array(
            [py3langid.classify(text[:_LANGUAGE_CHARS])[0] not in wanted for text in documents]
        )

    def bands(self, documents: Sequence[str]) -> np.ndarray:
        """Hashes, uint64 [d, BANDS]; two documents of which any is equal are near duplicates."""
        hashes = [_hash(band.tobytes()) for text in documents for band in _minhash(text)]
        return np.frombuffer(b"".join(hashes), "<u8").reshape(len(documents), NUM_BANDS)


def is_near_duplicate(bands: np.ndarray) -> np.ndarray:
    """Which rows of `bands` [d, BANDS] have one in common with a row before them, bool [d]."""
    found = np.zeros(len(bands), bool)
    for band in bands.T:
        first = np.unique(band, return_index=True)[1]
        again = np.ones(len(band), bool)
        again[first] = False
        found |= again
    return found


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _minhash(text: str) -> np.ndarray:
    from datasketch import MinHash

    words = _WORD.findall(text.lower())
    runs: Iterable[str] = (
        " ".join(words[i : i + _SHINGLE_WORDS])
        for i in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    )
    sketch = MinHash(num_perm=NUM_BANDS * _HASHES_PER_BAND)
    sketch.update_batch([run.encode(errors="surrogatepass") for run in runs])
    return sketch.hashvalues.astype("<u4").reshape(NUM_BANDS, _HASHES_PER_BAND)


KEEP_ALL = Filters()


@functools.cache
def _known_languages() -> frozenset[str]:
    import py3langid

    return frozenset(code for code, _ in py3langid.rank("a"))
