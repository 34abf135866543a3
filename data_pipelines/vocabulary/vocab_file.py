"""Vocabulary files with one token a line, and what their tokens say about case and accents."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from data_pipelines.errors import InputError

VOCAB_FILE = "vocab.txt"
# Tokens that no text contains, since brackets are words of their own: [CLS], [unused7], <S>.
RESERVED = re.compile(r"\[[^\[\]]+\]|<[^<>]+>")


def parse_vocab(content: bytes) -> list[str]:
    """Return the tokens of a vocabulary file, one per line, without surrounding white space.

    An empty line keeps its id, unless no token follows it. A byte order mark is skipped. The
    published Chinese vocabulary has a line separator (U+2028) as a token.

    Raises:
      InputError: the content is compressed or not UTF-8, or lines have columns other than a token
        and its id.
    """
    check_content(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}. Save the "
            "vocabulary as UTF-8."
        ) from error
    lines = text.split("\n" if "\n" in text else "\r")
    tokens = [line.strip() or line.strip(" \t\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    return _parse_numbered(tokens) if any("\t" in token for token in tokens) else tokens


def _parse_numbered(lines: list[str]) -> list[str]:
    """Return the tokens of lines with a token, a tab and its id, as in the vocabulary of ERNIE."""
    pairs = [line.rpartition("\t")[::2] for line in lines]
    if sorted(number for _, number in pairs) != sorted(map(str, range(len(pairs)))):
        line = next(line for line in lines if "\t" in line)
        raise InputError(
            f"the line {line!r} is not a token, nor a token and its id. Write one token per line, "
            "in the order of their ids."
        )
    return [token for token, _ in sorted(pairs, key=lambda pair: int(pair[1]))]


def check_content(content: bytes) -> None:
    """Raise InputError if a file of a model is compressed, or a pointer of Git LFS."""
    if content.startswith(b"\x1f\x8b"):
        raise InputError("is compressed by gzip. Decompress it.")
    if content.startswith(b"version https://git-lfs"):
        raise InputError("is a pointer of Git LFS, not the file. Run `git lfs pull`.")


def index_tokens(tokens: Sequence[str]) -> dict[str, int]:
    """Return the id of each token; a repeated token has its last id.

    transformers and google-research/bert read vocabularies the same way.

    Raises:
      InputError: there are no tokens.
    """
    if not tokens:
        raise InputError("the vocabulary is empty. Write one token per line.")
    return {token: i for i, token in enumerate(tokens)}


def describe_unreachable_lines(tokens: Sequence[str]) -> str:
    """Return which lines of a vocabulary no text reaches: empty, repeated or two words."""
    index = index_tokens(tokens)
    lines = []
    for i, token in enumerate(tokens):
        if not token:
            lines.append(f"line {i + 1} is empty")
        elif index[token] != i:
            lines.append(f"line {i + 1} repeats as line {index[token] + 1}")
        elif " " in token:
            lines.append(f"line {i + 1} has a space")
    more = f" and {len(lines) - 3:,} more" if len(lines) > 3 else ""
    return ", ".join(lines[:3]) + more


def has_uppercase(tokens: Sequence[str]) -> bool:
    """Return whether a text token has an upper-case letter, so that the vocabulary is cased."""
    return _first_changed(tokens, str.lower) is not None


def has_accents(tokens: Sequence[str]) -> bool:
    """Return whether a token has combining marks: accents, or vowel and tone signs."""
    characters = unicodedata.normalize("NFD", "".join(tokens))
    return any(unicodedata.category(char) == "Mn" for char in set(characters))


def _first_changed(tokens: Sequence[str], change: Callable[[str], str]) -> str | None:
    """Return the first token of letters that lower-casing (or upper-casing) changes, or None.

    Tokens such as @GENE$, which users add to uncased vocabularies, say nothing about the case.
    """
    return next((t for t in tokens if change(t) != t and t.removeprefix("##").isalpha()), None)


def case_conflict(tokens: Sequence[str], cased: bool) -> tuple[str, str] | None:
    """Return the problem of a vocabulary of the other case, and its fix; None if they agree.

    A vocabulary without cased letters (Chinese, digits) agrees with either.
    """
    upper, lower = _first_changed(tokens, str.lower), _first_changed(tokens, str.upper)
    if not cased and upper is not None:
        return (
            f"the vocabulary is cased (it contains {upper!r}), but text is lower-cased, so part of "
            "it is never used.",
            "Use a cased tokenizer (--cased).",
        )
    if cased and upper is None and lower is not None:
        return (
            "the vocabulary is uncased (no token has an upper-case letter), but text is not "
            "lower-cased, so capitals are unknown.",
            "Use an uncased tokenizer (no --cased).",
        )
    return None
