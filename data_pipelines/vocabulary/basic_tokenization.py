"""Basic tokenization: the words of a text, the first step of BERT's tokenizer.

Characters are classified by Python's `unicodedata`, as in google-research/bert, and the classes are
cached in tables. Compiled tokenizers have their own, often older, Unicode tables.
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


def _decompose(char: str) -> str:
    """Return the characters of the decomposition (NFD) without marks, punctuation set apart."""
    parts = unicodedata.normalize("NFD", char)
    _ordered.update(c for c in parts if unicodedata.combining(c) and not _is_mark(c))
    return "".join(_split_punctuation(c) for c in parts if not _is_mark(c))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) == "Mn"


# Seen characters that are no marks of category Mn and that NFD puts into an order, such as viramas.
_ordered: set[str] = set()
_CLEAN = _CharacterTable(_clean)
_PUNCTUATION = _CharacterTable(_split_punctuation)
_DECOMPOSED = _CharacterTable(_decompose)


def basic_tokenize(text: str, *, cased: bool, strip_accents: bool) -> list[str]:
    """Split a text into words and punctuation characters (BERT's BasicTokenizer).

    NUL, U+FFFD and the categories Cc and Cf are dropped, except tab, newline and carriage return,
    which become spaces. CJK characters and punctuation characters are words of their own. There is
    no other normalization.

    google-research/bert lower-cases and decomposes each word; processing the whole text at once is
    equivalent, since neither depends on characters beyond a space.

    Args:
      text: raw text.
      cased: False lower-cases the text.
      strip_accents: decompose (NFD) and drop category Mn.
    """
    if text.isascii() and text.isalnum():  # fast path: most parts of `split_for_caching`
        return [text if cased else text.lower()]
    text = text.translate(_CLEAN)
    if not cased:
        text = text.lower()
    if strip_accents:
        # Marks are dropped, so their order does not matter: each character is decomposed alone.
        decomposed = text.translate(_DECOMPOSED)
        if not _ordered.isdisjoint(decomposed):
            decomposed = _decompose_in_order(text)
        return decomposed.split()
    return text.translate(_PUNCTUATION).split()


def is_blank(text: str) -> bool:
    """Return whether a text has nothing but white space and control characters."""
    return not text.translate(_CLEAN).strip()


def _decompose_in_order(text: str) -> str:
    """Return NFD without marks, punctuation set apart, in linear time but for a sort.

    `unicodedata.normalize` takes quadratic time for a run of marks.
    """
    parts = "".join(unicodedata.normalize("NFD", char) for char in text)
    groups = itertools.groupby(parts, lambda char: unicodedata.combining(char) > 0)
    ordered = (sorted(run, key=unicodedata.combining) if marks else run for marks, run in groups)
    chars = itertools.chain.from_iterable(ordered)
    return "".join(_split_punctuation(char) for char in chars if not _is_mark(char))


# The words of `basic_tokenize` in printable ASCII text.
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_NONSPACE = re.compile(r"[^ \t\n\r]+")


@dataclasses.dataclass(frozen=True, slots=True)
class WordWithOffsets:
    """A word with the start and end offsets in the text of each character of the word."""

    word: str
    starts: Sequence[int]
    ends: Sequence[int]


def basic_tokenize_with_offsets(
    text: str, *, cased: bool, strip_accents: bool
) -> Iterator[WordWithOffsets]:
    """Yield the words of `basic_tokenize` with their offsets in the text.

    The offsets of a character exclude dropped control characters, and include the combining marks
    that follow, so that no accent is cut off.
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
    """Yield the words of `text`, a part of a longer text that starts there at `offset`."""
    chars = _clean_with_indices(text, cased)
    table = _DECOMPOSED if strip_accents else _PUNCTUATION
    chars = _convert(chars, lambda char: table[ord(char)])
    mark_ends = _ends_with_marks(text)
    for is_space, group in itertools.groupby(chars, lambda item: item[0].isspace()):
        if not is_space:
            letters, indices_of_word = zip(*group, strict=True)
            starts = [offset + index for index in indices_of_word]
            ends = [offset + mark_ends[index] for index in indices_of_word]
            yield WordWithOffsets("".join(letters), starts, ends)


def normalize_with_indices(
    text: str, *, cased: bool, strip_accents: bool
) -> tuple[str, Sequence[int]]:
    """Return a text as it is before it is split at punctuation, and where its characters are.

    Returns:
      The normalized text, and for each of its characters the index in `text` of its origin.
    """
    if text.isascii() and text.isprintable():
        return text if cased else text.lower(), range(len(text))
    chars = _clean_with_indices(text, cased)
    if strip_accents:
        decomposed = _convert(chars, lambda char: unicodedata.normalize("NFD", char))
        chars = [(char, index) for char, index in decomposed if not _is_mark(char)]
    return "".join(char for char, _ in chars), [index for _, index in chars]


def _clean_with_indices(text: str, cased: bool) -> list[tuple[str, int]]:
    """Return the characters of a clean, perhaps lower-cased text, each with that of its origin."""
    chars = [(new, index) for index, char in enumerate(text) for new in _CLEAN[ord(char)] or ""]
    if cased:
        return chars
    lowered = "".join(char for char, _ in chars).lower()
    # The string is lower-cased as a whole, since the lower case of "Σ" depends on the adjacent
    # characters. The number of characters, and so their indices, do not depend on them.
    indices = [index for _, index in _convert(chars, str.lower)]
    return list(zip(lowered, indices, strict=True))


def _convert(
    chars: list[tuple[str, int]], converter: Callable[[str], str | None]
) -> list[tuple[str, int]]:
    return [(new, index) for char, index in chars for new in converter(char) or ""]


def _ends_with_marks(text: str) -> list[int]:
    """Return the end of each character, including the combining marks that follow it."""
    ends = [*range(1, len(text) + 1)]
    for index in range(len(text) - 2, -1, -1):
        if _is_mark(text[index + 1]):
            ends[index] = ends[index + 1]
    return ends


# Punctuation that a space may surround without a change of the words. The full stop and the
# apostrophe are missing: `str.lower` skips them (Unicode calls them case-ignorable) when it decides
# whether a sigma is the last letter of a word, and does not skip a space.
_SEPARABLE_PUNCTUATION = tuple((char, f" {char} ") for char in ',;()"-')


def split_for_caching(text: str, *, cased: bool) -> list[str]:
    r"""Split a text into parts that can be tokenized independently; some parts are empty.

    The text has the words of its parts (`basic_tokenize`), in order. Parts repeat far more often
    than sentences, so it pays to cache their tokens. Without punctuation fewer parts differ.

    The text is split at ASCII white space. `str.split()` would also split at control characters,
    which google-research/bert drops: `a\x0bb` is the word `ab`.
    """
    if not cased and "Σ" not in text:  # its lower case depends on the adjacent characters
        text = text.lower()
    for char, separated in _SEPARABLE_PUNCTUATION:
        text = text.replace(char, separated)
    text = text.replace(". ", " . ").replace("\n", " ").replace("\t", " ").replace("\r", " ")
    return text.split(" ")
