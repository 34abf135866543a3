"""Word counts of a text of any length, from which a vocabulary is trained.

Memory is bounded by the number of different words, not by the length of the text.
"""

import functools
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.parallel import group_by_size, ordered_map
from data_pipelines.vocabulary.basic_tokenization import basic_tokenize, split_for_caching

log = logging.getLogger(__name__)

MAX_WORDS = 1_000_000  # different words counted before the rarest are dropped
_BATCH_CHARS = 1 << 24  # characters counted together
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are evenly spaced in [0, 1)
# Text between two spaces is split at punctuation, for scripts without spaces. A punctuation
# character stays with the following text, so that only the first part appears to start a word.
_PART = re.compile(r".[^、。，．！？；：…「」『』（）《》〈〉【】“”‘’।॥؟۔،؛៖។၊။]*", re.DOTALL)  # noqa: RUF001 (punctuation of other scripts)

Splitter = Callable[[str], Iterable[str]]


def wordpiece_splitters(
    cased: bool, strip_accents: bool | None = None
) -> tuple[Splitter, Splitter]:
    """Return `split_line` and `split_words` of `count_words` for WordPiece.

    Args:
      cased: False lower-cases text.
      strip_accents: remove accents; None removes them if text is lower-cased.
    """
    strip_accents = not cased if strip_accents is None else strip_accents
    return (
        functools.partial(split_for_caching, cased=cased),
        functools.partial(basic_tokenize, cased=cased, strip_accents=strip_accents),
    )


def sentencepiece_splitters() -> tuple[Splitter, Splitter]:
    """Return `split_line` and `split_words` of `count_words` for SentencePiece."""
    return str.split, _split_at_punctuation


def _split_at_punctuation(word: str) -> list[str]:
    return [word] if word.isascii() else _PART.findall(word)


def sample_documents(
    documents: Iterable[list[str]], fraction: float, complement: bool = False
) -> Iterator[list[str]]:
    """Yield a fraction of the documents, evenly spaced and always the same, or all others."""
    for number, document in enumerate(documents):
        if (number * _GOLDEN % 1 < fraction) != complement:
            yield document


def count_words(
    lines: Iterable[str], split_line: Splitter, split_words: Splitter, workers: int | None = 1
) -> Counter[str]:
    """Count the words of a text, with the same result for any number of workers.

    Counts are exact up to `MAX_WORDS` different words. Beyond that, the rarer half is dropped
    repeatedly, which does not affect words that are frequent throughout the text (lossy counting,
    Manku and Motwani 2002). A hash breaks ties, not the order of occurrence: if most words occur
    once, a sample of the whole text remains.

    Args:
      lines: the text in parts that no word crosses.
      split_line: splits a line into parts, cheaply.
      split_words: splits a part into words; called once per different part of a batch.
      workers: processes that count; see `ordered_map`.

    Raises:
      InputError: the text has no word.
    """
    words: Counter[str] = Counter()
    is_truncated = False
    # `ordered_map` calls this in each worker for the function that counts there.
    make_counter = functools.partial(functools.partial, _count_batch, split_line, split_words)
    batches = group_by_size(lines, len, _BATCH_CHARS + 1)
    for batch_counts in ordered_map(make_counter, batches, workers):
        words.update(batch_counts)
        if len(words) > MAX_WORDS:
            log.info("counted %d different words", len(words))
            words, is_truncated = _most_common(words, MAX_WORDS // 2), True
    if is_truncated:  # rare words counted since the last truncation are dropped like earlier ones
        words = _most_common(words, MAX_WORDS // 2)
    if not words:
        raise InputError("the text has no words. Use a text with words to train a vocabulary.")
    return words


def _count_batch(split_line: Splitter, split_words: Splitter, lines: list[str]) -> Counter[str]:
    parts: Counter[str] = Counter()
    for line in lines:
        parts.update(split_line(line))
    words: Counter[str] = Counter()
    for part, count in parts.items():
        for word in split_words(part):
            words[word] += count
    return words


def _most_common(words: Counter[str], max_words: int) -> Counter[str]:
    hashes = np.array([zlib.crc32(word.encode(errors="surrogatepass")) for word in words])
    order = np.lexsort((hashes, -np.fromiter(words.values(), np.int64)))[:max_words]
    names = list(words)
    return Counter({names[i]: words[names[i]] for i in order.tolist()})


def reweight_counts(counts: Sequence[Counter[str]], sampling_alpha: float) -> Counter[str]:
    """Merge the counts of several corpora, with p^sampling_alpha (normalized) as their proportions.

    Args:
      counts: word counts of each corpus.
      sampling_alpha: 1 is natural; see `pretraining.mixture.mixture_proportions`.

    Raises:
      InputError: `sampling_alpha` is not in [0, 1].
    """
    if not 0 <= sampling_alpha <= 1:
        raise InputError(
            f"sampling_alpha={sampling_alpha}: not in [0, 1]. Use 1 for natural proportions, 0 for "
            "uniform ones, or a value between."
        )
    largest = max(corpus.total() for corpus in counts)
    merged: Counter[str] = Counter()
    for corpus in counts:
        factor = (largest / corpus.total()) ** (1 - sampling_alpha)
        merged.update({word: round(count * factor) for word, count in corpus.items()})
    return merged
