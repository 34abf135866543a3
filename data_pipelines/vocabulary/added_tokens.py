"""Added tokens, such as `@GENE$`: they stay whole, since a text is searched for them first.

The search is that of the `tokenizers` library: the leftmost match, the longest of those. Tokens
that are not normalized are found in the raw text first. Those that are normalized are then found in
the remaining parts, where case and accents count as little as in the text of the tokenizer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data_pipelines.vocabulary.basic_tokenization import normalize_with_indices

ADDED_TOKEN_SCHEMA = {
    "content": str,
    **dict.fromkeys(("special?", "normalized?", "single_word?"), bool),
}
"""Schema of a token in the files of `tokenizers` and transformers."""


class AddedToken(NamedTuple):
    """A token that a text is searched for; the fields are those of `tokenizers.AddedToken`."""

    content: str
    normalized: bool = True
    single_word: bool = False

    def __str__(self) -> str:
        options = [name for name in ("normalized", "single_word") if getattr(self, name)]
        return f"{self.content} ({', '.join(options)})" if options else self.content

    @classmethod
    def from_settings(cls, value: Mapping[str, Any]) -> "AddedToken":
        """Return the token of an entry of `added_tokens_decoder` or of tokenizer.json."""
        normalized = value.get("normalized")
        if normalized is None:
            normalized = not value.get("special")
        return cls(value["content"], normalized, bool(value.get("single_word")))

    def settings(self) -> dict[str, Any]:
        """Return its entry of `added_tokens_decoder`."""
        return {**self._asdict(), "lstrip": False, "rstrip": False, "special": False}


class AddedTokenFinder:
    """A search for added tokens in texts.

    Args:
      tokens: the added tokens.
      index: the id of each token of the vocabulary.
      cased: see `normalize_with_indices`.
      strip_accents: see `normalize_with_indices`.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken],
        index: Mapping[str, int],
        *,
        cased: bool,
        strip_accents: bool,
    ):
        self._options = {"cased": cased, "strip_accents": strip_accents}
        self._ids_of_raw: dict[str, int] = {}
        self._ids_of_normalized: dict[str, int] = {}
        raw, normalized = [], []
        for token in tokens:
            if token.normalized:
                content, _ = normalize_with_indices(token.content, **self._options)
                self._ids_of_normalized.setdefault(content, index[token.content])
                normalized.append(token._replace(content=content))
            else:
                self._ids_of_raw[token.content] = index[token.content]
                raw.append(token)
        self._raw, self._normalized = _compile(raw), _compile(normalized)

    def find(self, text: str) -> Sequence[tuple[int, int, int]]:
        """Return start, end and id of each added token in a text."""
        spans = []
        if self._raw:
            spans = [(*m.span(), self._ids_of_raw[m[0]]) for m in self._raw.finditer(text)]
        if self._normalized:
            ends = [0, *(end for _, end, _ in spans)]
            starts = [*(start for start, _, _ in spans), len(text)]
            for start, end in zip(ends, starts, strict=True):
                spans += self._find_normalized(text[start:end], start)
        return sorted(spans)

    def _find_normalized(self, text: str, offset: int) -> Iterator[tuple[int, int, int]]:
        normalized, indices = normalize_with_indices(text, **self._options)
        assert self._normalized is not None
        for match in self._normalized.finditer(normalized):
            start, end = match.span()
            # Dropped characters that follow, such as combining marks, belong to the token.
            stop = indices[end] if end < len(indices) else len(text)
            stop = max(stop, indices[end - 1] + 1)
            yield offset + indices[start], offset + stop, self._ids_of_normalized[match[0]]


def _compile(tokens: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Return a pattern of all tokens, the longest first; None without tokens."""
    ordered = sorted(tokens, key=lambda token: len(token.content), reverse=True)
    parts = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)"
        if token.single_word
        else re.escape(token.content)
        for token in ordered
        if token.content
    ]
    return re.compile("|".join(parts)) if parts else None
