"""Words of running text: those that a tokenizer of BERT splits, numbers and abbreviations whole."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st
from toy_vocabulary import CASED_TOKENS, TOKENS

from data_pipelines.finetuning.token_classification.running_text import word_offsets
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZERS = [
    WordPieceTokenizer(TOKENS, cased=False),
    WordPieceTokenizer(CASED_TOKENS, cased=True),
]


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada's \u201cnote_1\u201d!", "Ada|'|s|\u201c|note|_|1|\u201d|!"),
        ("l'Allemagne et d'Angela", "l|'|Allemagne|et|d|'|Angela"),
        ("the-London firm", "the|-|London|firm"),
        ("Merkel-Macron, John/Smith", "Merkel|-|Macron|,|John|/|Smith"),
        ("in Oslo.Then www.a.no", "in|Oslo|.|Then|www|.|a|.|no"),
        ("caf\u0065\u0301. \u0065\u0301", "caf\u0065\u0301|.|\u0065\u0301"),  # decomposed
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940\u0964",
            "\u0939\u093f\u0928\u094d\u0926\u0940|\u0964",
        ),
        ("\u0e17\u0e35\u0e48", "\u0e17\u0e35\u0e48"),
        ("\u6771\u4eac, ok", "\u6771|\u4eac|,|ok"),
        ("(\u2764\ufe0f) -\u0301x", "(|\u2764\ufe0f|)|-\u0301|x"),
        ("-", "-"),
        ("", ""),
    ],
)
def test_word_offsets_split_at_punctuation_in_any_script(text: str, words: str) -> None:
    assert "|".join(words_of(text)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3.5%, 1,000.50 at 12:30.", "3.5|%|,|1,000.50|at|12:30|."),
        ("U.S. and U.S.-led, e.g. J.R.R. Day", "U.S|.|and|U.S|.|-|led|,|e.g|.|J.R.R|.|Day"),
        ("5.Oslo, 1. 5, U. S", "5|.|Oslo|,|1|.|5|,|U|.|S"),
    ],
)
def test_word_offsets_keep_numbers_and_abbreviations_whole(text: str, words: str) -> None:
    assert words_of(text) == words.split("|")


@pytest.mark.parametrize("mark", ["\ufeff", "\u200e", "\u200b", "\x0b"])
def test_word_offsets_leave_out_format_and_control_characters(mark: str) -> None:
    assert words_of(f"{mark}John {mark} Smith{mark}") == ["John", "Smith"]
    assert words_of(f" {mark} ") == []


def test_word_offsets_leave_out_marks_without_a_letter() -> None:
    assert words_of("John \u0301 Smith") == ["John", "Smith"]


CHARACTERS = st.sampled_from([*"aBéÉ日,.'-:5 1", *"\u0301\u00ad\u200b\ufeff\x0b\u00a0\ud800"])


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["uncased", "cased"])
@hypothesis.given(text=st.lists(CHARACTERS, max_size=12).map("".join))
def test_words_have_the_tokens_of_the_text(tokenizer: WordPieceTokenizer, text: str) -> None:
    offsets = list(word_offsets(text))
    bounds = [bound for span in offsets for bound in span]
    assert bounds == sorted(bounds) and all(start < end for start, end in offsets)
    if tokenizer.cased:  # which has a token for a mark that follows no letter
        hypothesis.assume("\u0301" not in text)
    ids = [tokenizer.encode(text[start:end]) for start, end in offsets]
    assert all(ids) and [*itertools.chain(*ids)] == tokenizer.encode(text)
