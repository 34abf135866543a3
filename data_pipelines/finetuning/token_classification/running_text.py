"""Words of running text."""

import re
import unicodedata
from collections.abc import Iterator

_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


def word_offsets(text: str) -> Iterator[tuple[int, int]]:
    """Yield first and last character of each word of running text.

    Words are separated by spaces. Each punctuation mark at either end of a word, and each
    ideograph, is a word.
    """
    for run in _UNSPACED.finditer(text):
        # An accent, a vowel sign or a joiner belongs to the character before it.
        starts = [
            at for at in range(*run.span()) if at == run.start() or not _is_combining(text[at])
        ]
        ends = [*starts[1:], run.end()]
        letters = [n for n, at in enumerate(starts) if text[at].isalnum() or text[at] == "_"]
        if letters:
            first, last = letters[0], letters[-1]
            del starts[first + 1 : last + 1], ends[first:last]
        yield from zip(starts, ends, strict=True)


def _is_combining(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
