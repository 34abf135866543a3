"""WordPiece, the tokenizer of google-research/bert.

`basic_tokenize` cleans the text and splits it into words and punctuation characters. The compiled
model of the `tokenizers` library then splits each word into the longest known tokens, from left to
right.

Neither step depends on characters beyond a space, so a text may be split into parts that are
tokenized independently (`split_for_caching`). Results for parts can be cached exactly, and natural
text repeats its words: nearly all the work is one dictionary look-up per word.
"""

import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from etils import epath
from tokenizers import Tokenizer as CompiledTokenizer
from tokenizers import models, pre_tokenizers

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.basic_tokenization import (
    basic_tokenize,
    basic_tokenize_with_offsets,
    split_for_caching,
)
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS_MAP,
    special_token_ids,
)

VOCAB_FILE = "vocab.txt"
MAX_INPUT_CHARS_PER_WORD = 200  # a longer word is [UNK], as in google-research/bert
CONTINUATION_PREFIX = "##"  # prefix of a token that continues a word


class _WordCache(dict[str, tuple[int, ...]]):
    """A cache of the ids of short words; it is cleared when it is full."""

    MAX_ENTRIES = 1 << 17
    MAX_CHARS = 64  # longer words, such as a line of Chinese or an address, rarely repeat

    def __init__(self, compute: Callable[[str], Iterable[int]]):
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._compute(word))
        if len(word) <= self.MAX_CHARS:
            if len(self) >= self.MAX_ENTRIES:
                self.clear()
            self[word] = ids
        return ids

    def ids(self, words: Iterable[str]) -> Iterable[int]:
        """Return the ids of all words, concatenated."""
        return itertools.chain.from_iterable(map(self.__getitem__, words))


# Tokens that no text contains, since brackets are words of their own: [CLS], [unused7], <S>.
_RESERVED = re.compile(r"\[[^\[\]]+\]|<[^<>]+>")


