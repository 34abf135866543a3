"""Tests of word counting."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import sample_text
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.vocabulary import counting
from data_pipelines.vocabulary.counting import (
    count_words,
    reweight_counts,
    sample_documents,
    sentencepiece_splitters,
    wordpiece_splitters,
)


def words_of(part: str) -> list[str]:
    return part.split("-")


def test_count_words_counts_all_lines() -> None:
    lines = ["a-b c", "c a-b", "", "d"]
    assert count_words(lines, str.split, words_of) == {"a": 2, "b": 2, "c": 2, "d": 1}


def test_count_words_keeps_frequent_words_beyond_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 300)
    monkeypatch.setattr(counting, "MAX_WORDS", 50)

    def lines() -> Iterator[str]:
        for i in range(1000):
            yield f"often{i % 3} rare{i} sometimes" if i % 10 == 0 else f"often{i % 3} rare{i}"

    counts = count_words(lines(), str.split, words_of)
    assert len(counts) == 25
    assert counts["often0"] + counts["often1"] + counts["often2"] == 1000
    assert counts["sometimes"] == 100


@pytest.mark.seconds
def test_count_words_keeps_a_sample_of_rare_words_from_the_whole_text(monkeypatch) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 2000)
    monkeypatch.setattr(counting, "MAX_WORDS", 20_000)
    lines = [f"word{i:06}" for i in range(100_000)]
    counts = count_words(lines, str.split, words_of)
    numbers = np.array([int(word.removeprefix("word")) for word in counts])
    assert len(numbers) == 10_000
    assert np.count_nonzero(numbers >= 50_000) == pytest.approx(len(numbers) / 2, rel=0.15)


@pytest.mark.seconds
@pytest.mark.parametrize("splitters", [wordpiece_splitters(cased=False), sentencepiece_splitters()])
def test_count_words_does_not_depend_on_workers(splitters, monkeypatch) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 10_000)
    monkeypatch.setattr(counting, "MAX_WORDS", 150)
    lines = sample_text(seed=3, documents=200).split("\n")
    alone = count_words(lines, *splitters)
    assert count_words(lines, *splitters, workers=3) == alone


def test_count_words_rejects_a_text_without_words() -> None:
    for lines in ([], [""], [" \n", "\0\u200d"]):
        with pytest.raises(InputError, match="the text has no words"):
            count_words(lines, *wordpiece_splitters(cased=False))


def test_sentencepiece_splitters_split_at_punctuation() -> None:
    _, split_words = sentencepiece_splitters()
    parts = split_words("今天下雨。明天呢？「好」。")
    assert parts == ["今天下雨", "。明天呢", "？", "「好", "」", "。"]
    assert split_words("don't") == ["don't"]


@given(st.text(min_size=1))
def test_sentencepiece_splitters_keep_all_characters(text: str) -> None:
    _, split_words = sentencepiece_splitters()
    assert "".join(split_words(text)) == text


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
def test_sample_documents_is_evenly_spaced(fraction: float) -> None:
    chosen = [
        int(document[0])
        for document in sample_documents([[str(i)] for i in range(10_000)], fraction)
    ]
    for start in range(0, 10_000, 2000):
        count = sum(start <= number < start + 2000 for number in chosen)
        assert count == pytest.approx(2000 * fraction, abs=3)
    assert chosen == [
        int(d[0]) for d in sample_documents([[str(i)] for i in range(10_000)], fraction)
    ]


def test_reweight_counts_follows_the_formula() -> None:
    corpora = [Counter({"the": 900_000, "of": 100_000}), Counter({"die": 9_000, "the": 1_000})]
    assert reweight_counts(corpora, 1.0) == Counter({"the": 901_000, "of": 100_000, "die": 9_000})
    counts = reweight_counts(corpora, 0.7)
    factor = (1_000_000 / 10_000) ** 0.3
    assert counts["die"] == round(9_000 * factor)
    powers = np.array([1_000_000, 10_000]) ** 0.7
    german = counts["die"] / 0.9 / counts.total()
    assert german == pytest.approx(powers[1] / powers.sum(), rel=1e-3)
    with pytest.raises(InputError, match=r"sampling_alpha=2: not in \[0, 1\]"):
        reweight_counts(corpora, 2)
