"""How much of some texts a tokenizer takes in."""

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data_pipelines.vocabulary.tokenization import Tokenizer

_MAX_TEXTS = 200  # that are looked at, evenly spread
_MAX_CHARS = 2000  # of each
_WARNING_THRESHOLD = 0.03  # of a text is told when it is lost; of English, nothing is

_log = logging.getLogger("data_pipelines")


class CoverageLoss(NamedTuple):
    """What of texts a model does not see.

    Attributes:
      unknown: share of the characters, of those that are in a piece, that are in an unknown one.
      stripped: share of the letters and their marks that are marks, where these are taken off:
        accents, but in many scripts vowels and tones.
    """

    unknown: float
    stripped_fraction: float


def measure_coverage_loss(tokenizer: Tokenizer, texts: Sequence[str]) -> CoverageLoss:
    """The loss of texts, from no more of them than tell it."""
    known = unknown = letters = marks = 0
    strips = getattr(tokenizer, "strip_accents", False)  # a switch of WordPiece
    for text in texts[:: -(-len(texts) // _MAX_TEXTS) or 1]:
        text = text[:_MAX_CHARS]
        ids, spans = tokenizer.encode_with_offsets(text)
        for token, (start, end) in zip(ids, spans, strict=True):
            if token == tokenizer.unk_id:
                unknown += end - start
            else:
                known += end - start
        if strips:
            kinds = [unicodedata.category(char) for char in unicodedata.normalize("NFD", text)]
            letters += sum(kind[0] in "LM" for kind in kinds)
            marks += kinds.count("Mn")
    return CoverageLoss(unknown / max(known + unknown, 1), marks / max(letters, 1))


def warn_of_coverage_loss(tokenizer: Tokenizer, texts: Mapping[str, Sequence[str]]) -> None:
    """Tells of which data sets, of some names and texts, the vocabulary loses a part.

    Languages and casing that do not go together are seen nowhere else but in poor scores: the
    pieces of a text without its vowels are as good as any.
    """
    found = []
    for name, own in texts.items():
        loss = measure_coverage_loss(tokenizer, own)
        said = []
        if loss.stripped_fraction > _WARNING_THRESHOLD:
            said.append(
                f"{loss.stripped_fraction:.0%} of its letters are marks, which are stripped"
            )
        if loss.unknown > _WARNING_THRESHOLD:
            said.append(f"{loss.unknown:.0%} of its characters are unknown")
        if said:
            found.append(f"{name} ({', '.join(said)})")
    if found:
        _log.warning(
            "the vocabulary loses part of %s: take one that knows such text, and a cased one where "
            "marks are stripped.",
            "; ".join(found),
        )
