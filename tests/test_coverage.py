"""Tests of vocabulary coverage."""

import json
import logging

import pytest
import toy_tasks

from data_pipelines.vocabulary.coverage import (
    CoverageLoss,
    measure_coverage_loss,
    warn_of_coverage_loss,
)
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(letters: str, cased: bool = False, **switches: bool) -> WordPieceTokenizer:
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    return WordPieceTokenizer(tokens, cased=cased, **switches)


def test_measure_coverage_loss_of_known_text_is_zero() -> None:
    assert measure_coverage_loss(tokenizer("ab"), ["ab ba", "a b"]) == CoverageLoss(0, 0)
    assert (
        measure_coverage_loss(tokenizer("ab"), [])
        == measure_coverage_loss(tokenizer("ab"), [""])
        == CoverageLoss(0, 0)
    )


def test_measure_coverage_loss_counts_unknown_characters() -> None:
    """A line without spaces is one unknown token."""
    assert measure_coverage_loss(tokenizer("ab"), ["a b " + "x" * 8]).unk_fraction == 0.8
    assert measure_coverage_loss(tokenizer("ab"), ["中文 ab"]).unk_fraction == 0.5


def test_measure_coverage_loss_counts_stripped_marks() -> None:
    for text in ("é e e", "e\u0301 e e"):
        assert measure_coverage_loss(tokenizer("e"), [text]).stripped_fraction == 0.25
        assert (
            measure_coverage_loss(tokenizer("eé", strip_accents=False), [text]).stripped_fraction
            == 0
        )
    assert measure_coverage_loss(tokenizer("E", cased=True), ["é"]).stripped_fraction == 0


def test_measure_coverage_loss_samples_texts() -> None:
    texts = ["a b", "x"] * 5000
    assert measure_coverage_loss(tokenizer("ab"), texts[1::2]).unk_fraction == 1
    assert measure_coverage_loss(
        tokenizer("ab"), texts[::2] + texts[1::2]
    ).unk_fraction == pytest.approx(1 / 3)


# Languages of XQuAD of which each published vocabulary loses a part.
LOST = {
    "bert-base-uncased": {"ar", "el", "hi", "ro", "th", "tr", "vi", "zh"},
    "bert-base-cased": {"ar", "hi", "th", "vi", "zh"},
    "bert-base-multilingual-cased": set(),
}
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")


@pytest.fixture(scope="module")
def passages(data_dir) -> dict[str, list[str]]:
    texts = {}
    for language in LANGUAGES:
        data = json.loads((data_dir / "xquad" / f"xquad.{language}.json").read_text())["data"]
        texts[language] = [article["paragraphs"][0]["context"] for article in data[:20]]
    return texts


@pytest.mark.seconds
@pytest.mark.parametrize("name", LOST)
def test_warn_of_coverage_loss_names_the_languages(name: str, passages, data_dir, caplog) -> None:
    vocabulary = load_tokenizer(data_dir / "vocab" / f"{name}-vocab.txt")
    with caplog.at_level(logging.WARNING, "data_pipelines"):
        warn_of_coverage_loss(vocabulary, passages)
    named = {lang for lang in LANGUAGES for line in caplog.messages if f" {lang} (" in line}
    assert named == LOST[name] and len(caplog.messages) == bool(named)
    if name == "bert-base-uncased":
        assert "hi (20% of the letters stripped as accents, 1" in caplog.text
        assert "; zh (5" in caplog.text and "Use a vocabulary of these languages" in caplog.text


def test_warn_of_coverage_loss_ignores_covered_text(caplog) -> None:
    warn_of_coverage_loss(toy_tasks.TOKENIZER, {"dev": ["ba do ki", "lu me"], "none": []})
    assert not caplog.messages
