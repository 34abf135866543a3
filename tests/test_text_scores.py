"""BLEU and ROUGE-L of generated texts."""

import importlib.util
import json
import random
from collections.abc import Sequence

import pytest
from goldens import make_rouge_scores
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.generation.text_scores import (
    bleu,
    check_bleu,
    longest_common_subsequence,
    rouge_l,
)
from data_pipelines.errors import InputError

needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None, reason="needs pip install 'bertjax[generation]'"
)
SIGNATURE = "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:"
TEXT = "where was the first university of the country founded ?"
REFERENCE = "Where was the country's first university founded?"
words = st.lists(st.sampled_from("abc"), max_size=12)


def longest_by_table(first: Sequence[str], second: Sequence[str]) -> int:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


@given(words, words)
def test_longest_common_subsequence_is_that_of_the_table(first, second) -> None:
    expected = longest_by_table(first, second)
    assert longest_common_subsequence(first, second) == expected
    assert longest_common_subsequence(second, first) == expected


def test_longest_common_subsequence_of_more_words_than_bits_of_an_integer() -> None:
    draw = random.Random(0)
    first, second = (draw.choices("abcdefgh", k=300) for _ in range(2))
    assert longest_common_subsequence(first, second) == longest_by_table(first, second)


def test_rouge_l_is_that_of_rouge_score() -> None:
    expected = json.loads(make_rouge_scores.PATH.read_text())
    for case, score in enumerate(expected):
        text, reference = make_rouge_scores.draw_pair(case)
        for strip_accents in (False, True):
            found = rouge_l([text], [reference], strip_accents=strip_accents)
            assert found == pytest.approx(100 * score, abs=1e-6), (text, reference)
    assert 20 < 100 * sum(expected) / len(expected) < 80


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("", "a b", 0),
        ("a", "", 0),
        ("", "", 0),
        ("?", "?", 0),  # no words
        ("a", "A.", 100),
        ("北 京 大 学", "北京大学", 100),  # WordPiece decodes with spaces
        ("北京", "北京大学", 100 * 4 / 6),
        ("서울 대학교", "서울대학교", 0),
        ("naïve café", "naïve café", 100),
    ],
)
def test_rouge_l_of_edge_cases(text: str, reference: str, score: float) -> None:
    assert rouge_l([text], [reference], strip_accents=False) == pytest.approx(score)


def test_rouge_l_strips_accents_of_both_texts() -> None:
    assert rouge_l(["cafe"], ["Café"], strip_accents=True) == 100
    assert rouge_l(["cafe"], ["Café"], strip_accents=False) == 0
    assert rouge_l(["a", "b"], ["a", "c"], strip_accents=False) == 50  # a mean


@needs_sacrebleu
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_is_that_of_sacrebleu(lowercase: bool) -> None:
    import sacrebleu

    texts = [TEXT, "", "one", "北 京 大 学", "naïve café au lait", REFERENCE]
    references = [REFERENCE, "empty", "one", "北京大学", "Naïve café au lait !", REFERENCE]
    result = bleu(texts, references, lowercase=lowercase)
    expected = sacrebleu.corpus_bleu(texts, [references], lowercase=lowercase)
    assert result["score"] == expected.score
    assert (result["precisions"], result["brevity_penalty"]) == (expected.precisions, expected.bp)
    assert (
        result["signature"]
        == SIGNATURE.replace("lc", "lc" if lowercase else "mixed") + sacrebleu.__version__
    )
    assert 0 < result["score"] < 100
    json.dumps(result, allow_nan=False)


@needs_sacrebleu
@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("where is the river ?", "Where is the river?", 100),  # spaces before punctuation
        ("", "where is the river", 0),
        ("one", "one", 0),  # without four words there is no BLEU-4
        ("a b c d", "w x y z", 0),
    ],
)
def test_bleu_of_edge_cases(text: str, reference: str, score: float) -> None:
    assert bleu([text], [reference], lowercase=True)["score"] == pytest.approx(score)


def test_check_bleu_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"^data\.num_generated=5: needs sacrebleu, .* install 'bertjax\[generation\]'\.$"
    with pytest.raises(InputError, match=message):
        check_bleu("data.num_generated=5")
