"""Published WordPiece tokenization written out plainly in Python: the peer of `prepare`.

It shares no code with `data_pipelines`.
"""

import pathlib
import unicodedata

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = ((33, 47), (58, 64), (91, 96), (123, 126))
_MAX_WORD_CHARS = 200


class PlainTokenizer:
    """BERT's tokenization, pass by pass.

    Args:
      vocab: vocabulary file.
      lower_case: whether text is lowercased and loses its accents.
    """

    def __init__(self, vocab: pathlib.Path, lower_case: bool) -> None:
        tokens = vocab.read_text("utf-8").split("\n")
        self.ids = {token: i for i, token in enumerate(tokens) if token}
        self.lower_case = lower_case

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return [token_id for word in self.words(text) for token_id in self.wordpieces(word)]

    def words(self, text: str) -> list[str]:
        """Return the words of a text: BERT's basic tokenization."""
        words = []
        for word in self.space_ideographs(self.clean(text)).split():
            if self.lower_case:
                word = self.strip_accents(word.lower())
            words += self.split_punctuation(word)
        return words

    def clean(self, text: str) -> str:
        """Return a text without control characters, every whitespace as a space."""
        output = []
        for char in text:
            if ord(char) in (0, 0xFFFD) or self.is_control(char):
                continue
            output.append(" " if self.is_space(char) else char)
        return "".join(output)

    def space_ideographs(self, text: str) -> str:
        """Return a text with spaces around ideographs."""
        return "".join(f" {c} " if _is_in(_IDEOGRAPHS, ord(c)) else c for c in text)

    def strip_accents(self, word: str) -> str:
        """Return a word without combining marks."""
        decomposed = unicodedata.normalize("NFD", word)
        return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")

    def split_punctuation(self, word: str) -> list[str]:
        """Return a word's parts; every punctuation character is a part of its own."""
        parts: list[str] = []
        start_new = True
        for char in word:
            is_punctuation = self.is_punctuation(char)
            if is_punctuation or start_new:
                parts.append(char)
            else:
                parts[-1] += char
            start_new = is_punctuation
        return parts

    def wordpieces(self, word: str) -> list[int]:
        """Return the ids of a word's longest matches, from the left."""
        unknown = [self.ids["[UNK]"]]
        if len(word) > _MAX_WORD_CHARS:
            return unknown
        ids = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                token = ("##" if start else "") + word[start:end]
                if token in self.ids:
                    ids.append(self.ids[token])
                    start = end
                    break
            else:
                return unknown
        return ids

    @staticmethod
    def is_space(char: str) -> bool:
        """Return whether BERT takes a character for whitespace."""
        return char in " \t\n\r" or unicodedata.category(char) == "Zs"

    @staticmethod
    def is_control(char: str) -> bool:
        """Return whether BERT removes a character."""
        return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")

    @staticmethod
    def is_punctuation(char: str) -> bool:
        """Return whether BERT splits at a character."""
        if _is_in(_ASCII_PUNCTUATION, ord(char)):
            return True
        return unicodedata.category(char).startswith("P")


def _is_in(ranges: tuple[tuple[int, int], ...], code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)
