"""The interface of tokenizers, and loading of tokenizers from files."""

import json
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists
from data_pipelines.vocabulary import tokenizer_json
from data_pipelines.vocabulary.sentencepiece_tokenizer import MODEL_FILE, SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE, VOCABULARY_FIX
from data_pipelines.vocabulary.tokenizer_json import JSON_FILE, StoredWordPiece
from data_pipelines.vocabulary.wordpiece import (
    MAX_INPUT_CHARS_PER_WORD,
    VOCAB_FILE,
    WordPieceTokenizer,
    case_conflict,
    has_accents,
    has_uppercase,
    parse_vocab,
)

TOKENIZER_FILES = (VOCAB_FILE, MODEL_FILE, JSON_FILE)
"""Files that may hold the vocabulary of a directory; the first that exists does."""
_ADDED_TOKENS_FILE = "added_tokens.json"

_log = logging.getLogger("data_pipelines")


class Tokenizer(Protocol):
    """The interface of all tokenizers. They can be pickled and start fast."""

    kind: str
    """"wordpiece" or "sentencepiece"."""
    cased: bool
    """False if text is lower-cased."""
    tokens: list[str]
    """The vocabulary: the token of each id."""
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray
    """bool [V]: tokens that continue the word of the preceding token."""
    text_token_ids: np.ndarray
    """int32 [R], ascending: tokens that stand for text, not special, unused or control tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text; special tokens are neither added nor recognized."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a raw text, and the characters [start, end) of each token.

        Starts never decrease. Tokens share characters where one character became several tokens.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return readable text; special tokens appear by name."""

    def fingerprint(self) -> str:
        """Return a hex digest of everything that determines the result of `encode`."""

    def save(self, directory: epath.PathLike) -> None:
        """Write the files from which `load_tokenizer` restores this tokenizer."""


def load_tokenizer(path: epath.PathLike, *, cased: bool | None = None) -> Tokenizer:
    """Load a tokenizer from a vocabulary file or a directory, saved here or published.

    Without a value in a directory, accents are kept if the vocabulary has some, else stripped where
    text is lower-cased.

    Args:
      path: a vocabulary with one token per line (`vocab.txt`), a SentencePiece `.model`, a
        WordPiece `tokenizer.json`, or a directory with one of these and, optionally,
        `tokenizer_config.json`.
      cased: False lower-cases text. None takes the value of the directory; without one, an
        upper-case letter in the vocabulary means cased.

    Raises:
      InputError: the file is missing or not a vocabulary, or contradicts the arguments.
    """
    path = check_exists(path, VOCABULARY_FIX)
    config: dict[str, Any] = {}
    is_directory = path.is_dir()
    if is_directory:
        directory = path
        path = next((path / name for name in TOKENIZER_FILES if (path / name).exists()), path)
        if path == directory:
            raise InputError(
                f"{directory}: contains none of {', '.join(TOKENIZER_FILES)}. Name a vocabulary, "
                "or a directory with one."
            )
        if (directory / CONFIG_FILE).exists():
            config = _read_config(directory / CONFIG_FILE)
    try:
        if path.suffix == ".model":
            return _load_sentencepiece(path.read_bytes(), cased)
        stored = _read_stored(path, config, is_directory)
        return _load_wordpiece(path, stored, cased)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_config(path: epath.Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}). Write it again.") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object. Write it again.")
    return config


def _read_stored(path: epath.Path, config: dict[str, Any], is_directory: bool) -> StoredWordPiece:
    """Read a vocabulary and, from a directory, the other files of its tokenizer."""
    json_path = path.parent / JSON_FILE if is_directory else path
    is_json = path.suffix == ".json"
    stored = StoredWordPiece([], {}, {})
    if is_json or (is_directory and json_path.exists()):
        stored = tokenizer_json.read_wordpiece(json_path.read_bytes())
    added_tokens = dict(stored.added_tokens)
    try:
        for number, token in (config.get("added_tokens_decoder") or {}).items():
            added_tokens[int(number)] = token["content"]
        if is_directory and (path.parent / _ADDED_TOKENS_FILE).exists():
            names = _read_config(path.parent / _ADDED_TOKENS_FILE)
            added_tokens |= {int(number): name for name, number in names.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"invalid added tokens ({error!r}). Fix {CONFIG_FILE}.") from error
    tokens = stored.tokens if is_json else parse_vocab(path.read_bytes())
    known = {name: value for name, value in config.items() if value is not None}
    return StoredWordPiece(tokens, stored.config | known, added_tokens)


def _load_wordpiece(
    path: epath.Path, stored: StoredWordPiece, cased: bool | None
) -> WordPieceTokenizer:
    tokens, config, added_tokens = stored
    for name, supported in (
        ("word_tokenizer_type", "basic"),
        ("subword_tokenizer_type", "wordpiece"),
    ):
        if (value := config.get(name, supported)) != supported:
            raise InputError(
                f"{CONFIG_FILE} has {name}={value!r}, which is not supported. Use a model with "
                f"{name}={supported!r}."
            )
    added = [token for number, token in sorted(added_tokens.items()) if number >= len(tokens)]
    if added:
        _log.warning(
            "%s: %d added tokens (%s) are not recognized in texts: such text is tokenized as any "
            "other.", path, len(added), ", ".join(added[:5]),
        )  # fmt: skip
    if not config.get("tokenize_chinese_chars", True):
        raise InputError(
            f"{CONFIG_FILE} has tokenize_chinese_chars=false, which is not supported. Use a model "
            "with tokenize_chinese_chars=true."
        )
    lower_case = config.get("do_lower_case")
    stored_cased = None if lower_case is None else not lower_case
    if None not in (cased, stored_cased) and cased != stored_cased:
        raise InputError(
            f"cased={cased}, but {CONFIG_FILE} has cased={stored_cased}. Remove the option."
        )
    if cased is None:
        cased = has_uppercase(tokens) if stored_cased is None else stored_cased
    if conflict := case_conflict(tokens, cased):
        # A published model keeps its options. Some Chinese models have such a conflict.
        if stored_cased is None:
            raise InputError(" ".join(conflict))
        _log.warning("%s: %s %s sets it.", path, conflict[0], CONFIG_FILE)
    strip_accents = config.get("strip_accents")
    if strip_accents is None and stored_cased is None and has_accents(tokens):
        strip_accents = False
    max_input_chars = config.get("max_input_chars_per_word") or MAX_INPUT_CHARS_PER_WORD
    return WordPieceTokenizer(
        tokens, cased=cased, strip_accents=strip_accents, max_input_chars_per_word=max_input_chars
    )


def _load_sentencepiece(content: bytes, cased: bool | None) -> SentencePieceTokenizer:
    tokenizer = SentencePieceTokenizer(content)
    if cased is not None and cased != tokenizer.cased:
        case = "keeps case" if tokenizer.cased else "lower-cases text"
        raise InputError(f"cased={cased}, but the model {case}. Remove --cased.")
    return tokenizer
