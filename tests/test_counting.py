"""WordExamples are counted in bounded memory, wherever they stand, by any number of workers."""

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


def test_words_are_counted_over_all_lines() -> None:
    lines = ["a-b c", "c a-b", "", "d"]
    assert count_words(lines, str.split, words_of) == {"a": 2, "b": 2, "c": 2, "d": 1}


def test_beyond_the_bound_frequent_words_keep_their_counts(monkeypatch) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 300)

    def lines() -> Iterator[str]:
        for i in range(1000):
            yield f"often{i % 3} rare{i} sometimes" if i % 10 == 0 else f"often{i % 3} rare{i}"

    counts = count_words(lines(), str.split, words_of, max_words=50)
    assert len(counts) == 25
    assert counts["often0"] + counts["often1"] + counts["often2"] == 1000
    assert counts["sometimes"] == 100


def test_of_words_that_come_once_those_of_the_end_are_left_as_those_of_the_start(
    monkeypatch,
) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 2000)
    lines = [f"word{i:06}" for i in range(100_000)]
    counts = count_words(lines, str.split, words_of, max_words=20_000)
    places = np.array([int(word.removeprefix("word")) for word in counts])
    assert len(places) == 10_000
    assert np.count_nonzero(places >= 50_000) == pytest.approx(len(places) / 2, rel=0.15)


@pytest.mark.parametrize("cuts", [wordpiece_splitters(cased=False), sentencepiece_splitters()])
def test_any_number_of_workers_counts_the_same(cuts, monkeypatch) -> None:
    monkeypatch.setattr(counting, "_BATCH_CHARS", 10_000)
    lines = sample_text(seed=3, documents=200).split("\n")
    alone = count_words(lines, *cuts, max_words=150)
    assert count_words(lines, *cuts, max_words=150, workers=3) == alone


def test_a_text_without_words_is_refused() -> None:
    for lines in ([], [""], [" \n", "\0\u200d"]):
        with pytest.raises(InputError, match="holds no word"):
            count_words(lines, *wordpiece_splitters(cased=False))


def test_what_no_spaces_divide_is_divided_by_punctuation() -> None:
    _, parts = sentencepiece_splitters()
    assert parts("今天下雨。明天呢？「好」。") == ["今天下雨", "。明天呢", "？", "「好", "」", "。"]
    assert parts("don't") == ["don't"]


@given(st.text(min_size=1))
def test_no_character_of_a_part_is_lost(text: str) -> None:
    _, parts = sentencepiece_splitters()
    assert "".join(parts(text)) == text


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_a_sample_is_spread_evenly(share: float) -> None:
    chosen = [
        int(document[0]) for document in sample_documents([[str(i)] for i in range(10_000)], share)
    ]
    for start in range(0, 10_000, 2000):
        found = sum(start <= number < start + 2000 for number in chosen)
        assert found == pytest.approx(2000 * share, abs=3)
    assert chosen == [int(d[0]) for d in sample_documents([[str(i)] for i in range(10_000)], share)]


def test_smoothing_lifts_small_corpora_as_the_formula_says() -> None:
    corpora = [Counter({"the": 900_000, "of": 100_000}), Counter({"die": 9_000, "the": 1_000})]
    assert reweight_counts(corpora, 1.0) == Counter({"the": 901_000, "of": 100_000, "die": 9_000})
    counts = reweight_counts(corpora, 0.7)
    lifted = (1_000_000 / 10_000) ** 0.3
    assert counts["die"] == round(9_000 * lifted)
    shares = np.array([1_000_000, 10_000]) ** 0.7
    german = counts["die"] / 0.9 / counts.total()
    assert german == pytest.approx(shares[1] / shares.sum(), rel=1e-3)
    with pytest.raises(InputError, match=r"smoothing=2 is no exponent"):
        reweight_counts(corpora, 2)
