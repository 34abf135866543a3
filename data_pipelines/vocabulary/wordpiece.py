"""WordPiece as BERT's authors published it.

It works in two steps: `basic_tokenize` cleans the text and splits it into words and punctuation
signs, then each word is cut into its longest known pieces, from left to right, by the compiled
model of the `tokenizers` library.

Neither step looks past a space, so a text may be cut into parts that are tokenised alone
(`split_for_caching`). That makes remembering the parts exact, and natural text repeats its words: nearly
all the work is one dictionary look-up a word.
"""

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
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS_MAP,
    digest,
    special_token_ids,
)
from data_pipelines.vocabulary.words import (
    basic_tokenize,
    basic_tokenize_with_offsets,
    split_for_caching,
)

VOCAB_FILE = "vocab.txt"
MAX_INPUT_CHARS_PER_WORD = 200  # characters; a longer word is [UNK], in the original
CONTINUATION_PREFIX = "##"  # the mark of a piece that continues a word


class _WordCache(dict[str, tuple[int, ...]]):
    """Remembers the ids of short words; forgets all of them when it is full, to stay bounded."""

    MAX_ENTRIES = 1 << 17
    MAX_CHARS = 64  # characters; a longer word (a line of Chinese, an address) seldom comes again

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
        return itertools.chain.from_iterable(map(self.__getitem__, words))


# Pieces that no text can give, because brackets are words of their own: [CLS], [unused7], <S>.
_RESERVED = re.compile(r"\[[^\[\]]+\]|<[^<>]+>")


class WordPieceTokenizer:
    """BERT's tokenizer over a list of pieces (Devlin et al. 2019; google-research/bert).

    Args:
      pieces: the vocabulary, a piece for each id.
      cased: whether case is kept; False lower-cases the text.
      strip_accents: whether accents are removed; None follows lower-casing, as in the original.
      max_input_chars_per_word: characters; a longer word is [UNK]. Hugging Face's models have 100.

    Raises:
      InputError: no pieces, an empty or repeated piece, or a special piece that is missing.
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
            [p.startswith(CONTINUATION_PREFIX) and p != CONTINUATION_PREFIX for p in self.tokens]
        )
        real = [i for i, token in enumerate(self.tokens) if not _RESERVED.fullmatch(token)]
        self.text_token_ids = np.array(real, np.int32)
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
        return _restore_wordpiece, (
            self.tokens,
            self.cased,
            self.strip_accents,
            self.max_input_chars_per_word,
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""
        if text.isascii() and text.isalnum():  # one word as it stands
            return self._longest_matches(text if self.cased else text.lower())
        return list(self._ids_of_raw.ids(split_for_caching(text, cased=self.cased)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `Tokenizer`."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        located = basic_tokenize_with_offsets(
            text, cased=self.cased, strip_accents=self.strip_accents
        )
        for each in located:
            tokens = self._ids_of_word[each.word]
            ids += tokens
            first = 0
            for token in tokens:
                length = len(each.word) if token == self.unk_id else self._lengths[token]
                spans.append((each.starts[first], each.ends[first + length - 1]))
                first += length
        return ids, spans

    def encode_words(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """`encode` of many words, or other short texts that UTF-8 can hold, in one compiled call.

        Returns:
          The ids [n] of all, and how many [w] of them each word has, both int64.
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
        """Readable text: pieces joined to words, words separated by spaces, specials by name."""
        parts = (
            self.tokens[i].removeprefix(CONTINUATION_PREFIX)
            if self.is_continuation[i]
            else " " + self.tokens[i]
            for i in ids
        )
        return "".join(parts).strip()

    def fingerprint(self) -> str:
        """A hex digest of the pieces and the switches."""
        switches = {
            "cased": self.cased,
            "strip_accents": self.strip_accents,
            **self._max_chars_config,
        }
        return digest(json.dumps([self.kind, self.tokens, switches]).encode())

    def save(self, directory: epath.PathLike) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json`, which `transformers` reads too."""
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
        """The longest word where it is not the original's, by its name at Hugging Face."""
        longest = self.max_input_chars_per_word
        return {} if longest == MAX_INPUT_CHARS_PER_WORD else {"max_input_chars_per_word": longest}

    def _encode_raw(self, raw: str) -> Iterable[int]:
        words = basic_tokenize(raw, cased=self.cased, strip_accents=self.strip_accents)
        return self._longest_matches(*words) if len(words) == 1 else self._ids_of_word.ids(words)

    def _longest_matches(self, word: str) -> list[int]:
        try:
            return [token.id for token in self._model.tokenize(word)]
        except UnicodeEncodeError:  # half of a surrogate pair, which no piece can hold
            return [self.unk_id]


def _restore_wordpiece(
    tokens: list[str], cased: bool, strip: bool, longest: int
) -> WordPieceTokenizer:
    return WordPieceTokenizer(
        tokens, cased=cased, strip_accents=strip, max_input_chars_per_word=longest
    )


def _index_tokens(tokens: list[str]) -> dict[str, int]:
    if not tokens:
        raise InputError("the vocabulary is empty; it needs one piece a line")
    index: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not token:
            raise InputError(f"the vocabulary has no piece on line {i + 1}; remove the empty line")
        if token in index:
            raise InputError(
                f"the vocabulary holds the piece {token!r} twice, on lines {index[token] + 1} and "
                f"{i + 1}; keep one of them"
            )
        index[token] = i
    return index


def parse_vocab(content: bytes) -> list[str]:
    """The pieces of a vocabulary file, one a line; surrounding white space is dropped.

    A line separator is a piece of its own in the published Chinese vocabulary.
    """
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}; save the "
            "vocabulary as UTF-8"
        ) from error
    if not lines[-1]:
        lines.pop()
    return [line.strip() or line.strip(" \t\r") for line in lines]


def has_uppercase(tokens: list[str]) -> bool:
    """Whether lower-casing would change a piece of text, so that the vocabulary must be cased."""
    return _first_changed(tokens, str.lower) is not None


def has_accents(tokens: list[str]) -> bool:
    """Whether a piece has accents, or vowel and tone signs, which stripping would take off."""
    characters = unicodedata.normalize("NFD", "".join(tokens))
    return any(unicodedata.category(char) == "Mn" for char in set(characters))


def _first_changed(tokens: list[str], change: Callable[[str], str]) -> str | None:
    """The first piece of text that lower-casing (or upper-casing) would change, if there is one."""
    return next((p for p in tokens if change(p) != p and not _RESERVED.fullmatch(p)), None)


def case_conflict(tokens: list[str], cased: bool) -> tuple[str, str] | None:
    """What a switch does to a vocabulary of the other case, and the cure; None where they agree.

    A vocabulary without cased letters (Chinese, digits) goes with either switch.
    """
    upper, lower = _first_changed(tokens, str.lower), _first_changed(tokens, str.upper)
    if not cased and upper is not None:
        return (
            f"the vocabulary is cased (it holds {upper!r}) but lower-casing is on, so that part of "
            "it could never be used",
            "ask for a cased tokenizer (--cased)",
        )
    if cased and upper is None and lower is not None:
        return (
            "the vocabulary is uncased (no piece has an upper-case letter) but lower-casing is "
            "off, so that capitals would be unknown",
            "ask for an uncased tokenizer (no --cased)",
        )
    return None
