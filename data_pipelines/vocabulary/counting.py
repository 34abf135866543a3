"""How often each word occurs in a text, however long it is: what a vocabulary is trained on.

Memory is bounded by the different words of a text, not by its length.
"""

import functools
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.parallel import ordered_map
from data_pipelines.vocabulary.words import basic_tokenize, split_for_caching

log = logging.getLogger(__name__)

MAX_WORDS = 1_000_000  # different words that are counted before the rarest are forgotten
_BATCH_CHARS = 1 << 24  # characters that are counted together
_GOLDEN = 0.6180339887498949
# Where words are not divided by spaces, punctuation divides them. It stays with what follows, so
# that no part but the first seems to begin a word.
_PART = re.compile(r".[^、。，．！？；：…「」『』（）《》〈〉【】“”‘’।॥؟۔،؛៖។၊။]*", re.DOTALL)  # noqa: RUF001

Splitter = Callable[[str], Iterable[str]]


def wordpiece_splitters(cased: bool) -> tuple[Splitter, Splitter]:
    """`split_line` and `split_words` of `count_words` for the words that WordPiece cuts into pieces."""
    return (
        functools.partial(split_for_caching, cased=cased),
        functools.partial(basic_tokenize, cased=cased, strip_accents=not cased),
    )


def sentencepiece_splitters() -> tuple[Splitter, Splitter]:
    """`split_line` and `split_words` of `count_words` for what SentencePiece cuts into pieces."""
    return str.split, _split_at_punctuation


def _split_at_punctuation(word: str) -> list[str]:
    return [word] if word.isascii() else _PART.findall(word)


def sample_documents(documents: Iterable[list[str]], share: float) -> Iterator[list[str]]:
    """So many of the documents, evenly spread over them, always the same."""
    for number, document in enumerate(documents):
        if number * _GOLDEN % 1 < share:
            yield document


def count_words(
    lines: Iterable[str],
    split_line: Splitter,
    split_words: Splitter,
    max_words: int = MAX_WORDS,
    workers: int | None = 1,
) -> Counter[str]:
    """How often each word occurs in the text, the same for any number of workers.

    Exact as long as there are no more than `max_words` different words. Beyond that, the rarest half is
    forgotten each time, which costs the words that are frequent throughout the text nothing (lossy
    counting, Manku and Motwani 2002). Of equally rare ones a hash decides, not which came first:
    where most words are as good as unique, a sample of the whole text is left.

    Args:
      lines: the text, in parts that no word spans.
      cut: cuts a line into parts, cheaply.
      split_words: the words of such a part; called once for all its occurrences in a batch.
      most: the bound on the different words held.
      workers: processes that count; see `ordered_map`.

    Raises:
      InputError: the text holds no word.
    """
    words: Counter[str] = Counter()
    forgot = False
    count = functools.partial(_count_batch, split_line, split_words)
    for counted in ordered_map(
        functools.partial(_return_argument, count), _batches(lines), workers
    ):
        words.update(counted)
        if len(words) > max_words:
            log.info("counted %d different words", len(words))
            words, forgot = _most_common(words, max_words // 2), True
    if forgot:  # so that the end of the text counts no more than what is before it
        words = _most_common(words, max_words // 2)
    if not words:
        raise InputError("the text holds no word; give a text to train a vocabulary on")
    return words


def _return_argument(function: Callable) -> Callable:
    return function


def _count_batch(split_line: Splitter, split_words: Splitter, lines: list[str]) -> Counter[str]:
    parts: Counter[str] = Counter()
    for line in lines:
        parts.update(split_line(line))
    words: Counter[str] = Counter()
    for part, count in parts.items():
        for word in split_words(part):
            words[word] += count
    return words


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size > _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    yield batch


def _most_common(words: Counter[str], max_words: int) -> Counter[str]:
    hashes = np.array([zlib.crc32(word.encode(errors="surrogatepass")) for word in words])
    order = np.lexsort((hashes, -np.fromiter(words.values(), np.int64)))[:max_words]
    names = list(words)
    return Counter({names[i]: words[names[i]] for i in order.tolist()})


def reweight_counts(counts: Sequence[Counter[str]], sampling_alpha: float) -> Counter[str]:
    """The counts of several corpora as one, as if each had p^smoothing of the words instead of p.

    Args:
      counts: of each corpus.
      smoothing: 1 leaves them as they are; see `pretraining.mixture.shares`.

    Raises:
      InputError: no such exponent.
    """
    if not 0 <= sampling_alpha <= 1:
        raise InputError(
            f"smoothing={sampling_alpha} is no exponent; give one from 0 (equal) to 1 (natural)."
        )
    largest = max(corpus.total() for corpus in counts)
    together: Counter[str] = Counter()
    for corpus in counts:
        factor = (largest / corpus.total()) ** (1 - sampling_alpha)
        together.update({word: round(count * factor) for word, count in corpus.items()})
    return together
