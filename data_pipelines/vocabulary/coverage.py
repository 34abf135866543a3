"""Vocabulary coverage: the parts of texts that a tokenizer loses."""

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data_pipelines.vocabulary.tokenization import Tokenizer

_MAX_TEXTS = 200  # evenly spaced
_MAX_CHARS = 2000  # per text
_WARNING_THRESHOLD = 0.03  # English text loses nothing with any published vocabulary

_log = logging.getLogger("data_pipelines")


class CoverageLoss(NamedTuple):
    """The parts of texts that a model does not see.

    Attributes:
      unk_fraction: fraction of the tokenized characters that belong to [UNK].
      stripped_fraction: fraction of the letters and combining marks that are marks, where these are
        stripped. They are accents, but vowels and tones in many scripts.
    """

    unk_fraction: float
    stripped_fraction: float


def measure_coverage_loss(tokenizer: Tokenizer, texts: Sequence[str]) -> CoverageLoss:
    """Measure the coverage loss of texts on a sample of them."""
    known = unknown = letters = marks = 0
    strips_accents = getattr(tokenizer, "strip_accents", False)  # an attribute of WordPiece
    for text in texts[:: -(-len(texts) // _MAX_TEXTS) or 1]:
        text = text[:_MAX_CHARS]
        ids, spans = tokenizer.encode_with_offsets(text)
        for token, (start, end) in zip(ids, spans, strict=True):
            if token == tokenizer.unk_id:
                unknown += end - start
            else:
                known += end - start
        if strips_accents:
            categories = [unicodedata.category(char) for char in unicodedata.normalize("NFD", text)]
            letters += sum(category[0] in "LM" for category in categories)
            marks += categories.count("Mn")
    return CoverageLoss(unknown / max(known + unknown, 1), marks / max(letters, 1))


def warn_of_coverage_loss(tokenizer: Tokenizer, texts: Mapping[str, Sequence[str]]) -> None:
    """Log a warning that names the data sets of which the vocabulary loses a part.

    A vocabulary of another language or casing is otherwise visible only in poor scores.

    Args:
      tokenizer: the tokenizer.
      texts: texts by name of their data set.
    """
    losses = []
    for name, sample in texts.items():
        loss = measure_coverage_loss(tokenizer, sample)
        parts = []
        if loss.stripped_fraction > _WARNING_THRESHOLD:
            parts.append(f"{loss.stripped_fraction:.0%} of the letters stripped as accents")
        if loss.unk_fraction > _WARNING_THRESHOLD:
            parts.append(f"{loss.unk_fraction:.0%} of the characters unknown")
        if parts:
            losses.append(f"{name} ({', '.join(parts)})")
    if losses:
        _log.warning(
            "poor coverage by the vocabulary: %s. Use a vocabulary of these languages, and a cased "
            "one where accents are stripped.",
            "; ".join(losses),
        )
