"""Tests of WordPiece."""

import hashlib
import json
import pathlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from toy_vocabulary import CASED_TOKENS, LETTERS, TOKENS, TRICKY

from data_pipelines.vocabulary import wordpiece
from data_pipelines.vocabulary.basic_tokenization import basic_tokenize
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer


def uncased() -> WordPieceTokenizer:
    return WordPieceTokenizer(TOKENS, cased=False)


def tokens_of(text: str, tokenizer: Tokenizer | None = None) -> list[str]:
    tokenizer = tokenizer or uncased()
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


def longest_matches(word: str, tokens: tuple[str, ...]) -> list[str]:
    """Return the greedy longest matches, by definition."""
    if len(word) > 200:
        return ["[UNK]"]
    matches: list[str] = []
    while word:
        prefix = "##" if matches else ""
        lengths = [n for n in range(1, len(word) + 1) if prefix + word[:n] in tokens]
        if not lengths:
            return ["[UNK]"]
        matches.append(prefix + word[: max(lengths)])
        word = word[max(lengths) :]
    return matches


# ---------------------------------------------------------------- released vocabularies


def digest(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12]


RELEASED = ("uncased", "cased", "multilingual-cased")


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_every_character_has_the_published_ids(
    tokenization_golden: dict, data_dir: pathlib.Path, name: str
) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / f"bert-base-{name}-vocab.txt")
    unassigned = tokenization_golden["unassigned"]
    for block, expected in tokenization_golden["characters"][name].items():
        start = int(block, 16)
        chars = [chr(c) for c in range(start, start + 4096) if c not in unassigned]
        ids = [tokenizer.encode(text) for char in chars for text in (char, f"a{char}b")]
        assert digest(ids) == expected, f"a character from U+{start:04X} on"


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_real_text_in_twelve_languages_has_the_published_ids(
    tokenization_golden: dict, data_dir: pathlib.Path, name: str
) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / f"bert-base-{name}-vocab.txt")
    for file, expected in tokenization_golden["texts"][name].items():
        articles = json.loads((data_dir / "xquad" / file).read_text("utf-8"))["data"]
        texts = [paragraph["context"] for a in articles for paragraph in a["paragraphs"]]
        assert digest([tokenizer.encode(text) for text in texts]) == expected, file


# ---------------------------------------------------------------- WordPiece


TEXTS = st.one_of(st.text(), st.text(TRICKY), st.lists(st.sampled_from(TOKENS)).map(" ".join))


@pytest.mark.seconds
@given(TEXTS)
def test_wordpiece_encode_returns_the_longest_matches(text: str) -> None:
    words = basic_tokenize(text, cased=False, strip_accents=True)
    assert tokens_of(text) == [token for word in words for token in longest_matches(word, TOKENS)]


@pytest.mark.seconds
@given(st.lists(TEXTS.map(lambda text: text.encode(errors="replace").decode())))
def test_wordpiece_encode_words_equals_encode(words: list[str]) -> None:
    tokenizer = uncased()
    ids, counts = tokenizer.encode_words(words)
    expected = [tokenizer.encode(word) for word in words]
    assert ids.tolist() == [i for word_ids in expected for i in word_ids]
    assert counts.tolist() == [len(word_ids) for word_ids in expected]


def test_wordpiece_encode_words_of_several_calls_equals_encode() -> None:
    tokenizer = uncased()
    words = ["ba . " * 3000, "", ".", "a" * 10**5, ". . ba" * 2000, "a" * 201]
    ids, counts = tokenizer.encode_words(words)
    expected = [tokenizer.encode(word) for word in words]
    assert ids.tolist() == [i for word_ids in expected for i in word_ids]
    assert counts.tolist() == [len(word_ids) for word_ids in expected]


@given(TEXTS, TEXTS)
def test_wordpiece_encodes_texts_independently_across_a_space(a: str, b: str) -> None:
    tokenizer = uncased()
    assert tokenizer.encode(f"{a} {b}") == tokenizer.encode(a) + tokenizer.encode(b)


@given(TEXTS)
def test_wordpiece_encode_inverts_decode(text: str) -> None:
    tokenizer = uncased()
    ids = tokenizer.encode(text)
    assume(tokenizer.unk_id not in ids)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_wordpiece_example_of_google_research_bert() -> None:
    assert tokens_of("UNwant\u00e9d,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]


def test_wordpiece_word_with_an_unknown_character_is_unknown() -> None:
    assert tokens_of("unaffable unaff\u2603able able") == [
        *("un", "##aff", "##able", "[UNK]"),
        *("a", "##b", "##l", "##e"),
    ]


@pytest.mark.parametrize("char", ["a", "ß"])
@pytest.mark.parametrize("length", [100, 101, 200])
def test_wordpiece_word_may_have_200_characters(char: str, length: int) -> None:
    assert tokens_of(char * length) == [char, *["##" + char] * (length - 1)]


@pytest.mark.parametrize("char", ["a", "ß"])
def test_wordpiece_longer_word_is_unknown(char: str) -> None:
    assert tokens_of(f"b {char * 201} c") == ["b", "[UNK]", "c"]


@pytest.mark.parametrize("special", [*SPECIAL_TOKENS, "[unused0]"])
def test_wordpiece_finds_no_special_token_in_text(special: str) -> None:
    assert special not in tokens_of(f"a {special} {special.lower()}b")
    cased = WordPieceTokenizer(CASED_TOKENS, cased=True)
    assert special not in tokens_of(f"a {special} {special.lower()}b", cased)


def test_wordpiece_lone_surrogate_is_unknown() -> None:
    assert tokens_of("a \ud800 b\udfffb") == ["a", "[UNK]", "[UNK]"]


@pytest.mark.seconds
def test_wordpiece_cache_is_bounded_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"{a}{b}, Un{a}.{b}日{'x' * 70}" for a in LETTERS for b in LETTERS)
    expected = uncased().encode(text)
    monkeypatch.setattr(wordpiece._WordCache, "MAX_ENTRIES", 10)
    tokenizer = uncased()
    assert tokenizer.encode(text) == tokenizer.encode(text) == expected
    for cache in (tokenizer._ids_of_raw, tokenizer._ids_of_word):
        assert 0 < len(cache) <= 10
        assert max(map(len, cache)) <= cache.MAX_CHARS


def test_wordpiece_attributes() -> None:
    tokenizer = uncased()
    assert (tokenizer.kind, tokenizer.cased) == ("wordpiece", False)
    ids = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id]
    assert [*ids, tokenizer.mask_id] == [0, 1, 2, 3, 4]
    for i, token in enumerate(TOKENS):
        assert tokenizer.is_continuation[i] == token.startswith("##")
        assert (i in tokenizer.text_token_ids) == (token not in (*SPECIAL_TOKENS, "[unused0]"))
    assert tokenizer.is_continuation.dtype == bool
    assert tokenizer.text_token_ids.dtype == "int32"


def test_wordpiece_decode_is_readable() -> None:
    tokenizer = uncased()
    ids = [tokenizer.cls_id, *tokenizer.encode("Unaffable, unwanted!"), tokenizer.mask_id]
    assert tokenizer.decode(ids) == "[CLS] unaffable , unwanted ! [MASK]"
    assert tokenizer.decode([]) == ""
