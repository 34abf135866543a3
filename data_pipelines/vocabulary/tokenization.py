"""The interface of tokenizers, and loading of tokenizers from files."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.log import warn_once
from data_pipelines.model_settings import check_settings
from data_pipelines.paths import check_exists
from data_pipelines.schema import read_bytes, read_json_object
from data_pipelines.vocabulary import tokenizer_json
from data_pipelines.vocabulary.added_tokens import ADDED_TOKEN_SCHEMA, AddedToken
from data_pipelines.vocabulary.sentencepiece_tokenizer import MODEL_FILE, SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS_MAP,
    VOCABULARY_FIX,
)
from data_pipelines.vocabulary.tokenizer_json import JSON_FILE, StoredWordPiece
from data_pipelines.vocabulary.vocab_file import (
    VOCAB_FILE,
    case_conflict,
    describe_unreachable_lines,
    has_accents,
    has_uppercase,
    index_tokens,
    parse_vocab,
)
from data_pipelines.vocabulary.wordpiece import MAX_INPUT_CHARS_PER_WORD, WordPieceTokenizer

TOKENIZER_FILES = (VOCAB_FILE, MODEL_FILE, JSON_FILE)
"""Files that may hold the vocabulary of a directory; the first that exists does."""
_ADDED_TOKENS_FILE, _SPECIAL_TOKENS_FILE = "added_tokens.json", "special_tokens_map.json"
_TOKEN = (str, ADDED_TOKEN_SCHEMA)
_TOKENS_SCHEMA: dict[str, Any] = {
    **{f"{name}?": _TOKEN for name in (*SPECIAL_TOKENS_MAP, "bos_token", "eos_token")},
    "additional_special_tokens?": [_TOKEN],
    "extra_special_tokens?": ([_TOKEN], {str: _TOKEN}),
}
_CONFIG_SCHEMA = _TOKENS_SCHEMA | {
    **dict.fromkeys(("do_lower_case?", "strip_accents?", "do_basic_tokenize?"), bool),
    "max_input_chars_per_word?": int,
    "added_tokens_decoder?": {str: ADDED_TOKEN_SCHEMA},
}

_MAX_WORD_CHARS = 1000
_MAX_ADDED_IDS = 100_000  # beyond the other tokens; more are damage
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

    def find_added_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [start, end) of each added token in a raw text, ascending."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return readable text; special tokens appear by name."""

    def fingerprint(self) -> str:
        """Return a hex digest of the vocabulary; see `describe_difference`."""

    def save(self, directory: epath.PathLike) -> None:
        """Write the files from which `load_tokenizer` restores this tokenizer."""


def load_tokenizer(path: epath.PathLike, *, cased: bool | None = None) -> Tokenizer:
    """Load a tokenizer from a vocabulary file or a directory, saved here or published.

    Tokens that the other files of a directory add are kept whole, see `added_tokens`.

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
    path = check_exists(model_path(path), VOCABULARY_FIX)
    config: dict[str, Any] = {}
    is_directory = path.is_dir()
    if is_directory:
        directory = path
        path = next((path / name for name in TOKENIZER_FILES if (path / name).exists()), path)
        if path == directory:
            if named := next(directory.glob("*vocab*.txt"), None):
                raise InputError(f"{directory}: no {VOCAB_FILE}, but {named.name}. Rename it.")
            raise InputError(
                f"{directory}: contains none of {', '.join(TOKENIZER_FILES)}. Name a vocabulary, "
                "or a directory with one."
            )
        config = read_tokenizer_config(directory)
        check_settings(directory / CONFIG_FILE, config, CONFIG_FILE)
    try:
        if path.suffix == ".model":
            return _load_sentencepiece(read_bytes(path, VOCABULARY_FIX), cased)
        stored = _read_stored(path, config, is_directory)
        return _load_wordpiece(path, stored, cased)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_tokenizer_config(directory: epath.Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`; {} if it does not exist.

    Raises:
      InputError: the file is damaged, or has a setting of another type.
    """
    return _read_object(directory / CONFIG_FILE, _CONFIG_SCHEMA)


def _read_object(path: epath.Path, schema: Any) -> dict[str, Any]:
    return read_json_object(path, schema, "Download it again.") if path.exists() else {}


