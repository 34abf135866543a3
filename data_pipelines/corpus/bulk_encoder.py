"""Many sentences to ids at a time: the ids of `Tokenizer.encode`, at a fraction of the cost.

WordPiece treats what stands between spaces and ASCII punctuation without a look at its neighbours,
and text repeats its words. So all words of a batch are found, looked up in a cache and replaced by
their ids in a few array operations; only words that the cache lacks go to the tokenizer.
"""

import contextlib
import itertools
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from data_pipelines.corpus.shards import token_dtype
from data_pipelines.ranges import concatenate_ranges
from data_pipelines.vocabulary.tokenization import Tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

T = TypeVar("T")

_SLOTS = 1 << 18  # words in the cache, at 32 bytes, or 40 with ids of four bytes
_MAX_PROBES = 4  # slots that are tried
_BATCH_CHARS = 1 << 16  # characters whose arrays fit into the processor's cache
_MAX_CACHED_BYTES = 16  # bytes of UTF-8, two machine words, that the cache takes
_MAX_CACHED_IDS = 4  # of a word that the cache takes
# For each count of ids which of _MAX_CACHED_IDS places they fill: booleans, to be gathered in one piece.
_ID_MASKS = np.tri(_MAX_CACHED_IDS + 1, _MAX_CACHED_IDS, -1, bool).view(f"V{_MAX_CACHED_IDS}")[:, 0]

_SPACE, _LETTER, _PUNCTUATION = range(3)
_BYTE_CLASSES = np.full(
    256, _LETTER, np.uint8
)  # of a byte; a letter is also what the tokenizer drops
_BYTE_CLASSES[list(b" \t\n\r")] = _SPACE
_BYTE_CLASSES[list(string.punctuation.encode())] = _PUNCTUATION
_BYTE_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_MAX_CACHED_BYTES // 2 + 1)], "<u8")
_HASH_MULTIPLIERS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], "<u8"
)  # odd, bits in disorder