class WordPieceTokenizer:
    """BERT's tokenizer (Devlin et al. 2019; google-research/bert).

    Args:
      tokens: the vocabulary, by id.
      cased: False lower-cases text.
      strip_accents: remove accents; None removes them if text is lower-cased, as in
        google-research/bert.
      max_input_chars_per_word: a longer word is [UNK]. transformers uses 100.

    Raises:
      InputError: the vocabulary is empty, has an empty or repeated token, or lacks a special token.
    """

    kind = "wordpiece"

    def __init__(
        self,
        tokens: Sequence[str],
        *,
        cased: bool,
        strip_accents: bool | None = None,
        max_input_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
    ):
        self.tokens, self.max_input_chars_per_word = list(tokens), max_input_chars_per_word
        self.cased = cased
        self.strip_accents = not cased if strip_accents is None else strip_accents
        index = _index_tokens(self.tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_token_ids(index)
        self.is_continuation = np.array(
            [t.startswith(CONTINUATION_PREFIX) and t != CONTINUATION_PREFIX for t in self.tokens]
        )
        text_ids = [i for i, token in enumerate(self.tokens) if not _RESERVED.fullmatch(token)]
        self.text_token_ids = np.array(text_ids, np.int32)
        self._lengths = [
            len(token.removeprefix(CONTINUATION_PREFIX) if is_continuation else token)
            for token, is_continuation in zip(self.tokens, self.is_continuation, strict=True)
        ]
        self._model = models.WordPiece(
            vocab=index, unk_token="[UNK]", max_input_chars_per_word=max_input_chars_per_word
        )
        self._compiled = CompiledTokenizer(self._model)
        self._compiled.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._ids_of_word = _WordCache(self._longest_matches)
        self._ids_of_raw = _WordCache(self._encode_raw)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        restore = functools.partial(
            WordPieceTokenizer,
            cased=self.cased,
            strip_accents=self.strip_accents,
            max_input_chars_per_word=self.max_input_chars_per_word,
        )
        return restore, (self.tokens,)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text; special tokens are neither added nor recognized."""
        if text.isascii() and text.isalnum():  # a single word
            return self._longest_matches(text if self.cased else text.lower())
        return list(self._ids_of_raw.ids(split_for_caching(text, cased=self.cased)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and character offsets; see `Tokenizer`."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        words = basic_tokenize_with_offsets(
            text, cased=self.cased, strip_accents=self.strip_accents
        )
        for word in words:
            word_ids = self._ids_of_word[word.word]
            ids += word_ids
            first = 0
            for token_id in word_ids:
                length = len(word.word) if token_id == self.unk_id else self._lengths[token_id]
                offsets.append((word.starts[first], word.ends[first + length - 1]))
                first += length
        return ids, offsets

    def encode_words(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode many words, or other short texts without lone surrogates, in one compiled call.

        Returns:
          The ids of all words [n], and the number of ids of each word [w], both int64.
        """
        parts = [
            basic_tokenize(word, cased=self.cased, strip_accents=self.strip_accents)
            for word in words
        ]
        encoding = self._compiled.encode(" ".join(itertools.chain(*parts)))
        ends = np.cumsum([0, *map(len, parts)])  # of words, in parts
        tokens = np.bincount(np.array(encoding.word_ids, np.int64), minlength=ends[-1])
        ids_before = np.concatenate([[0], np.cumsum(tokens)])
        return np.array(encoding.ids, np.int64), np.diff(ids_before[ends])

    def decode(self, ids: Sequence[int]) -> str:
        """Return readable text: words separated by spaces, special tokens by name."""
        parts = (
            self.tokens[i].removeprefix(CONTINUATION_PREFIX)
            if self.is_continuation[i]
            else " " + self.tokens[i]
            for i in ids
        )
        return "".join(parts).strip()

    def fingerprint(self) -> str:
        """Return a hex digest of the vocabulary and the options."""
        options = {
            "cased": self.cased,
            "strip_accents": self.strip_accents,
            **self._max_chars_config,
        }
        return hashlib.sha256(json.dumps([self.kind, self.tokens, options]).encode()).hexdigest()

    def save(self, directory: epath.PathLike) -> None:
        """Write `vocab.txt` and `tokenizer_config.json` as transformers does."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / VOCAB_FILE).write_bytes(("\n".join(self.tokens) + "\n").encode())
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": not self.cased,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            **self._max_chars_config,
            **SPECIAL_TOKENS_MAP,
        }
        atomic_write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    @property
    def _max_chars_config(self) -> dict[str, int]:
        """The entry of `tokenizer_config.json` for a limit that is not the default."""
        limit = self.max_input_chars_per_word
        return {} if limit == MAX_INPUT_CHARS_PER_WORD else {"max_input_chars_per_word": limit}

    def _encode_raw(self, raw: str) -> Iterable[int]:
        words = basic_tokenize(raw, cased=self.cased, strip_accents=self.strip_accents)
        return self._longest_matches(*words) if len(words) == 1 else self._ids_of_word.ids(words)

    def _longest_matches(self, word: str) -> list[int]:
        try:
            return [token.id for token in self._model.tokenize(word)]
        except UnicodeEncodeError:  # a lone surrogate
            return [self.unk_id]


def _index_tokens(tokens: list[str]) -> dict[str, int]:
    if not tokens:
        raise InputError("the vocabulary is empty. Write one token per line.")
    index: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not token:
            raise InputError(f"line {i + 1} is empty. Remove it.")
        if token in index:
            raise InputError(
                f"token {token!r} is repeated on lines {index[token] + 1} and {i + 1}. Remove one "
                "of them."
            )
        index[token] = i
    return index


def parse_vocab(content: bytes) -> list[str]:
    """Return the tokens of a vocabulary file, one per line, without surrounding white space.

    The published Chinese vocabulary has a line separator (U+2028) as a token.

    Raises:
      InputError: the content is not UTF-8.
    """
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}. Save the "
            "vocabulary as UTF-8."
        ) from error
    if not lines[-1]:
        lines.pop()
    return [line.strip() or line.strip(" \t\r") for line in lines]


def has_uppercase(tokens: list[str]) -> bool:
    """Return whether a text token has an upper-case letter, so that the vocabulary is cased."""
    return _first_changed(tokens, str.lower) is not None


def has_accents(tokens: list[str]) -> bool:
    """Return whether a token has combining marks: accents, or vowel and tone signs."""
    characters = unicodedata.normalize("NFD", "".join(tokens))
    return any(unicodedata.category(char) == "Mn" for char in set(characters))


def _first_changed(tokens: list[str], change: Callable[[str], str]) -> str | None:
    """Return the first text token that lower-casing (or upper-casing) changes; None if none."""
    return next((t for t in tokens if change(t) != t and not _RESERVED.fullmatch(t)), None)


def case_conflict(tokens: list[str], cased: bool) -> tuple[str, str] | None:
    """Return the problem of a vocabulary of the other case, and its fix; None if they agree.

    A vocabulary without cased letters (Chinese, digits) agrees with either.
    """
    upper, lower = _first_changed(tokens, str.lower), _first_changed(tokens, str.upper)
    if not cased and upper is not None:
        return (
            f"the vocabulary is cased (it contains {upper!r}), but text is lower-cased, so part of "
            "it is never used.",
            "Use a cased tokenizer (--cased).",
        )
    if cased and upper is None and lower is not None:
        return (
            "the vocabulary is uncased (no token has an upper-case letter), but text is not "
            "lower-cased, so capitals are unknown.",
            "Use an uncased tokenizer (no --cased).",
        )
    return None
