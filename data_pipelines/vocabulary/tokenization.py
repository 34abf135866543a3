"""Text to pieces: WordPiece as BERT's authors published it, and SentencePiece, behind one protocol.

WordPiece works in two steps: `basic_words` cleans the text and splits it into words and punctuation
signs, then each word is cut into its longest known pieces, from left to right, by the compiled
model of the `tokenizers` library.

Neither step looks past a space, so a text may be cut into parts that are tokenised alone
(`raw_words`). That makes remembering the parts exact, and natural text repeats its words: nearly
all the work is one dictionary look-up a word.
"""

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import sentencepiece
from etils import epath
from tokenizers import Tokenizer as CompiledTokenizer
from tokenizers import models, pre_tokenizers

from data_pipelines.errors import InputError
from data_pipelines.vocabulary.words import basic_words, located_words, raw_words

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 200  # characters; a longer word is [UNK], as in the original
CONTINUES = "##"  # the mark of a piece that continues a word
SPACE = "▁"  # SentencePiece's mark of a piece that starts a word

VOCAB_FILE, MODEL_FILE, CONFIG_FILE = "vocab.txt", "spm.model", "tokenizer_config.json"

_log = logging.getLogger("data_pipelines")


class Tokenizer(Protocol):
    """What the rest of the pipeline knows of a tokenizer. All are picklable and cheap to start."""

    kind: str
    """"wordpiece" or "sentencepiece"."""
    cased: bool
    """Whether upper and lower case are told apart."""
    pieces: list[str]
    """The piece of each id."""
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    continues: np.ndarray
    """bool [V]: the piece continues the word of the piece before it."""
    real_ids: np.ndarray
    """int32 [R], ascending: pieces that stand for text (no special, unused or control piece)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and the characters [start, end) of the text that each piece stands for.

        Starts never fall. Pieces share characters where one character became several pieces.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; special pieces appear by their names."""

    def fingerprint(self) -> str:
        """A hex digest of everything that decides what `encode` returns."""

    def save(self, directory: epath.PathLike) -> None:
        """Writes the files from which `load_tokenizer` makes this tokenizer again."""


# ---------------------------------------------------------------- WordPiece


