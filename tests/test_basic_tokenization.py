"""Tests that basic tokenization equals BERT's published algorithm."""

import unicodedata
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_vocabulary import TRICKY

from data_pipelines.vocabulary.basic_tokenization import basic_tokenize, split_for_caching


def words_of(text: str, *, cased: bool, strip_accents: bool | None = None) -> list[str]:
    strip = not cased if strip_accents is None else strip_accents
    parts = split_for_caching(text, cased=cased)
    return [
        word for part in parts for word in basic_tokenize(part, cased=cased, strip_accents=strip)
    ]


# ---------------------------------------------------------------- every character


def expected_words(golden: dict, case: str) -> Iterator[tuple[int, str, str]]:
    for first, last, alone, inside in golden["words"][case]:
        for code_point in range(first, last + 1):
            char = chr(code_point)
            yield code_point, alone.replace("□", char), inside.replace("□", char)


def assert_words(golden: dict, case: str, is_tested: Callable[[int], bool]) -> None:
    cased = case == "cased"
    wrong = [
        f"U+{code_point:04X}"
        for code_point, alone, inside in expected_words(golden, case)
        if is_tested(code_point)
        and (
            " ".join(words_of(chr(code_point), cased=cased)) != alone
            or " ".join(words_of(f"a{chr(code_point)}b", cased=cased)) != inside
        )
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_basic_tokenize_of_every_assigned_character(tokenization_golden: dict, case: str) -> None:
    golden = tokenization_golden
    assert_words(golden, case, lambda code_point: code_point not in golden["unassigned"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_basic_tokenize_of_every_unassigned_character(tokenization_golden: dict, case: str) -> None:
    golden = tokenization_golden
    if unicodedata.unidata_version != golden["unicode"]:
        pytest.skip(f"Unicode {unicodedata.unidata_version} has assigned some of them")
    assert_words(golden, case, golden["unassigned"].__contains__)


# ---------------------------------------------------------------- chosen strings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a\0b \ufffdc\ufffd", "ab c", id="NUL and U+FFFD are dropped"),
        pytest.param("a\x01b\x0b\x1cc\x85d\x7f", "abcd", id="control characters are dropped"),
        pytest.param("a\tb\nc\rd", "a b c d", id="tab, newline and return are spaces"),
        pytest.param(
            "a\u200db\u00adc\ufeffd", "abcd", id="joiner, soft hyphen and BOM are dropped"
        ),
        pytest.param("a\u00a0b\u3000c\u202fd", "a b c d", id="every space is a space"),
        pytest.param("a\u2028b\u2029c", "a b c", id="line and paragraph separators"),
        pytest.param("\u0301", "", id="a lone combining mark gives nothing"),
        pytest.param("İI ıi", "ii ıi", id="Turkish dotted and dotless i"),
        pytest.param("Straße ẞ", "straße ß", id="sharp s"),
        pytest.param("ﬁn ﬃ", "ﬁn ﬃ", id="ligatures are not taken apart"),
        pytest.param("👍🏽 👨\u200d👩", "👍🏽 👨👩", id="emoji with skin tone, and joined"),
        pytest.param("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8", id="Hangul becomes jamo"),
        pytest.param("हिन्दी कुछ", "हिनदी कछ", id="Hindi loses the virama and vowel signs"),
        pytest.param("ภาษาไทย", "ภาษาไทย", id="Thai is one word"),
        pytest.param("ΑΣ ΑΣ,ΒΣ (ΑΣ)", "ας ας , βς ( ας )", id="final sigma ends a word"),
        pytest.param("ΑΣ.Β ΑΣ:Β ΑΣ'Β", "ασ . β ασ : β ασ ' β", id="or not, before some signs"),
        pytest.param("ΑΣ\x0bΒ ΑΣ\xadΒ", "ασβ ασβ", id="dropped characters end no word"),
        pytest.param("Σ Σ-Σα σΣ", "σ σ - σα σς", id="sigma before and after a hyphen"),
        pytest.param("日本x語", "日 本 x 語", id="ideographs stand alone"),
        pytest.param("ひらがな カタカナ", "ひらかな カタカナ", id="kana do not, but lose marks"),
        pytest.param("\uf900", "豈", id="compatibility ideographs are decomposed"),
        pytest.param("don't (stop)... $5^2=~`", "don ' t ( stop ) . . . $ 5 ^ 2 = ~ `", id="ASCII"),
        pytest.param("«a»b—c…d¿", "« a » b — c … d ¿", id="punctuation of every script"),
        pytest.param("5€ a+b ©", "5€ a + b ©", id="symbols beyond ASCII are no punctuation"),
        pytest.param("\u037e", ";", id="the Greek question mark is a semicolon"),
        pytest.param("Ünïcödé", "unicode", id="accents are stripped"),
        pytest.param("[MASK]", "[ mask ]", id="a literal [MASK] is not a special token"),
        pytest.param("", "", id="nothing"),
        pytest.param(" \n \t ", "", id="white space"),
    ],
)
def test_basic_tokenize_uncased(text: str, expected: str) -> None:
    assert " ".join(words_of(text, cased=False)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Ünïcödé İI", "Ünïcödé İI", id="case and accents stay"),
        pytest.param("e\u0301", "e\u0301", id="nothing is composed"),
        pytest.param("한국 हिन्दी", "한국 हिन्दी", id="nothing is decomposed"),
        pytest.param("\uf900", "\uf900", id="compatibility ideographs stay"),
        pytest.param("\u0301", "\u0301", id="a lone combining mark is a word"),
        pytest.param(",\u0301", ", \u0301", id="a mark after a sign starts a word"),
        pytest.param("\u037e", "\u037e", id="the Greek question mark stays"),
        pytest.param("a\u200db\u00a0c", "ab c", id="cleaning is the same"),
        pytest.param("[MASK]", "[ MASK ]", id="a literal [MASK] is not a special token"),
    ],
)
def test_basic_tokenize_cased(text: str, expected: str) -> None:
    assert " ".join(words_of(text, cased=True)) == expected


def test_basic_tokenize_strip_accents_is_independent_of_case() -> None:
    assert words_of("Été", cased=False) == ["ete"]
    assert words_of("Été", cased=False, strip_accents=False) == ["été"]
    assert words_of("Été", cased=True, strip_accents=True) == ["Ete"]
    assert words_of("Été", cased=True) == ["Été"]


# ---------------------------------------------------------------- any text


TEXTS = st.one_of(st.text(), st.text(TRICKY))


@pytest.mark.seconds
@settings(max_examples=500)
@given(TEXTS, st.booleans(), st.booleans())
def test_split_for_caching_keeps_the_words(text: str, cased: bool, strip_accents: bool) -> None:
    whole = basic_tokenize(text, cased=cased, strip_accents=strip_accents)
    assert words_of(text, cased=cased, strip_accents=strip_accents) == whole
