"""Basic tokenization: the words of a text as in the first step of BERT's tokenizer.

The code uses Python's `unicodedata` and tables filled on demand, so that every character is treated
as in google-research/bert. Normalizers of compiled libraries have their own Unicode tables, often
older.
"""

import dataclasses
import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence


class _CharacterTable(dict[int, str | None]):
    """A table for `str.translate` that classifies a character at its first occurrence."""

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
    if char.isspace():  # category Zs, and U+2028 and U+2029, at which `str.split` also splits
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
    """Split a text into words and punctuation characters (BERT's BasicTokenizer).

    NUL, U+FFFD and the categories Cc and Cf are dropped, except tab, newline and return, which are
    spaces. CJK characters and punctuation characters are words of their own. No other normalization
    takes place.

    google-research/bert lower-cases and decomposes each word; processing the whole text at once is
    equivalent, since neither depends on characters beyond a space.

    Args:
      text: raw text.
      cased: False lower-cases the text.
      strip_accents: decompose (NFD) and drop category Mn.
    """
    if text.isascii() and text.isalnum():  # fast path for most parts of a text
        return [text if cased else text.lower()]
    text = text.translate(_CLEAN)
    if not cased:
        text = text.lower()
    if strip_accents:
        return unicodedata.normalize("NFD", text).translate(_MARKS_AND_PUNCTUATION).split()
    return text.translate(_PUNCTUATION).split()


# A word or punctuation character of ASCII text, and a run of characters without white space.
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_NONSPACE = re.compile(r"[^ \t\n\r]+")


@dataclasses.dataclass(frozen=True, slots=True)
class WordWithOffsets:
    """A word, and the start and end offset in the text of each of its characters."""

    word: str
    starts: Sequence[int]
    ends: Sequence[int]


def basic_tokenize_with_offsets(
    text: str, *, cased: bool, strip_accents: bool
) -> Iterator[WordWithOffsets]:
    """Yield the words of `basic_tokenize` with their offsets in the text.

    Dropped characters belong to no word character. A combining mark belongs to its base character,
    so that no accent is cut off.
    """
    for match in _NONSPACE.finditer(text):
        offset, part = match.start(), match[0]
        if part.isascii() and part.isprintable():
            for word in _ASCII_WORD.finditer(part if cased else part.lower()):
                start, end = offset + word.start(), offset + word.end()
                yield WordWithOffsets(word[0], range(start, end), range(start + 1, end + 1))
        else:
            yield from _words_with_offsets(part, offset, cased=cased, strip_accents=strip_accents)


def _words_with_offsets(
    text: str, offset: int, *, cased: bool, strip_accents: bool
) -> Iterator[WordWithOffsets]:
    """Yield the words of a part of a text that starts at `offset`."""
    # Each resulting character, with the index of the character that it came from.
    chars = [(new, index) for index, char in enumerate(text) for new in _CLEAN[ord(char)] or ""]

    def convert(converter: Callable[[str], str | None]) -> list[tuple[str, int]]:
        return [(new, index) for char, index in chars for new in converter(char) or ""]

    if not cased:
        lowered = "".join(char for char, _ in chars).lower()
        # The lower case of a final sigma depends on the adjacent characters, others do not.
        indices = [index for _, index in convert(str.lower)]
        chars = list(zip(lowered, indices, strict=True))
    if strip_accents:
        chars = convert(lambda char: unicodedata.normalize("NFD", char))
        chars = convert(lambda char: _MARKS_AND_PUNCTUATION[ord(char)])
    else:
        chars = convert(lambda char: _PUNCTUATION[ord(char)])
    for is_space, group in itertools.groupby(chars, lambda item: item[0].isspace()):
        if not is_space:
            letters, indices_of_word = zip(*group, strict=True)
            starts = [offset + index for index in indices_of_word]
            ends = [offset + _end_with_marks(text, index) for index in indices_of_word]
            yield WordWithOffsets("".join(letters), starts, ends)


def _end_with_marks(text: str, index: int) -> int:
    """Return the end of the character at `index`, including its combining marks."""
    index += 1
    while index < len(text) and unicodedata.category(text[index]) == "Mn":
        index += 1
    return index


# Characters that are always words of their own, and end a word for `str.lower` as a space does.
# (`str.lower` identifies a final sigma by the following characters. It skips a full stop and an
# apostrophe, which Unicode calls case-ignorable.)
_SEPARATE = tuple((sign, f" {sign} ") for sign in ',;()"-')


def split_for_caching(text: str, *, cased: bool) -> list[str]:
    r"""Split a text into parts, some of them empty, whose `basic_tokenize` concatenates to its own.

    Parts repeat far more often than sentences, so results for parts can be cached; finer parts make
    fewer different ones.

    The text is split at ASCII white space. `str.split()` would also split at control characters,
    which google-research/bert drops: `a\x0bb` is the word `ab`.
    """
    if not cased and "Σ" not in text:  # its lower case depends on the adjacent characters
        text = text.lower()
    for sign, separated in _SEPARATE:
        text = text.replace(sign, separated)
    text = text.replace(". ", " . ").replace("\n", " ").replace("\t", " ").replace("\r", " ")
    return text.split(" ")