class _Memo(dict[str, tuple[int, ...]]):
    """Remembers the ids of short words; forgets all of them when it is full, to stay bounded."""

    ENTRIES = 1 << 17
    LONGEST = 64  # characters; a longer word (a line of Chinese, an address) seldom comes again

    def __init__(self, compute: Callable[[str], Iterable[int]]):
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._compute(word))
        if len(word) <= self.LONGEST:
            if len(self) >= self.ENTRIES:
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

    Raises:
      InputError: no pieces, an empty or repeated piece, or a special piece that is missing.
    """

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], *, cased: bool, strip_accents: bool | None = None):
        self.pieces = list(pieces)
        self.cased = cased
        self.strip_accents = not cased if strip_accents is None else strip_accents
        index = _index_of_pieces(self.pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = _special_ids(index)
        self.continues = np.array([p.startswith(CONTINUES) and p != CONTINUES for p in self.pieces])
        real = [i for i, piece in enumerate(self.pieces) if not _RESERVED.fullmatch(piece)]
        self.real_ids = np.array(real, np.int32)
        self._lengths = [
            len(piece.removeprefix(CONTINUES) if continues else piece)
            for piece, continues in zip(self.pieces, self.continues, strict=True)
        ]
        self._model = models.WordPiece(
            vocab=index, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD
        )
        self._compiled = CompiledTokenizer(self._model)
        self._compiled.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._ids_of_word = _Memo(self._longest_matches)
        self._ids_of_raw = _Memo(self._encode_raw)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _wordpiece, (self.pieces, self.cased, self.strip_accents)

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""
        if text.isascii() and text.isalnum():  # one word as it stands
            return self._longest_matches(text if self.cased else text.lower())
        return list(self._ids_of_raw.ids(raw_words(text, cased=self.cased)))

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `Tokenizer`."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        located = located_words(text, cased=self.cased, strip_accents=self.strip_accents)
        for each in located:
            pieces = self._ids_of_word[each.word]
            ids += pieces
            first = 0
            for piece in pieces:
                length = len(each.word) if piece == self.unk_id else self._lengths[piece]
                spans.append((each.starts[first], each.ends[first + length - 1]))
                first += length
        return ids, spans

    def encode_words(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """`encode` of many words, or other short texts that UTF-8 can hold, in one compiled call.

        Returns:
          The ids [n] of all, and how many [w] of them each word has, both int64.
        """
        parts = [
            basic_words(word, cased=self.cased, strip_accents=self.strip_accents) for word in words
        ]
        encoding = self._compiled.encode(" ".join(itertools.chain(*parts)))
        ends = np.cumsum([0, *map(len, parts)])  # of words, in parts
        pieces = np.bincount(np.array(encoding.word_ids, np.int64), minlength=ends[-1])
        ids_before = np.concatenate([[0], np.cumsum(pieces)])
        return np.array(encoding.ids, np.int64), np.diff(ids_before[ends])

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text: pieces joined to words, words separated by spaces, specials by name."""
        parts = (
            self.pieces[i].removeprefix(CONTINUES) if self.continues[i] else " " + self.pieces[i]
            for i in ids
        )
        return "".join(parts).strip()

    def fingerprint(self) -> str:
        """A hex digest of the pieces and the switches."""
        switches = {"cased": self.cased, "strip_accents": self.strip_accents}
        return _digest(json.dumps([self.kind, self.pieces, switches]).encode())

    def save(self, directory: epath.PathLike) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json`, which `transformers` reads too."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / VOCAB_FILE).write_bytes(("\n".join(self.pieces) + "\n").encode())
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": not self.cased,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            **_SPECIAL_NAMES,
        }
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")

    def _encode_raw(self, raw: str) -> Iterable[int]:
        words = basic_words(raw, cased=self.cased, strip_accents=self.strip_accents)
        return self._longest_matches(*words) if len(words) == 1 else self._ids_of_word.ids(words)

    def _longest_matches(self, word: str) -> list[int]:
        try:
            return [token.id for token in self._model.tokenize(word)]
        except UnicodeEncodeError:  # half of a surrogate pair, which no piece can hold
            return [self.unk_id]


def _wordpiece(pieces: list[str], cased: bool, strip_accents: bool) -> WordPieceTokenizer:
    return WordPieceTokenizer(pieces, cased=cased, strip_accents=strip_accents)


def _index_of_pieces(pieces: list[str]) -> dict[str, int]:
    if not pieces:
        raise InputError("the vocabulary is empty; it needs one piece a line")
    index: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if not piece:
            raise InputError(f"the vocabulary has no piece on line {i + 1}; remove the empty line")
        if piece in index:
            raise InputError(
                f"the vocabulary holds the piece {piece!r} twice, on lines {index[piece] + 1} and "
                f"{i + 1}; keep one of them"
            )
        index[piece] = i
    return index


def _special_ids(index: dict[str, int]) -> list[int]:
    missing = [piece for piece in SPECIALS if piece not in index]
    if missing:
        raise InputError(
            f"the vocabulary lacks the special piece{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}; it must hold {', '.join(SPECIALS)}"
        )
    return [index[piece] for piece in SPECIALS]


def _changed_by(pieces: list[str], change: Callable[[str], str]) -> str | None:
    """The first piece of text that lower-casing (or upper-casing) would change, if there is one."""
    return next((p for p in pieces if change(p) != p and not _RESERVED.fullmatch(p)), None)


def _case_conflict(pieces: list[str], cased: bool) -> tuple[str, str] | None:
    """What a switch does to a vocabulary of the other case, and the cure; None where they agree.

    A vocabulary without cased letters (Chinese, digits) goes with either switch.
    """
    upper, lower = _changed_by(pieces, str.lower), _changed_by(pieces, str.upper)
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


_SPECIAL_NAMES = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIALS}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- SentencePiece


class SentencePieceTokenizer:
    """A SentencePiece model (Kudo and Richardson 2018), BPE or unigram, with BERT's special pieces.

    Normalisation, lower-casing included, is part of the model.

    Args:
      model: the content of a `.model` file.

    Raises:
      InputError: not a SentencePiece model, or one without the special pieces.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes):
        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError("not a SentencePiece model; give the .model file itself") from error
        size = self._processor.get_piece_size()
        self.pieces = [self._processor.id_to_piece(i) for i in range(size)]
        index = {piece: i for i, piece in enumerate(self.pieces)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = _special_ids(index)
        self.cased = "A" in self._processor.normalize("A")
        no_text = ("is_control", "is_unknown", "is_unused")
        self._is_text = [
            not any(getattr(self._processor, test)(i) for test in no_text) for i in range(size)
        ]
        for piece in SPECIALS:
            if index[piece] in self.encode(piece) and index[piece] != self.unk_id:
                raise InputError(
                    f"the model finds the special piece {piece} in raw text; declare it a control "
                    "symbol, not a user-defined one, when the model is trained"
                )
        starts = [piece.startswith(SPACE) for piece in self.pieces]
        self.continues = np.array(self._is_text) & ~np.array(starts)
        self.real_ids = np.flatnonzero(self._is_text).astype(np.int32)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self._model,)

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""
        return self._processor.encode(_encodable(text))

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `Tokenizer`."""
        text = _encodable(text)
        found: Any = self._processor.encode(text, out_type="offset_mapping")
        spans = []
        for start, end in found["offsets"]:  # with the white space before a word
            spans.append((end - len(text[start:end].lstrip()), end))
        return found["ids"], spans

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; special pieces appear by their names."""
        parts: list[str] = []
        for is_text, run in itertools.groupby(map(int, ids), self._is_text.__getitem__):
            if is_text:
                parts.append(self._processor.decode(list(run)))
            else:
                parts.extend(self.pieces[i] for i in run)
        return " ".join(parts)

    def fingerprint(self) -> str:
        """A hex digest of the model, its normalisation rules and scores included."""
        return _digest(self.kind.encode() + self._model)

    def save(self, directory: epath.PathLike) -> None:
        """Writes `spm.model` and `tokenizer_config.json`, which `transformers` reads too."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MODEL_FILE).write_bytes(self._model)
        config = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, **_SPECIAL_NAMES}
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def _encodable(text: str) -> str:
    # Half of a surrogate pair has no UTF-8: it becomes a question mark.
    return text.encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- from files


def load_tokenizer(
    path: epath.PathLike, *, cased: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """The tokenizer of a vocabulary file, or of a directory that `Tokenizer.save` has written.

    Args:
      path: a list of pieces (one a line, as in `vocab.txt`), a SentencePiece `.model`, or a
        directory with `vocab.txt` or `spm.model` and, if there is one, `tokenizer_config.json`.
      cased: whether case is kept; None takes it from the directory, or else from the pieces (an
        upper-case letter means cased).
      strip_accents: None takes it from the directory, or else follows lower-casing.

    Raises:
      InputError: no such file, not a usable vocabulary, or one that does not go with the switches.
    """
    path = epath.Path(path)
    if not path.exists():
        raise InputError(f"there is no vocabulary at {path}; `bertjax vocab` makes one")
    config: dict[str, Any] = {}
    if path.is_dir():
        directory, names = path, (VOCAB_FILE, MODEL_FILE)
        path = next((path / name for name in names if (path / name).exists()), path)
        if path == directory:
            raise InputError(f"{directory} holds neither {VOCAB_FILE} nor {MODEL_FILE}")
        if (directory / CONFIG_FILE).exists():
            config = _read_config(directory / CONFIG_FILE)
    try:
        if path.suffix == ".model":
            return _load_sentencepiece(path.read_bytes(), cased, strip_accents)
        return _load_wordpiece(path, config, cased, strip_accents)
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


def _load_wordpiece(
    path: epath.Path, config: dict[str, Any], cased: bool | None, strip_accents: bool | None
) -> WordPieceTokenizer:
    pieces = read_pieces(path.read_bytes())
    if not config.get("tokenize_chinese_chars", True):
        raise InputError(
            f"{CONFIG_FILE} sets tokenize_chinese_chars to false, which is not supported; use a "
            "vocabulary whose ideographs are words of their own"
        )
    lower_case = config.get("do_lower_case")
    stored_cased = None if lower_case is None else not lower_case
    cased = _agreed("cased", cased, stored_cased)
    if cased is None:
        cased = _changed_by(pieces, str.lower) is not None
    if conflict := _case_conflict(pieces, cased):
        # A published model computes what it was published with: Chinese ones are an example.
        if stored_cased is None:
            raise InputError("; ".join(conflict))
        _log.warning("%s: %s; %s says so.", path, conflict[0], CONFIG_FILE)
    strip_accents = _agreed("strip_accents", strip_accents, config.get("strip_accents"))
    return WordPieceTokenizer(pieces, cased=cased, strip_accents=strip_accents)


def _agreed(name: str, asked: bool | None, stored: bool | None) -> bool | None:
    if None not in (asked, stored) and asked != stored:
        raise InputError(
            f"asked for {name}={asked}, but {CONFIG_FILE} beside it says {name}={stored}; leave "
            "the switch out"
        )
    return stored if asked is None else asked


def read_pieces(content: bytes) -> list[str]:
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
