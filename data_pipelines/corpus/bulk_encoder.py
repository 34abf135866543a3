"""Fast tokenization of many sentences: the ids of `Tokenizer.encode` at a fraction of its cost.

WordPiece tokenizes each run of characters between spaces and ASCII punctuation independently, and
text repeats its words. All words of a batch are therefore located, looked up in a cache and
replaced by their ids in a few array operations. The tokenizer sees only words that are not in the
cache.
"""

import contextlib
import itertools
import string
from collections.abc import Sequence
from typing import cast

import numpy as np

from data_pipelines.corpus.shards import token_dtype
from data_pipelines.parallel import group_by_size
from data_pipelines.ranges import concatenate_ranges
from data_pipelines.vocabulary.tokenization import Tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

_CACHE_SLOTS = 1 << 18  # of 32 bytes, or 40 with ids of four bytes
_MAX_PROBES = 4  # slots examined per word
_BATCH_CHARS = 1 << 16  # characters whose arrays fit into the processor's cache
_MAX_CACHED_BYTES = 16  # UTF-8 bytes of a cached word, two machine words
_MAX_CACHED_IDS = 4  # ids of a cached word
# For each count of ids, the mask of the ids in use, as one item so that it is gathered at once.
_ID_MASKS = np.tri(_MAX_CACHED_IDS + 1, _MAX_CACHED_IDS, -1, bool).view(f"V{_MAX_CACHED_IDS}")[:, 0]

_SPACE, _LETTER, _PUNCTUATION = range(3)
# Class of each byte. Characters that the tokenizer drops count as letters.
_BYTE_CLASSES = np.full(256, _LETTER, np.uint8)
_BYTE_CLASSES[list(b" \t\n\r")] = _SPACE
_BYTE_CLASSES[list(string.punctuation.encode())] = _PUNCTUATION
_BYTE_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_MAX_CACHED_BYTES // 2 + 1)], "<u8")
_HASH_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], "<u8")  # odd, well mixed


