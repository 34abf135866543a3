"""Vocabulary extension: the WordPiece tokens that save most tokens of a text.

A candidate joins adjacent tokens of a word: a whole word, its beginning, or a later part ("##...").
The candidate that saves most is taken, then the next one. Its savings are those of the greedy
longest match: the words in which it would be taken are tokenized with it. An estimate orders the
candidates, so that few of them are measured (lazy greedy selection, Minoux 1978).

A token may lose its use to later ones, as "embed" to "embedding". Such tokens are dropped at the
end, and others take their places.
"""

import heapq
import itertools
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.vocabulary.vocab_file import RESERVED, index_tokens
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX, WordPieceTokenizer

MIN_FREQUENCY = 2  # minimum number of occurrences of a word, and of tokens that a token saves
MAX_WORDS = 300_000  # most frequent words that are tokenized
_UNUSED = re.compile(r"\[unused\d+\]")
_SURROGATES = re.compile("[\ud800-\udfff]")  # a word with one is [UNK]
_log = logging.getLogger("data_pipelines")
_MAX_PARTS = 8  # tokens that a candidate joins
_Ends = tuple[int, ...]


class TokenCounts(NamedTuple):
    """The size of a text.

    Attributes:
      words: words and punctuation characters.
      tokens: their tokens.
      unknown: words that are [UNK].
    """

    words: int
    tokens: int
    unknown: int


def count_tokens(counts: Mapping[str, int], tokenizer: WordPieceTokenizer) -> TokenCounts:
    """Return the size of a text with these word counts."""
    words = [word for word in counts if not _SURROGATES.search(word)]
    ids, sizes = tokenizer.encode_words(words)
    numbers = np.array([counts[word] for word in words], np.int64)
    first = np.cumsum(sizes) - sizes
    is_unknown = ids[first[sizes > 0]] == tokenizer.unk_id
    surrogates = sum(counts.values()) - int(numbers.sum())
    return TokenCounts(
        int(numbers.sum()) + surrogates,
        int((numbers * sizes).sum()) + surrogates,
        int(numbers[sizes > 0][is_unknown].sum()) + surrogates,
    )


def unused_ids(tokenizer: WordPieceTokenizer) -> list[int]:
    """Return the ids of the [unusedN] tokens that have no use, ascending."""
    used = {*tokenizer.special_tokens, *(token.content for token in tokenizer.added_tokens)}
    index = index_tokens(tokenizer.tokens)
    return [
        i
        for i, token in enumerate(tokenizer.tokens)
        if _UNUSED.fullmatch(token) and token not in used and index[token] == i
    ]


def extend_tokenizer(
    tokenizer: WordPieceTokenizer, tokens: Sequence[str]
) -> tuple[WordPieceTokenizer, list[int]]:
    """Return a tokenizer with further tokens, and their ids.

    They replace [unusedN] tokens first. Others follow the old tokens, which keep their ids.
    """
    size, slots = len(tokenizer.tokens), unused_ids(tokenizer)
    ids = list(itertools.islice(itertools.chain(slots, itertools.count(size)), len(tokens)))
    extended = [*tokenizer.tokens, *[""] * (len(tokens) - len(slots))]
    for id_, token in zip(ids, tokens, strict=True):
        extended[id_] = token
    return tokenizer.with_tokens(extended), ids


def replaced_ids(tokenizer: WordPieceTokenizer, tokens: Iterable[str]) -> list[list[int]]:
    """Return, for each new token, the ids of the old tokens that it replaces."""
    index = index_tokens(tokenizer.tokens)
    replaced = []
    for token in tokens:
        is_continuation = token.startswith(CONTINUATION_PREFIX)
        body = token.removeprefix(CONTINUATION_PREFIX)
        bounds = (0, *longest_matches(body, index, is_continuation))
        prefixes = itertools.chain(
            [CONTINUATION_PREFIX if is_continuation else ""], itertools.repeat(CONTINUATION_PREFIX)
        )
        spans = zip(prefixes, itertools.pairwise(bounds), strict=False)
        replaced.append([index[prefix + body[start:end]] for prefix, (start, end) in spans])
    return replaced


