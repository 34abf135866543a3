"""Text to pieces and back: what the rest of the pipeline knows of a tokenizer, and its loading."""

import json
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.vocabulary import tokenizer_json
from data_pipelines.vocabulary.sentencepiece_tokenizer import MODEL_FILE, SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE
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
"""Those of a directory that may hold its vocabulary; the first that there is does."""
_ADDED_TOKENS_FILE = "added_tokens.json"

_log = logging.getLogger("data_pipelines")


class Tokenizer(Protocol):
    """What the rest of the pipeline knows of a tokenizer. All are picklable and cheap to start."""

    kind: str
    """"wordpiece" or "sentencepiece"."""
    cased: bool
    """Whether upper and lower case are told apart."""
    tokens: list[str]
    """The piece of each id."""
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray
    """bool [V]: the piece continues the word of the piece before it."""
    text_token_ids: np.ndarray
    """int32 [R], ascending: pieces that stand for text (no special, unused or control piece)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and the characters [start, end) of the text that each piece stands for.

        Starts never fall. Pieces share characters where one character became several pieces.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; special pieces appear by their names."""

    def fingerprint(self) -> str:
        """A hex digest of everything that decides what `encode` returns."""

    def save(self, directory: epath.PathLike) -> None:
        """Writes the files from which `load_tokenizer` makes this tokenizer again."""


def load_tokenizer(
    path: epath.PathLike, *, cased: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """The tokenizer of a vocabulary file, or of a directory of `Tokenizer.save` or a published one.

    Args:
      path: a list of pieces (one a line, as in `vocab.txt`), a SentencePiece `.model`, a WordPiece
        `tokenizer.json`, or a directory with one of these and, if there is one,
        `tokenizer_config.json`.
      cased: whether case is kept; None takes it from the directory, or else from the pieces (an
        upper-case letter means cased).
      strip_accents: None takes it from the directory, or else from the pieces (one with accents
        means that they are kept), or else follows lower-casing.

    Raises:
      InputError: no such file, not a usable vocabulary, or one that does not go with the switches.
    """
    path = epath.Path(path)
    if not path.exists():
        raise InputError(f"there is no vocabulary at {path}; `bertjax vocab` makes one")
    config: dict[str, Any] = {}
    beside = path.is_dir()
    if beside:
        directory = path
        path = next((path / name for name in TOKENIZER_FILES if (path / name).exists()), path)
        if path == directory:
            raise InputError(
                f"{directory} holds neither {VOCAB_FILE} nor {MODEL_FILE} nor {JSON_FILE}; name a "
                "vocabulary, or a directory with one"
            )
        if (directory / CONFIG_FILE).exists():
            config = _read_config(directory / CONFIG_FILE)
    try:
        if path.suffix == ".model":
            return _load_sentencepiece(path.read_bytes(), cased, strip_accents)
        stored = _read_stored(path, config, beside)
        return _load_wordpiece(path, stored, cased, strip_accents)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_config(path: epath.Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); write it again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a JSON object; write it again")
    return config


def _read_stored(path: epath.Path, config: dict[str, Any], beside: bool) -> StoredWordPiece:
    """What is published of a WordPiece: its vocabulary and, if they count, the files beside it."""
    whole = path.parent / JSON_FILE if beside else path
    has_pieces = path.suffix == ".json"
    stored = StoredWordPiece([], {}, {})
    if has_pieces or (beside and whole.exists()):
        stored = tokenizer_json.read_wordpiece(whole.read_bytes())
    added_tokens = dict(stored.added_tokens)
    try:
        for number, said in (config.get("added_tokens_decoder") or {}).items():
            added_tokens[int(number)] = said["content"]
        if beside and (path.parent / _ADDED_TOKENS_FILE).exists():
            names = _read_config(path.parent / _ADDED_TOKENS_FILE)
            added_tokens |= {int(number): name for name, number in names.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the pieces added to it cannot be read ({error!r}); mend them") from error
    tokens = stored.tokens if has_pieces else parse_vocab(path.read_bytes())
    known = {name: value for name, value in config.items() if value is not None}
    return StoredWordPiece(tokens, stored.config | known, added_tokens)


def _load_wordpiece(
    path: epath.Path, stored: StoredWordPiece, cased: bool | None, strip_accents: bool | None
) -> WordPieceTokenizer:
    tokens, config, added_tokens = stored
    for name, usual in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if config.get(name, usual) != usual:
            raise InputError(
                f"{CONFIG_FILE} sets {name} to {config[name]!r}, by which bertjax cuts no text; "
                "take a model whose texts are cut as BERT's own are"
            )
    if more := [token for number, token in sorted(added_tokens.items()) if number >= len(tokens)]:
        _log.warning(
            "%s: %d pieces were added to it (%s), which are not looked for in texts: they are cut "
            "as if they were none.", path, len(more), ", ".join(more[:5]),
        )  # fmt: skip
    if not config.get("tokenize_chinese_chars", True):
        raise InputError(
            f"{CONFIG_FILE} sets tokenize_chinese_chars to false, which is not supported; use a "
            "vocabulary whose ideographs are words of their own"
        )
    lower_case = config.get("do_lower_case")
    stored_cased = None if lower_case is None else not lower_case
    cased = _resolve_switch("cased", cased, stored_cased)
    if cased is None:
        cased = has_uppercase(tokens)
    if conflict := case_conflict(tokens, cased):
        # A published model computes what it was published with: Chinese ones are an example.
        if stored_cased is None:
            raise InputError("; ".join(conflict))
        _log.warning("%s: %s; %s says so.", path, conflict[0], CONFIG_FILE)
    strip_accents = _resolve_switch("strip_accents", strip_accents, config.get("strip_accents"))
    if strip_accents is None and stored_cased is None and has_accents(tokens):
        strip_accents = False
    longest = config.get("max_input_chars_per_word") or MAX_INPUT_CHARS_PER_WORD
    return WordPieceTokenizer(
        tokens, cased=cased, strip_accents=strip_accents, max_input_chars_per_word=longest
    )


def _resolve_switch(name: str, asked: bool | None, stored: bool | None) -> bool | None:
    if None not in (asked, stored) and asked != stored:
        raise InputError(
            f"asked for {name}={asked}, but {CONFIG_FILE} beside it says {name}={stored}; leave "
            "the switch out"
        )
    return stored if asked is None else asked


def _load_sentencepiece(
    content: bytes, cased: bool | None, strip_accents: bool | None
) -> SentencePieceTokenizer:
    tokenizer = SentencePieceTokenizer(content)
    if strip_accents is not None:
        raise InputError(
            "strip_accents is a switch of WordPiece; a SentencePiece model brings its own "
            "normalisation, so leave the switch out"
        )
    if cased is not None and cased != tokenizer.cased:
        case = "keeps case" if tokenizer.cased else "lower-cases its text"
        raise InputError(f"the model {case}, but cased={cased} was asked for; leave --cased out")
    return tokenizer
