"""What a vocabulary loses of a text is measured, and told where it is much."""

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


def test_what_every_piece_is_known_of_loses_nothing() -> None:
    assert measure_coverage_loss(tokenizer("ab"), ["ab ba", "a b"]) == CoverageLoss(0, 0)
    assert (
        measure_coverage_loss(tokenizer("ab"), [])
        == measure_coverage_loss(tokenizer("ab"), [""])
        == CoverageLoss(0, 0)
    )


def test_unknown_characters_count_however_few_words_they_are() -> None:
    """A line without spaces is one unknown piece."""
    assert measure_coverage_loss(tokenizer("ab"), ["a b " + "x" * 8]).unknown == 0.8
    assert measure_coverage_loss(tokenizer("ab"), ["中文 ab"]).unknown == 0.5


def test_marks_count_that_are_stripped_whether_composed_or_not() -> None:
    for text in ("é e e", "e\u0301 e e"):
        assert measure_coverage_loss(tokenizer("e"), [text]).stripped_fraction == 0.25
        assert (
            measure_coverage_loss(tokenizer("eé", strip_accents=False), [text]).stripped_fraction
            == 0
        )
    assert measure_coverage_loss(tokenizer("E", cased=True), ["é"]).stripped_fraction == 0


def test_of_many_texts_some_are_enough() -> None:
    texts = ["a b", "x"] * 5000  # as many of either
    assert measure_coverage_loss(tokenizer("ab"), texts[1::2]).unknown == 1
    assert measure_coverage_loss(
        tokenizer("ab"), texts[::2] + texts[1::2]
    ).unknown == pytest.approx(1 / 3)


# Of real text in XQuAD: the languages of which each published vocabulary loses a part.
LOST = {
    "bert-base-uncased": {"ar", "el", "hi", "ro", "th", "tr", "vi", "zh"},
    "bert-base-cased": {"ar", "hi", "th", "vi", "zh"},
    "bert-base-multilingual-cased": set(),
}
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")


@pytest.fixture(scope="module")
def passages(data_dir) -> dict[str, list[str]]:
    found = {}
    for language in LANGUAGES:
        data = json.loads((data_dir / "xquad" / f"xquad.{language}.json").read_text())["data"]
        found[language] = [each["paragraphs"][0]["context"] for each in data[:20]]
    return found


@pytest.mark.parametrize("name", LOST)
def test_one_sentence_names_the_languages_of_which_a_vocabulary_loses_a_part(
    name: str, passages, data_dir, caplog
) -> None:
    vocabulary = load_tokenizer(data_dir / "vocab" / f"{name}-vocab.txt")
    with caplog.at_level(logging.WARNING, "data_pipelines"):
        warn_of_coverage_loss(vocabulary, passages)
    told = {each for each in LANGUAGES for line in caplog.messages if f" {each} (" in line}
    assert told == LOST[name] and len(caplog.messages) == bool(told)
    if name == "bert-base-uncased":
        assert "hi (20% of its letters are marks, which are stripped, 1" in caplog.text
        assert "; zh (5" in caplog.text and "take one that knows such text" in caplog.text


def test_text_that_is_whole_is_not_spoken_of(caplog) -> None:
    warn_of_coverage_loss(toy_tasks.TOKENIZER, {"dev": ["ba do ki", "lu me"], "none": []})
    assert not caplog.messages