def _read_stored(path: epath.Path, config: dict[str, Any], is_directory: bool) -> StoredWordPiece:
    """Read a vocabulary and, from a directory, the other files of its tokenizer."""
    json_path = path.parent / JSON_FILE if is_directory else path
    is_json = path.suffix == ".json"
    stored = StoredWordPiece([], {}, {})
    if is_json or (is_directory and json_path.exists()):
        content = read_bytes(json_path, VOCABULARY_FIX)
        stored = tokenizer_json.read_wordpiece(content, json_path)
    added_tokens = dict(stored.added_tokens)
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        if not number.isdecimal():
            raise InputError(f"added token {number!r}: no id. Download {CONFIG_FILE} again.")
        added_tokens[int(number)] = AddedToken.from_settings(token)
    known = {name: value for name, value in config.items() if value is not None}
    names: dict[str, int] = {}
    if is_directory:
        names = _read_object(path.parent / _ADDED_TOKENS_FILE, {str: int})
        if "added_tokens_decoder" not in known:  # older files: this one takes precedence
            known |= _read_object(path.parent / _SPECIAL_TOKENS_FILE, _TOKENS_SCHEMA)
    additional = _additional_tokens(known)
    for name, id_ in names.items():
        if id_ not in added_tokens or added_tokens[id_].content != name:
            added_tokens[id_] = AddedToken(name, normalized=name not in additional)
    tokens = stored.tokens if is_json else parse_vocab(read_bytes(path, VOCABULARY_FIX))
    if not is_json and stored.tokens and not _same_ids(tokens, stored.tokens):
        warn_once(
            (str(path), JSON_FILE),
            f"{path}: {JSON_FILE} beside it holds another vocabulary, which is not read.",
        )
    return StoredWordPiece(tokens, stored.config | known, added_tokens)


def _same_ids(tokens: list[str], others: list[str]) -> bool:
    """Return whether both vocabularies give each token of a text the same id."""
    index, other_index = index_tokens(tokens), index_tokens(others)
    return {t: i for t, i in index.items() if t} == {t: i for t, i in other_index.items() if t}