def choose_tokens(
    counts: Mapping[str, int], tokenizer: WordPieceTokenizer, num_tokens: int
) -> list[str]:
    """Return the tokens that save most tokens of a text, in the order of their choice.

    Each has a use: some word of the text has more tokens without it. No word becomes [UNK]. Words
    that occur once are not read, nor are [UNK] words, in which no token saves another.

    Args:
      counts: count of each word, as the tokenizer splits text into words.
      tokenizer: the vocabulary that is extended.
      num_tokens: number of tokens.

    Raises:
      InputError: so many tokens save nothing; the error names the largest number.
    """
    special = {*tokenizer.special_tokens, *tokenizer.watched_tokens}
    text = _Text(counts, tokenizer)
    heap = [(-gain, token) for token, gain in text.estimates().items()]
    heapq.heapify(heap)
    chosen: list[str] = []
    dropped: set[str] = set()
    while True:
        gain = _fill(text, heap, chosen, num_tokens, special | dropped)
        if len(chosen) < num_tokens:
            raise InputError(
                f"add={num_tokens}: only {len(chosen):,} tokens save any others on this text. "
                "Add fewer, or give more text."
            )
        useless = text.remove_useless(chosen, gain)
        if not useless:
            return chosen
        _log.info("%d tokens are replaced, since later ones took over.", len(useless))
        dropped |= useless
        chosen = [token for token in chosen if token not in useless]


def longest_matches(
    word: str, vocabulary: Container[str], is_continuation: bool = False
) -> tuple[int, ...]:
    """Return the end of each token of a word; () if it is [UNK].

    Args:
      word: a word, or a later part of one.
      vocabulary: the tokens.
      is_continuation: True for a later part.
    """
    ends: list[int] = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION_PREFIX if start or is_continuation else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in vocabulary:
                break
        else:
            return ()
        ends.append(end)
        start = end
    return tuple(ends)


def _fill(
    text: "_Text",
    heap: list[tuple[int, str]],
    chosen: list[str],
    num_tokens: int,
    excluded: Collection[str],
) -> int:
    """Append to `chosen` up to `num_tokens` tokens; return the tokens that the last one saves.

    Args:
      text: the words; its vocabulary gets the tokens.
      heap: estimated savings (negative) and candidates.
      chosen: tokens so far.
      num_tokens: number of tokens.
      excluded: tokens that are not taken.
    """
    gain = MIN_FREQUENCY
    while heap and len(chosen) < num_tokens:
        _, token = heapq.heappop(heap)
        if token in text.vocabulary or token in excluded or not text.is_candidate(token):
            continue
        saved, changed = text.measure(token)
        if saved < MIN_FREQUENCY:
            continue
        if heap and saved < -heap[0][0]:
            heapq.heappush(heap, (-saved, token))
            continue
        gain = saved
        chosen.append(token)
        for candidate, estimate in text.add(token, changed).items():
            heapq.heappush(heap, (-estimate, candidate))
        if len(chosen) % 1_000 == 0:
            _log.info("%d of %d tokens", len(chosen), num_tokens)
    return gain


