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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from tokenizers import Tokenizer as CompiledTokenizer
from tokenizers import models, pre_tokenizers

from data_pipelines.log import warn_once
from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.added_tokens import AddedToken, AddedTokenFinder
from data_pipelines.vocabulary.basic_tokenization import (
    WordWithOffsets,
    basic_tokenize,
    basic_tokenize_with_offsets,
    split_for_caching,
)
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    special_token_ids,
)
from data_pipelines.vocabulary.vocab_file import RESERVED, VOCAB_FILE, index_tokens

MAX_INPUT_CHARS_PER_WORD = 200  # a longer word is [UNK], as in google-research/bert
_WORDS_A_CALL = 4096
_MAX_NAMES = 1000  # that a text is searched for, to warn of them
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


class WordPieceTokenizer:
    """BERT's tokenizer (Devlin et al. 2019; google-research/bert).

    Args:
      tokens: the vocabulary, by id.
      cased: False lower-cases text.
      strip_accents: remove accents; None removes them if text is lower-cased, as in
        google-research/bert.
      max_input_chars_per_word: a longer word is [UNK]. transformers uses 100.
      do_basic_tokenize: False splits text at white space only and keeps its case and accents.
      special_tokens: the names of padding, unknown, first, separating and mask token.
      added_tokens: tokens of the vocabulary that stay whole: a text is searched for them first.
      watched_tokens: tokens that only transformers finds in raw text; a text with one is warned of,
        as is one with a special token.

    Raises:
      InputError: the vocabulary is empty or lacks a special token.
    """

    kind = "wordpiece"

    def __init__(
        self,
        tokens: Sequence[str],
        *,
        cased: bool,
        strip_accents: bool | None = None,
        max_input_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
        do_basic_tokenize: bool = True,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        added_tokens: Iterable[AddedToken] = (),
        watched_tokens: Iterable[str] = (),
    ):
        self.do_basic_tokenize, self.special_tokens = do_basic_tokenize, tuple(special_tokens)
        self.added_tokens, self.watched_tokens = tuple(sorted(added_tokens)), tuple(watched_tokens)
        self.tokens, self.max_input_chars_per_word = list(tokens), max_input_chars_per_word
        self.cased = cased
        self.strip_accents = not cased if strip_accents is None else strip_accents
        index = index_tokens(self.tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_token_ids(
            index, self.special_tokens
        )
        self.is_continuation = np.array(
            [t.startswith(CONTINUATION_PREFIX) and t != CONTINUATION_PREFIX for t in self.tokens]
        )
        is_text = [
            bool(token) and index[token] == i and not RESERVED.fullmatch(token)
            for i, token in enumerate(self.tokens)
        ]
        special_ids = {index[token] for token in self.special_tokens}
        text_ids = [i for i in np.flatnonzero(is_text).tolist() if i not in special_ids]
        self.text_token_ids = np.array(text_ids, np.int32)
        self._lengths = [
            len(token.removeprefix(CONTINUATION_PREFIX) if is_continuation else token)
            for token, is_continuation in zip(self.tokens, self.is_continuation, strict=True)
        ]
        self._model = models.WordPiece(
            vocab=index,
            unk_token=self.special_tokens[1],
            max_input_chars_per_word=max_input_chars_per_word,
        )
        self._compiled = CompiledTokenizer(self._model)
        self._compiled.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._ids_of_word = _WordCache(self._longest_matches)
        self._ids_of_raw = _WordCache(self._encode_raw)
        self._finder = AddedTokenFinder(
            self.added_tokens, index, cased=self.cased, strip_accents=self.strip_accents
        )
        names = {*self.special_tokens, *self.watched_tokens[:_MAX_NAMES]}
        self._names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
        self._name_start = "[" if all(name.startswith("[") for name in names) else ""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return functools.partial(WordPieceTokenizer, **self._options()), (self.tokens,)

    def _options(self) -> dict[str, Any]:
        """Return the arguments of `__init__` but for the tokens."""
        return {
            "cased": self.cased,
            "strip_accents": self.strip_accents,
            "max_input_chars_per_word": self.max_input_chars_per_word,
            "do_basic_tokenize": self.do_basic_tokenize,
            "special_tokens": self.special_tokens,
            "added_tokens": self.added_tokens,
            "watched_tokens": self.watched_tokens,
        }

    def with_tokens(self, tokens: Sequence[str]) -> "WordPieceTokenizer":
        """Return a tokenizer with other tokens and the same options."""
        return WordPieceTokenizer(tokens, **self._options())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text; special tokens are neither added nor recognized."""
        if not self.added_tokens:
            return self._encode_part(text)
        parts = self.split_added_tokens(text)
        ids = ([part] if isinstance(part, int) else self._encode_part(part) for part in parts)
        return list(itertools.chain.from_iterable(ids))

    def split_added_tokens(self, text: str) -> list[str | int]:
        """Return the parts of a text, tokenized independently, and the ids of its added tokens."""
        parts: list[str | int] = []
        last = 0
        for start, end, token_id in self._finder.find(text):
            parts += [text[last:start], token_id]
            last = end
        return [*parts, text[last:]]

    def find_added_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of each added token; see `Tokenizer`."""
        return [(start, end) for start, end, _ in self._finder.find(text)]

    def _encode_part(self, text: str) -> list[int]:
        if text.isascii() and text.isalnum():  # a single word
            return self._longest_matches(text if self.cased else text.lower())
        if self._name_start in text:
            self._warn_of_names(text)
        if not self.do_basic_tokenize:
            return list(self._ids_of_word.ids(text.split()))
        return list(self._ids_of_raw.ids(split_for_caching(text, cased=self.cased)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and character offsets; see `Tokenizer`."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        if self._name_start in text:
            self._warn_of_names(text)
        last = 0
        for start, end, added_id in (*self._finder.find(text), (len(text), len(text), None)):
            for word in self._words_with_offsets(text[last:start]):
                word_ids = self._ids_of_word[word.word]
                ids += word_ids
                first = 0
                for token_id in word_ids:
                    length = len(word.word) if token_id == self.unk_id else self._lengths[token_id]
                    word_end = word.ends[first + length - 1]
                    offsets.append((last + word.starts[first], last + word_end))
                    first += length
            if added_id is not None:
                ids.append(added_id)
                offsets.append((start, end))
            last = end
        return ids, offsets

    def encode_words(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode many words, or other short texts without lone surrogates, in few compiled calls.

        Returns:
          The ids of all words [n], and the number of ids of each word [w], both int64.
        """
        parts = [self._words(word) for word in words]
        ends = np.cumsum([0, *map(len, parts)])  # of words, in parts
        limit = self.max_input_chars_per_word + 1  # what is longer is [UNK] as well
        flat = [part[:limit] for part in itertools.chain(*parts)]
        ids, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        # The compiled call needs 1.5 times as long for each of many words.
        for first in range(0, len(flat), _WORDS_A_CALL):
            block = flat[first : first + _WORDS_A_CALL]
            encoding = self._compiled.encode(" ".join(block))
            ids.append(np.array(encoding.ids, np.int64))
            word_ids = np.array(encoding.word_ids, np.int64)
            tokens.append(np.bincount(word_ids, minlength=len(block)))
        ids_before = np.concatenate([[0], np.cumsum(np.concatenate(tokens))])
        return np.concatenate(ids), np.diff(ids_before[ends])

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
        """Return a hex digest of `identity`."""
        return hashlib.sha256(json.dumps([self.kind, self.identity()]).encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """Return the tokens and the options that determine the ids of words of usual length.

        Tokenizers with the same identity are the same vocabulary, whatever the length from which
        a word is [UNK]: vocab.txt does not state it, and other files of the same model do.
        """
        index = index_tokens(self.tokens)
        return {
            "tokens": [token if index[token] == i else "" for i, token in enumerate(self.tokens)],
            "cased": self.cased,
            "strip_accents": self.strip_accents,
            "do_basic_tokenize": self.do_basic_tokenize,
            "special_tokens": self.special_tokens,
            "added_tokens": self.added_tokens,
        }

    def save(self, directory: epath.PathLike) -> None:
        """Write `vocab.txt` and `tokenizer_config.json` as transformers does."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        added = {token.content for token in self.added_tokens}
        unwritable = {token for token in added if token != token.strip()}  # lines are stripped
        lines = ("" if token in unwritable else token for token in self.tokens)
        atomic_write_text(directory / VOCAB_FILE, "\n".join(lines) + "\n")
        # BertTokenizer would split words at punctuation.
        kind = "BertTokenizer" if self.do_basic_tokenize else "PreTrainedTokenizerFast"
        config = {
            "tokenizer_class": kind,
            "do_lower_case": not self.cased,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            **self._other_options,
            **dict(zip(SPECIAL_TOKENS_MAP, self.special_tokens, strict=True)),
        }
        if self.added_tokens:
            index = index_tokens(self.tokens)
            config["added_tokens_decoder"] = {
                str(index[token.content]): token.settings() for token in self.added_tokens
            }
        atomic_write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    @property
    def _other_options(self) -> dict[str, Any]:
        """The options that are not the default, by their names in `tokenizer_config.json`."""
        options: dict[str, Any] = {}
        if self.max_input_chars_per_word != MAX_INPUT_CHARS_PER_WORD:
            options["max_input_chars_per_word"] = self.max_input_chars_per_word
        if not self.do_basic_tokenize:
            options["do_basic_tokenize"] = False
        return options

    def _warn_of_names(self, text: str) -> None:
        if match := self._names.search(text):
            is_separator = match[0] == self.special_tokens[3]
            fix = " Give the texts of a pair separately." if is_separator else ""
            warn_once(
                "special tokens in texts",
                # Without the text, which may be a request of a server.
                f"a text contains {match[0]}. It is tokenized as any other text, but transformers "
                f"reads it as the token.{fix}",
            )

    def _words(self, text: str) -> list[str]:
        if not self.do_basic_tokenize:
            return text.split()
        return basic_tokenize(text, cased=self.cased, strip_accents=self.strip_accents)

    def _words_with_offsets(self, text: str) -> Iterator[WordWithOffsets]:
        if self.do_basic_tokenize:
            yield from basic_tokenize_with_offsets(
                text, cased=self.cased, strip_accents=self.strip_accents
            )
            return
        for match in re.finditer(r"\S+", text):
            start, end = match.span()
            yield WordWithOffsets(match[0], range(start, end), range(start + 1, end + 1))

    def _encode_raw(self, raw: str) -> Iterable[int]:
        words = self._words(raw)
        return self._longest_matches(*words) if len(words) == 1 else self._ids_of_word.ids(words)

    def _longest_matches(self, word: str) -> list[int]:
        try:
            return [token.id for token in self._model.tokenize(word)]
        except UnicodeEncodeError:  # a lone surrogate
            return [self.unk_id]