def _special_tokens(
    path: epath.Path, config: Mapping[str, Any], tokens: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the names of the special tokens, and of those without a use here."""
    special = []
    for setting, default in SPECIAL_TOKENS_MAP.items():
        name = _token_name(config.get(setting)) or default
        if name not in tokens and default in tokens:
            warn_once(
                (str(path), setting),
                f"{path}: {setting}={name!r} is not in the vocabulary: {default} is used.",
            )
            name = default
        special.append(name)
    unused = [_token_name(config.get(name)) for name in ("bos_token", "eos_token")]
    return special, [*filter(None, unused)]


def _additional_tokens(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the tokens that a user adds for texts as special ones."""
    additional: list[str] = []
    for setting in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(setting) or []
        additional += [*map(_token_name, more.values() if isinstance(more, dict) else more)]
    return [*filter(None, additional)]


def _token_name(value: Any) -> str:
    """Return the name of a token that is written as text or as an object with its options."""
    return str(value.get("content") or "") if isinstance(value, dict) else str(value or "")


def _load_wordpiece(
    path: epath.Path, stored: StoredWordPiece, cased: bool | None
) -> WordPieceTokenizer:
    tokens, config, added_tokens = stored
    if lines := describe_unreachable_lines(tokens):
        warn_once(
            (str(path), "lines"), f"{path}: {lines}. All tokens keep their ids. Leave it as it is."
        )
    tokens = _with_added_tokens(path, tokens, added_tokens)
    special, unused = _special_tokens(path, config, tokens)
    additional = _additional_tokens(config)
    unknown = {name for name in additional if name not in tokens}
    added = {name: AddedToken(name, normalized=False) for name in additional if name in tokens}
    added |= {token.content: token for _, token in sorted(added_tokens.items())}
    for name in ("", *special, *unused):
        added.pop(name, None)
    options: dict[str, Any] = {"special_tokens": special, "added_tokens": added.values()}
    options["watched_tokens"] = sorted({*unused, *unknown} - {*special})
    limit = config.get("max_input_chars_per_word") or MAX_INPUT_CHARS_PER_WORD
    if not 0 < limit <= _MAX_WORD_CHARS:  # time grows with its square
        raise InputError(
            f"max_input_chars_per_word={limit}: out of range. Use 1 to {_MAX_WORD_CHARS}."
        )
    options["max_input_chars_per_word"] = limit
    if not config.get("do_basic_tokenize", True):
        warn_once(
            (str(path), "do_basic_tokenize"),
            f"{path}: do_basic_tokenize=false: 'AUG-1 b' has the words 'AUG-1' and 'b', as in "
            "BertTokenizerLegacy of transformers. Its fast tokenizers ignore this.",
        )
        return WordPieceTokenizer(
            tokens, cased=True, strip_accents=False, do_basic_tokenize=False, **options
        )
    words = [token for token in tokens if token not in added]  # say whether text keeps its case
    lower_case = config.get("do_lower_case")
    stored_cased = None if lower_case is None else not lower_case
    if None not in (cased, stored_cased) and cased != stored_cased:
        raise InputError(
            f"cased={cased}, but {CONFIG_FILE} has cased={stored_cased}. Remove the option."
        )
    if cased is None:
        cased = has_uppercase(words) if stored_cased is None else stored_cased
    if conflict := case_conflict(words, cased):
        # A published model keeps its options. Some Chinese models have such a conflict.
        if stored_cased is None:
            raise InputError(" ".join(conflict))
        _log.warning("%s: %s %s sets it.", path, conflict[0], CONFIG_FILE)
    strip_accents = config.get("strip_accents")
    if strip_accents is None and stored_cased is None and has_accents(words):
        strip_accents = False
    return WordPieceTokenizer(tokens, cased=cased, strip_accents=strip_accents, **options)


def _with_added_tokens(
    path: epath.Path, tokens: Sequence[str], added_tokens: Mapping[int, AddedToken]
) -> list[str]:
    """Return the vocabulary with the tokens that were added at its end, or at empty lines.

    Raises:
      InputError: an added token has the id of another one, or an id that is out of range.
    """
    size = len(tokens)
    if not all(0 <= id_ < size + _MAX_ADDED_IDS for id_ in added_tokens):
        raise InputError(
            f"added token {added_tokens[max(added_tokens, key=abs)].content!r}: has the id "
            f"{max(added_tokens, key=abs)}, and the vocabulary {size:,} tokens. Fix it."
        )
    result = [*tokens, *[""] * (max(added_tokens, default=-1) + 1 - size)]
    for id_, token in sorted(added_tokens.items()):
        if result[id_] not in ("", token.content):
            raise InputError(
                f"added token {token.content!r}: has the id {id_}, which is that of "
                f"{result[id_]!r}. Write it in line {id_ + 1} of the vocabulary, or give it an id "
                "from the end."
            )
        result[id_] = token.content
    if more := [token for token in result[size:] if token]:
        _log.info("%s: %d added tokens: %s.", path, len(more), ", ".join(more[:5]))
    return result


def describe_difference(ours: Tokenizer, theirs: Tokenizer) -> str:
    """Return the first difference of two vocabularies, such as "token 9 is 'a', not 'b'".

    The text is "" if they are the same: if equal texts have equal ids, but for words that are
    [UNK] in one of them because of their length.
    """
    if ours.kind != theirs.kind:
        return f"it is {ours.kind}, not {theirs.kind}"
    if ours.fingerprint() == theirs.fingerprint():
        return ""
    if len(ours.tokens) != len(theirs.tokens):
        return f"it has {len(ours.tokens):,} tokens, not {len(theirs.tokens):,}"
    if not isinstance(ours, WordPieceTokenizer) or not isinstance(theirs, WordPieceTokenizer):
        return "it is another SentencePiece model"
    for i, (token, other) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
        if token != other:
            return f"token {i} is {token!r}, not {other!r}"
    other_options = theirs.identity()
    name, value = next(
        (name, value) for name, value in ours.identity().items() if value != other_options[name]
    )
    other = other_options[name]
    if name == "added_tokens":
        more, fewer = sorted({*value} - {*other}), sorted({*other} - {*value})
        return (
            f"it has the added token {more[0]}" if more else f"it lacks the added token {fewer[0]}"
        )
    return f"it has {name}={value}, not {other}"


def _load_sentencepiece(content: bytes, cased: bool | None) -> SentencePieceTokenizer:
    tokenizer = SentencePieceTokenizer(content)
    if cased is not None and cased != tokenizer.cased:
        case = "keeps case" if tokenizer.cased else "lower-cases text"
        raise InputError(f"cased={cased}, but the model {case}. Remove --cased.")
    return tokenizer