class _Text:
    """The words of several tokens, and their tokens with a vocabulary that grows.

    Attributes:
      vocabulary: the tokens.
    """

    def __init__(self, counts: Mapping[str, int], tokenizer: WordPieceTokenizer) -> None:
        self._old = {*tokenizer.tokens} - {""}
        self.vocabulary = {*self._old}
        frequent = sorted(
            (-count, word)
            for word, count in counts.items()
            if count >= MIN_FREQUENCY and word not in self._old
            if len(word) <= tokenizer.max_input_chars_per_word and not _SURROGATES.search(word)
        )[:MAX_WORDS]
        self._words, self._counts = list[str](), list[int]()
        self._ends = list[_Ends]()  # of the tokens of each word
        for negative, word in frequent:
            if ends := self._split(word):
                self._words.append(word)
                self._counts.append(-negative)
                self._ends.append(ends)
        # All words, each after a newline, since a search in one string is fast.
        self._joined = "\n".join(["", *self._words, ""])
        self._starts = [*itertools.accumulate((len(w) + 1 for w in self._words), initial=1)]
        # Length of the token that starts with each character; 0 if none does.
        self._lengths = np.zeros(len(self._joined), np.int16)
        for index, ends in enumerate(self._ends):
            self._write_lengths(index, ends)

    def estimates(self) -> Counter[str]:
        """Return an estimate of the tokens that each candidate saves."""
        estimates: Counter[str] = Counter()
        for index in range(len(self._words)):
            estimates.update(self._candidates(index))
        return estimates

    def is_candidate(self, token: str) -> bool:
        """Return whether the old vocabulary has tokens for a new one, and it is not reserved."""
        is_continuation = token.startswith(CONTINUATION_PREFIX)
        body = token.removeprefix(CONTINUATION_PREFIX)
        parts = longest_matches(body, self._old, is_continuation)
        return bool(parts) and not RESERVED.fullmatch(token)

    def measure(self, token: str) -> tuple[int, dict[int, _Ends]]:
        """Return how many tokens a new one saves, and the token ends of each word that changes.

        It saves 0 if a word would become [UNK].
        """
        self.vocabulary.add(token)
        changed = {index: self._split(self._words[index]) for index in self._matches(token)}
        self.vocabulary.discard(token)
        return self._saved(changed), changed

    def add(self, token: str, changed: Mapping[int, _Ends]) -> Counter[str]:
        """Add a token that was measured; return estimates of candidates that are new."""
        self.vocabulary.add(token)
        new: Counter[str] = Counter()
        for index, ends in changed.items():
            shifted = not {*ends} <= {*self._ends[index]}
            self._write_lengths(index, ends)
            if shifted:  # other tokens are adjacent now
                new.update(self._candidates(index))
        return new

    def remove_useless(self, tokens: Sequence[str], gain: int) -> set[str]:
        """Remove and return those of the added tokens that save less than `gain`."""
        useless = set()
        for token in tokens:
            users = self._matches(token, in_use=True)
            self.vocabulary.discard(token)
            changed = {index: self._split(self._words[index]) for index in users}
            if all(changed.values()) and -self._saved(changed) < gain:
                useless.add(token)
                for index, ends in changed.items():
                    self._write_lengths(index, ends)
            else:
                self.vocabulary.add(token)
        return useless

    def _matches(self, token: str, in_use: bool = False) -> Iterator[int]:
        """Yield each word that would have the token, or that has it, by its index."""
        is_continuation = token.startswith(CONTINUATION_PREFIX)
        body = token.removeprefix(CONTINUATION_PREFIX)
        pattern = body if is_continuation else f"\n{body}"
        found, last = -1, -1
        while (found := self._joined.find(pattern, found + 1)) >= 0:
            position = found + len(pattern) - len(body)
            length = int(self._lengths[position])
            is_used = length == len(body) if in_use else 0 < length < len(body)
            if is_used and is_continuation != (self._joined[position - 1] == "\n"):
                index = bisect_right(self._starts, position) - 1
                if index != last:
                    yield index
                last = index

    def _saved(self, changed: Mapping[int, _Ends]) -> int:
        """Return the tokens that new token ends of words save; 0 if a word has none ([UNK])."""
        if not all(changed.values()):
            return 0
        return sum(
            (len(self._ends[index]) - len(ends)) * self._counts[index]
            for index, ends in changed.items()
        )

    def _candidates(self, index: int) -> dict[str, int]:
        """Return the joined tokens of a word, and how many tokens each saves in all of them."""
        word, count = self._words[index], self._counts[index]
        bounds = (0, *self._ends[index])
        candidates: dict[str, int] = {}
        for first, start in enumerate(bounds[:-2]):
            prefix = CONTINUATION_PREFIX if start else ""
            for saved, end in enumerate(bounds[first + 2 : first + 1 + _MAX_PARTS], 1):
                token = prefix + word[start:end]
                candidates[token] = candidates.get(token, 0) + saved * count
        return candidates

    def _write_lengths(self, index: int, ends: _Ends) -> None:
        self._ends[index] = ends
        first = self._starts[index]
        bounds = np.array([0, *ends])
        self._lengths[first : first + bounds[-1]] = 0
        self._lengths[first + bounds[:-1]] = np.diff(bounds)

    def _split(self, word: str) -> _Ends:
        return longest_matches(word, self.vocabulary)
