"""Scores of predictions on CMRC 2018 (Cui et al. 2019), with the arithmetic of its official script.

Chinese is compared by character. SQuAD compares words between spaces, and its F1 on Chinese would
hardly differ from exact match.
"""

import difflib
import re
from collections.abc import Mapping

from bertjax.tasks.question_answering.metrics import mean_scores
from data_pipelines.finetuning.question_answering.squad import QuestionAnsweringDataset

_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # noqa: RUF001 (Chinese)
_SEGMENTS = re.compile("([一-龥])|([^一-龥]+)")
# Penn Treebank's word rules (MacIntyre 1995) in the order of NLTK 3.9, for lower-case text without
# _PUNCTUATION. The official script splits words with NLTK; NLTK's other rules cannot apply here.
_WORD_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[«‘„]", r" \g<0> "),  # noqa: RUF001 (quotation marks)
        (r'^"', r" `` "),
        (r"([ (\[{<])(\"|'{2})", r"\1 `` "),
        (r"'(?!re|ve|ll|m|t|s|d|n)(\w)\b", r"' \1"),
        (r"([^.])\.([\])}>\"'» ]*)\s*$", r"\1 . \2 "),
        (r",(\D)", r" , \1"),
        (r",$", r" , "),
        (r"\.{2,}|[;@#$%&?!]", r" \g<0> "),
        (r"([^'])' ", r"\1 ' "),
        (r"[\]\[(){}<>]", r" \g<0> "),
        (r"^|$", r" "),
        (r"»|''", r" \g<0> "),
        (r'"', r" '' "),
        (r"\s+", r" "),
        (r"([^' ])('[smd]?) ", r"\1 \2 "),
        (r"([^' ])('ll|'re|'ve|n't) ", r"\1 \2 "),
        (r"\b(can)(not)\b", r" \1 \2 "),
        (r"\b(d)('ye)\b", r" \1 \2 "),
        (r"\b(gim|lem)(me)\b", r" \1 \2 "),
        (r"\b(gon)(na)\b", r" \1 \2 "),
        (r"\b(got)(ta)\b", r" \1 \2 "),
        (r"\b(more)('n)\b", r" \1 \2 "),
        (r"\b(wan)(na)(?=\s)", r" \1 \2 "),
        (r" ('t)(is)\b", r" \1 \2 "),
        (r" ('t)(was)\b", r" \1 \2 "),
    )
]


def normalize(text: str) -> str:
    """Return the text in lower case, stripped, without the punctuation that the script removes."""
    return text.lower().strip().translate(_PUNCTUATION)


def split_segments(text: str) -> tuple[str, ...]:
    """Return each Chinese character, and the words of the text between them.

    The script first splits that text into sentences, with a model that must be downloaded. Skipping
    that step changes no gold answer of the dev and trial sets. It matters only for a full stop
    between two words of non-Chinese text.
    """
    parts: list[str] = []
    for character, other in _SEGMENTS.findall(normalize(text)):
        parts.extend([character] if character else split_words(other))
    return tuple(parts)


def split_words(text: str) -> list[str]:
    """Return the words and marks of normalized text, as NLTK's word tokenizer does."""
    for pattern, replacement in _WORD_RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def exact(prediction: str, gold: str) -> float:
    """Return 1 if both normalized texts are equal, else 0."""
    return float(normalize(prediction) == normalize(gold))


def f1(prediction: str, gold: str) -> float:
    """Return F1 over the longest run of segments that prediction and gold share."""
    predicted, expected = split_segments(prediction), split_segments(gold)
    matcher = difflib.SequenceMatcher(None, predicted, expected, autojunk=False)
    common = matcher.find_longest_match().size
    if common == 0:
        return 0.0
    precision, recall = 1.0 * common / len(predicted), 1.0 * common / len(expected)
    return (2 * precision * recall) / (precision + recall)


def score(data: QuestionAnsweringDataset, predictions: Mapping[str, str]) -> dict[str, float]:
    """Return the official scores in percent: those of `mean_scores`, and their mean `average`."""
    scores = mean_scores(data, predictions, exact, f1)
    return scores | {"average": (scores["exact"] + scores["f1"]) * 0.5}