class BulkEncoder:
    """A tokenizer with a cache of words. Call it with sentences.

    The cache is a hash table with open addressing. A word occupies the first free slot of a few
    that follow its hash; frequent words come early. The key is the word itself, its bytes padded
    with zeros, so different words never collide. (Padding hides trailing NUL characters, which the
    tokenizer drops anyway.)

    Args:
      tokenizer: any tokenizer; only WordPiece uses the cache.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = token_dtype(len(tokenizer.tokens))
        ids = f"V{_MAX_CACHED_IDS * self.dtype.itemsize}"
        fields = [("low", "<u8"), ("high", "<u8"), ("ids", ids), ("count", "<u8")]
        self._table = np.zeros(_CACHE_SLOTS, fields)  # count 0: the slot is free

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize sentences.

        Args:
          sentences: s texts without line feeds.

        Returns:
          The ids of all sentences [n], and the number of ids of each sentence, int64 [s].
        """
        has_added = isinstance(self.tokenizer, WordPieceTokenizer) and self.tokenizer.added_tokens
        encode = self._encode_around_added if has_added else self._encode
        parts = [encode(part) for part in group_by_size(sentences, len, _BATCH_CHARS)]
        tokens, lengths = zip(*parts, strict=True) if parts else ([], [])
        return (
            np.concatenate([np.zeros(0, self.dtype), *tokens]),
            np.concatenate([np.zeros(0, np.int64), *lengths]),
        )

    def _encode_around_added(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize the parts of the sentences between their added tokens."""
        tokenizer = cast(WordPieceTokenizer, self.tokenizer)
        parts = [tokenizer.split_added_tokens(sentence) for sentence in sentences]
        flat = list(itertools.chain.from_iterable(parts))
        is_added = np.array([isinstance(part, int) for part in flat])
        tokens, lengths = self._encode([part for part in flat if isinstance(part, str)])
        if not is_added.any():
            return tokens, lengths
        counts = np.ones(len(flat), np.int64)
        counts[~is_added] = lengths
        ends = np.cumsum(counts)
        result = np.zeros(ends[-1], self.dtype)
        is_text = np.ones(len(result), bool)
        is_text[ends[is_added] - 1] = False
        result[is_text] = tokens
        result[~is_text] = [part for part in flat if isinstance(part, int)]
        sentence_ends = ends[np.cumsum([len(sentence_parts) for sentence_parts in parts]) - 1]
        return result, np.diff(sentence_ends, prepend=0)

    def _encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        text = "\n".join(sentences)
        tokenizer = self.tokenizer
        # The lower case of a capital sigma depends on the following characters.
        words_are_independent = tokenizer.cased or "Σ" not in text
        is_wordpiece = isinstance(tokenizer, WordPieceTokenizer) and tokenizer.do_basic_tokenize
        if is_wordpiece and words_are_independent:
            # A lone surrogate, which JSON may contain, has no UTF-8 encoding.
            with contextlib.suppress(UnicodeEncodeError):
                return self._encode_words(text.encode(), cast(WordPieceTokenizer, tokenizer))
        encoded = [tokenizer.encode(sentence) for sentence in sentences]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        return np.fromiter(itertools.chain.from_iterable(encoded), self.dtype), lengths

    def _encode_words(
        self, content: bytes, tokenizer: WordPieceTokenizer
    ) -> tuple[np.ndarray, np.ndarray]:
        content += b"\n"
        if not tokenizer.cased:
            content = content.lower()  # ASCII; the tokenizer lower-cases other characters
        starts, ends, line_ends = _find_words(np.frombuffer(content, np.uint8))
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
        ids, ids_per_word = tokenizer.encode_words(numbers)
        word_numbers = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        counts[unknown] = ids_per_word[word_numbers]
        first = np.cumsum(ids_per_word) - ids_per_word

        bounds = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.zeros(bounds[-1], self.dtype)
        is_new = np.zeros(len(tokens), bool)
        is_new[concatenate_ranges(bounds[unknown], counts[unknown])] = True
        tokens[is_new] = ids[concatenate_ranges(first[word_numbers], counts[unknown])]
        tokens[~is_new] = known_ids

        free = rows["count"][unknown] == 0
        new = unknown[free & short[unknown] & (counts[unknown] <= _MAX_CACHED_IDS)]
        new = new[np.unique(slots[new], return_index=True)[1]]
        entries = np.zeros(len(new), self._table.dtype)
        entries["low"], entries["high"], entries["count"] = low[new], high[new], counts[new]
        padded_ids = np.zeros(_MAX_CACHED_IDS * len(new), self.dtype)
        padded_ids[_ID_MASKS[counts[new]].view(bool)] = tokens[
            concatenate_ranges(bounds[new], counts[new])
        ]
        entries["ids"] = padded_ids.view(entries["ids"].dtype)
        self._table[slots[new]] = entries
        return tokens, np.diff(bounds[line_ends], prepend=0)

    def _look_up(
        self, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each word [w] the last slot examined, its row, and whether the row matches."""
        mixed = low * _HASH_MULTIPLIERS[0] ^ high * _HASH_MULTIPLIERS[1]
        hashes = mixed * _HASH_MULTIPLIERS[0] >> np.uint64(40)  # the high bits
        slots = hashes.astype(np.int64) % _CACHE_SLOTS
        rows = np.take(self._table, slots)
        known, occupied = _compare(rows, low, high)
        searched = np.flatnonzero(occupied)
        for _ in range(_MAX_PROBES - 1):
            slots[searched] = (slots[searched] + 1) % _CACHE_SLOTS
            rows[searched] = probed = np.take(self._table, slots[searched])
            known[searched], occupied = _compare(probed, low[searched], high[searched])
            searched = searched[occupied]
        return slots, rows, known


def _compare(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of the table hold the word, and which hold another one; both bool [w]."""
    taken = rows["count"] > 0
    same = taken & (rows["low"] == low) & (rows["high"] == high)
    return same, taken & ~same


def _find_words(content: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Locate words. A punctuation character is a word.

    Args:
      content: uint8, ends with a line feed.

    Returns:
      Starts and ends of the words [w], and for each line feed the number of words before it [s].
    """
    classes = _BYTE_CLASSES[content]
    letter = classes == _LETTER
    start = classes == _PUNCTUATION
    end = start.copy()
    start[0] |= letter[0]
    start[1:] |= letter[1:] & ~letter[:-1]
    end[:-1] |= letter[:-1] & ~letter[1:]
    starts = np.flatnonzero(start)
    line_ends = np.searchsorted(starts, np.flatnonzero(content == ord("\n")))
    return starts, np.flatnonzero(end) + 1, line_ends


def _word_keys(
    content: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes 0-7 and 8-15 of each word, padded with zeros, both uint64 [w]."""
    halves = np.ndarray(len(content) + 8, "<u8", content + bytes(_MAX_CACHED_BYTES), strides=(1,))
    lengths = ends - starts
    low = halves[starts] & _BYTE_MASKS[np.minimum(lengths, 8)]
    high = np.zeros(len(starts), np.uint64)
    long = np.flatnonzero(lengths > 8)
    high[long] = halves[starts[long] + 8] & _BYTE_MASKS[np.minimum(lengths[long] - 8, 8)]
    return low, high
