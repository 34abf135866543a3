"""Scores of generated texts against reference texts: BLEU and ROUGE-L.

BLEU is that of sacrebleu (Post 2018), whose signature makes figures comparable. ROUGE-L is defined
as in rouge-score, which needs nltk and drops all letters but a to z: texts in other scripts would
score 0.
"""

from collections.abc import Sequence
from typing import Any

from data_pipelines.libraries import check_installed
from data_pipelines.vocabulary.basic_tokenization import basic_tokenize


def check_bleu(user: str) -> None:
    """Raise InputError if `bleu` cannot be computed.

    Args:
      user: the field that asks for it, and its value.
    """
    check_installed(user, "sacrebleu", install="'bertjax[generation]'")


def bleu(texts: Sequence[str], references: Sequence[str], *, lowercase: bool) -> dict[str, Any]:
    """Return the corpus BLEU-4 of texts with one reference each.

    Args:
      texts: generated texts.
      references: as many reference texts.
      lowercase: compares lower-cased texts.

    Returns:
      `score` from 0 to 100 and the numbers that it consists of, `precisions` of the n-grams and
      `brevity_penalty`; and sacrebleu's `signature`.
    """
    from sacrebleu.metrics import BLEU

    # `force`: no warning about spaces before punctuation, which 13a splits off anyway.
    metric = BLEU(lowercase=lowercase, force=True)
    result = metric.corpus_score(texts, [references])
    return {
        "score": result.score,
        "signature": str(metric.get_signature()),
        "precisions": result.precisions,
        "brevity_penalty": result.bp,
    }


def rouge_l(texts: Sequence[str], references: Sequence[str], *, strip_accents: bool) -> float:
    """Return the mean ROUGE-L of texts with one reference each, from 0 to 100.

    That of a text is F1 of precision and recall of the longest common subsequence of words
    (Lin 2004). Words are those of BERT's tokenizer, lower-cased, without punctuation. For texts in
    ASCII they are the words of rouge-score.

    Args:
      texts: generated texts.
      references: as many reference texts.
      strip_accents: compares words without accents.
    """
    scores = [
        _rouge_l(*(_words(text, strip_accents) for text in pair))
        for pair in zip(texts, references, strict=True)
    ]
    return 100 * sum(scores) / len(scores)


def _rouge_l(words: Sequence[str], reference: Sequence[str]) -> float:
    """Return F1 = 2 L / (m + n) of L common words of m and n; 0 without words."""
    common = longest_common_subsequence(words, reference)
    return 2 * common / (len(words) + len(reference)) if common else 0.0


def _words(text: str, strip_accents: bool) -> list[str]:
    words = basic_tokenize(text, cased=False, strip_accents=strip_accents)
    return [word for word in words if any(map(str.isalnum, word))]


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return its length, in a step of integer arithmetic for each word of `second` (Hyyrö 2004)."""
    positions: dict[str, int] = {}  # bit i: the word is first[i]
    for index, word in enumerate(first):
        positions[word] = positions.get(word, 0) | 1 << index
    everywhere = (1 << len(first)) - 1
    unmatched = everywhere
    for word in second:
        matches = unmatched & positions.get(word, 0)
        unmatched = ((unmatched + matches) | (unmatched - matches)) & everywhere
    return len(first) - unmatched.bit_count()
