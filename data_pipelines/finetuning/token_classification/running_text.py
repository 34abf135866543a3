"""Words of running text."""

import itertools
import re
import unicodedata
from collections.abc import Iterator

from data_pipelines.vocabulary.basic_tokenization import is_blank
from data_pipelines.vocabulary.tokenization import Tokenizer

_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


def word_offsets(text: str, tokenizer: Tokenizer | None = None) -> Iterator[tuple[int, int]]:
    """Yield first and last character of each word of running text.

    Words are separated by spaces. Each punctuation mark at either end of a word, and each
    ideograph, is a word.

    Args:
      text: the text.
      tokenizer: tokenizer whose added tokens are words, unless they are blank; None for none.
    """
    added = tokenizer.find_added_tokens(text) if tokenizer else []
    added = [(start, end) for start, end in added if not is_blank(text[start:end])]
    ends = [0, *(end for _, end in added)]
    for begin, word in itertools.zip_longest(ends, added):
        limit = word[0] if word else len(text)
        yield from ((begin + start, begin + end) for start, end in _split(text[begin:limit]))
        if word:
            yield word


def _split(text: str) -> Iterator[tuple[int, int]]:
    """Yield first and last character of each word of a text without added tokens."""
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