def group_by_size(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Runs of items, in order, each ended by the item that brings its size to the limit."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


class BulkEncoder:
    """A tokenizer with a cache of words. Call it with sentences.

    The cache is a table with open addressing: a word is looked for in a few slots, the first of
    them chosen by a hash, and stays in the one it finds free; frequent words come early. The key is
    the word itself, its bytes with zeros behind: no word is taken for another. (NUL may be lost at
    the end of a word, but the tokenizer drops it anyway.)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = token_dtype(len(tokenizer.tokens))
        ids = f"V{_MAX_CACHED_IDS * self.dtype.itemsize}"
        fields = [("low", "<u8"), ("high", "<u8"), ("ids", ids), ("count", "<u8")]
        self._table = np.zeros(_SLOTS, fields)  # count 0: the slot is free

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids [n] of sentences without line feeds, and how many [s] of them each one has."""
        parts = [self._encode(part) for part in group_by_size(sentences, len, _BATCH_CHARS)]
        tokens, lengths = zip(*parts, strict=True) if parts else ([], [])
        return (
            np.concatenate([np.zeros(0, self.dtype), *tokens]),
            np.concatenate([np.zeros(0, np.int64), *lengths]),
        )

    def _encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        text = "\n".join(sentences)
        if text.count("\n") >= len(sentences):
            raise ValueError("a sentence holds a line feed; split the text at line feeds first")
        # The lower case of a capital sigma depends on what follows, punctuation or not.
        tokenizer = self.tokenizer
        alone = tokenizer.cased or "Σ" not in text
        if isinstance(tokenizer, WordPieceTokenizer) and alone:
            # Half a surrogate pair, as JSON may hold, has no UTF-8.
            with contextlib.suppress(UnicodeEncodeError):
                return self._encode_words(text.encode(), tokenizer)
        encoded = [tokenizer.encode(sentence) for sentence in sentences]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        return np.fromiter(itertools.chain.from_iterable(encoded), self.dtype), lengths

    def _encode_words(
        self, content: bytes, tokenizer: WordPieceTokenizer
    ) -> tuple[np.ndarray, np.ndarray]:
        content += b"\n"
        if not tokenizer.cased:
            content = content.lower()  # what is not ASCII the tokenizer lower-cases, word by word
        starts, ends, lines = _find_words(np.frombuffer(content, np.uint8))
        low, high = _word_keys(content, starts, ends)
        slots, rows, known = self._look_up(low, high)
        short = ends - starts <= _MAX_CACHED_BYTES
        known &= short
        counts = np.where(known, rows["count"], 0).astype(np.int64)
        known_ids = rows["ids"].copy().view(self.dtype)[_ID_MASKS[counts].view(bool)]

        unknown = np.flatnonzero(~known)
        spans = zip(starts[unknown].tolist(), ends[unknown].tolist(), strict=True)
        words = [content[start:end].decode() for start, end in spans]
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        ids, ids_of = tokenizer.encode_words(numbers)
        which = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        counts[unknown] = ids_of[which]
        first = np.cumsum(ids_of) - ids_of

        bounds = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.zeros(bounds[-1], self.dtype)
        added = np.zeros(len(tokens), bool)
        added[concatenate_ranges(bounds[unknown], counts[unknown])] = True
        tokens[added] = ids[concatenate_ranges(first[which], counts[unknown])]
        tokens[~added] = known_ids

        free = rows["count"][unknown] == 0
        new = unknown[free & short[unknown] & (counts[unknown] <= _MAX_CACHED_IDS)]
        new = new[np.unique(slots[new], return_index=True)[1]]
        learnt = np.zeros(len(new), self._table.dtype)
        learnt["low"], learnt["high"], learnt["count"] = low[new], high[new], counts[new]
        places = np.zeros(_MAX_CACHED_IDS * len(new), self.dtype)
        places[_ID_MASKS[counts[new]].view(bool)] = tokens[
            concatenate_ranges(bounds[new], counts[new])
        ]
        learnt["ids"] = places.view(learnt["ids"].dtype)
        self._table[slots[new]] = learnt
        return tokens, np.diff(bounds[lines], prepend=0)

    def _look_up(
        self, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each word [w] the slot where the search ended, its row, and whether it is known."""
        mixed = (low * _HASH_MULTIPLIERS[0] ^ high * _HASH_MULTIPLIERS[1]) * _HASH_MULTIPLIERS[
            0
        ] >> np.uint64(40)  # the high bits
        slots = mixed.astype(np.int64) % _SLOTS
        rows = np.take(self._table, slots)
        known, others = _compare(rows, low, high)
        searched = np.flatnonzero(others)
        for _ in range(_MAX_PROBES - 1):
            slots[searched] = (slots[searched] + 1) % _SLOTS
            rows[searched] = held = np.take(self._table, slots[searched])
            known[searched], others = _compare(held, low[searched], high[searched])
            searched = searched[others]
        return slots, rows, known


def _compare(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of the table hold the word asked for, and which hold another; both bool [w]."""
    taken = rows["count"] > 0
    same = taken & (rows["low"] == low) & (rows["high"] == high)
    return same, taken & ~same


def _find_words(content: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts [w] and ends [w] of words, and for each line feed the words [s] before it.

    `content` is uint8 and ends with a line feed. A punctuation sign is a word.
    """
    kinds = _BYTE_CLASSES[content]
    letter = kinds == _LETTER
    start = kinds == _PUNCTUATION
    end = start.copy()
    start[0] |= letter[0]
    start[1:] |= letter[1:] & ~letter[:-1]
    end[:-1] |= letter[:-1] & ~letter[1:]
    starts = np.flatnonzero(start)
    lines = np.searchsorted(starts, np.flatnonzero(content == ord("\n")))
    return starts, np.flatnonzero(end) + 1, lines


def _word_keys(
    content: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes 0-7 and 8-15 of each word, both uint64 [w], zeros behind shorter words."""
    halves = np.ndarray(len(content) + 8, "<u8", content + bytes(_MAX_CACHED_BYTES), strides=(1,))
    lengths = ends - starts
    low = halves[starts] & _BYTE_MASKS[np.minimum(lengths, 8)]
    high = np.zeros(len(starts), np.uint64)
    long = np.flatnonzero(lengths > 8)
    high[long] = halves[starts[long] + 8] & _BYTE_MASKS[np.minimum(lengths[long] - 8, 8)]
    return low, high
