"""Words of running text."""

import itertools
import re
import unicodedata
from collections.abc import Iterator

from data_pipelines.vocabulary.basic_tokenization import basic_tokenize_with_offsets, is_blank
from data_pipelines.vocabulary.tokenization import Tokenizer

# Punctuation within a number, such as 1,000 or 12:30, and between the letters of an abbreviation
# such as U.S. CoNLL-2003, OntoNotes and Universal Dependencies have words of these, whose first
# token alone has a tag. The tags of the others are not trained.
_JOINT = re.compile(r"(?<=\d)[.,:](?=\d)|(?<=(?<!\w)[^\W\d_])\.(?=[^\W\d_](?!\w))")


def word_offsets(text: str, tokenizer: Tokenizer | None = None) -> Iterator[tuple[int, int]]:
    """Yield start (inclusive) and end (exclusive) of each word of running text.

    Words are those of BERT's basic tokenization, as in the pipelines of transformers: each
    punctuation character and each CJK character is a word. Numbers such as 1,000 and abbreviations
    such as U.S stay whole. Control and format characters at the ends of a word are left out, and
    so is a combining mark that follows a space: they have no tokens.

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
    """Yield start and end of each word of a text without added tokens."""
    joints = {match.start() for match in _JOINT.finditer(text)}
    first = last = 0  # of the word that is not yet complete
    for word in basic_tokenize_with_offsets(text, cased=True, strip_accents=False):
        # A combining mark belongs to the punctuation character before it, as in the last word.
        start, end = max(word.starts[0], last), word.ends[-1]
        if last and (start in joints or last - 1 in joints):
            last = end
        elif start < end and not all(unicodedata.category(char) == "Mn" for char in word.word):
            if last:
                yield first, last
            first, last = start, end
    if last:
        yield first, last
