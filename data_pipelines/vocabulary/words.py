"""The words of a text, as the first step of BERT's own tokenisation finds them.

Written on Python's `unicodedata` and tables that are filled as characters turn up, so that every
character is treated as in the original (google-research/bert); normalisers of compiled libraries
carry Unicode tables of their own, often older.
"""

import dataclasses
import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence


class _CharacterTable(dict[int, str | None]):
    """A table for `str.translate` that classifies a character when it first meets it."""

    def __init__(self, classify: Callable[[str], str | None]):
        super().__init__()
        self._classify = classify

    def __missing__(self, code_point: int) -> str | None:
        return self.setdefault(code_point, self._classify(chr(code_point)))


_CJK_RANGES = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


def _clean(char: str) -> str | None:
    if char in "\t\n\r":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return None
    if char.isspace():  # category Zs, and U+2028 and U+2029, at which `str.split` also breaks
        return " "
    if any(first <= ord(char) <= last for first, last in _CJK_RANGES):
        return f" {char} "
    return char


def _split_punctuation(char: str) -> str:
    if char in string.punctuation or unicodedata.category(char).startswith("P"):
        return f" {char} "
    return char


def _drop_marks_and_split_punctuation(char: str) -> str | None:
    return None if unicodedata.category(char) == "Mn" else _split_punctuation(char)


_CLEAN = _CharacterTable(_clean)
_PUNCTUATION = _CharacterTable(_split_punctuation)
_MARKS_AND_PUNCTUATION = _CharacterTable(_drop_marks_and_split_punctuation)


def basic_tokenize(text: str, *, cased: bool, strip_accents: bool) -> list[str]:
    """The words and punctuation signs of a text, which WordPiece then cuts into pieces.

    NUL, U+FFFD and the categories Cc and Cf are dropped (but tab, newline and return, which are
    spaces); ideographs and punctuation signs stand alone; lower-casing and the removal of accents
    (NFD, then no Mn) follow the switches. No other normalisation takes place.

    The original lower-cases and decomposes word by word. Doing it once for the whole text is the
    same: neither looks past a space.
    """
    if text.isascii() and text.isalnum():  # most parts of a text, and nothing to do for them
        return [text if cased else text.lower()]
    text = text.translate(_CLEAN)
    if not cased:
        text = text.lower()
    if strip_accents:
        return unicodedata.normalize("NFD", text).translate(_MARKS_AND_PUNCTUATION).split()
    return text.translate(_PUNCTUATION).split()


# A word or a sign of ASCII text, as `basic_tokenize` cuts it; and what lies between its white space.
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_CHUNK = re.compile(r"[^ \t\n\r]+")


@dataclasses.dataclass(frozen=True, slots=True)
class WordWithOffsets:
    """A word, and where in the text each of its characters begins and ends."""

    word: str
    starts: Sequence[int]
    ends: Sequence[int]


def basic_tokenize_with_offsets(
    text: str, *, cased: bool, strip_accents: bool
) -> Iterator[WordWithOffsets]:
    """`basic_tokenize`, and where in the text they stand.

    What is dropped belongs to no character, but a mark to the one that it stands on, so that
    no accent is cut off.
    """
    for chunk in _CHUNK.finditer(text):
        at, part = chunk.start(), chunk[0]
        if part.isascii() and part.isprintable():
            for found in _ASCII_WORD.finditer(part if cased else part.lower()):
                start, end = at + found.start(), at + found.end()
                yield WordWithOffsets(found[0], range(start, end), range(start + 1, end + 1))
        else:
            yield from _words_with_offsets(part, at, cased=cased, strip_accents=strip_accents)


def _words_with_offsets(
    text: str, at: int, *, cased: bool, strip_accents: bool
) -> Iterator[WordWithOffsets]:
    """The words of a text that begins at character `at` of another."""
    # What each character becomes, beside the place of the one that it came from.
    chars = [(new, place) for place, char in enumerate(text) for new in _CLEAN[ord(char)] or ""]

    def change(changed: Callable[[str], str | None]) -> list[tuple[str, int]]:
        return [(new, place) for char, place in chars for new in changed(char) or ""]

    if not cased:
        lowered = "".join(char for char, _ in chars).lower()
        # A final sigma is told by its neighbours; all else is as for a character alone.
        places = [place for _, place in change(str.lower)]
        chars = list(zip(lowered, places, strict=True))
    if strip_accents:
        chars = change(lambda char: unicodedata.normalize("NFD", char))
        chars = change(lambda char: _MARKS_AND_PUNCTUATION[ord(char)])
    else:
        chars = change(lambda char: _PUNCTUATION[ord(char)])
    for is_space, group in itertools.groupby(chars, lambda each: each[0].isspace()):
        if not is_space:
            letters, origins = zip(*group, strict=True)
            starts = [at + place for place in origins]
            ends = [at + _end_with_marks(text, place) for place in origins]
            yield WordWithOffsets("".join(letters), starts, ends)


def _end_with_marks(text: str, place: int) -> int:
    """The end of the character at the place, with the marks that stand on it."""
    place += 1
    while place < len(text) and unicodedata.category(text[place]) == "Mn":
        place += 1
    return place


# Signs that are words of their own wherever they stand, and end a word for `str.lower` as a space
# does. (It tells a final sigma from others by what follows, and looks past a full stop or an
# apostrophe, which Unicode calls case-ignorable.)
_SEPARATE = tuple((sign, f" {sign} ") for sign in ',;()"-')


def split_for_caching(text: str, *, cased: bool) -> list[str]:
    """Cuts a text into parts (some may be empty) whose `basic_tokenize` are those of the text.

    The parts repeat themselves far more often than sentences do, so what is found for one can be
    remembered; the finer the cut, the fewer different parts there are.

    Cuts at ASCII white space, not with `str.split()`: that also cuts at control characters, which
    the original drops, so that `a\\x0bb` is the word `ab`.
    """
    if not cased and "Σ" not in text:  # the only letter whose lower case depends on its neighbours
        text = text.lower()
    for sign, apart in _SEPARATE:
        text = text.replace(sign, apart)
    text = text.replace(". ", " . ").replace("\n", " ").replace("\t", " ").replace("\r", " ")
    return text.split(" ")
