"""Tests that the bulk encoder returns the ids of the tokenizer."""

import pathlib

import pytest
from conftest import sample_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.corpus import bulk_encoder
from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.text.sentence_splitting import split_sentences
from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LETTERS = [*"abcdeABCDE019éÉßσςΣſİ語한다й\u0301\u00ad\0\x0b\x1f"]
VOCAB = [*sample_vocabulary()[:5], *LETTERS, *(f"##{c}" for c in LETTERS), "ab", "##abc", *".,'-"]
UNCASED = [token for token in VOCAB if token == token.lower() or token.startswith("[")]

# Difficult text: all kinds of spaces and punctuation, sigmas, marks, dropped characters.
texts = st.lists(
    st.sampled_from(
        [*LETTERS, *" \t\r\u00a0\u3000.,'-:^`", "abc", "a" * 9, "b" * 20, "語" * 6, "Σ."]
    )
).map("".join)


def check(encoder: BulkEncoder, sentences: list[str]) -> None:
    tokens, lengths = encoder(sentences)
    expected = [encoder.tokenizer.encode(sentence) for sentence in sentences]
    assert tokens.tolist() == [token for ids in expected for token in ids]
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.dtype == encoder.dtype


@pytest.mark.seconds
@pytest.mark.parametrize("slots", [1, 8, 4096])
@pytest.mark.parametrize("cased", [True, False])
def test_bulk_encoder_equals_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch, cased: bool, slots: int
) -> None:
    monkeypatch.setattr(bulk_encoder, "_CACHE_SLOTS", slots)
    encoder = BulkEncoder(WordPieceTokenizer(VOCAB if cased else UNCASED, cased=cased))

    @settings(max_examples=150, deadline=None)
    @given(st.lists(texts | st.text(st.characters(codec="utf-8", exclude_characters="\n"))))
    def check_sentences(sentences: list[str]) -> None:
        check(encoder, sentences)  # the cache persists between examples

    check_sentences()


@pytest.mark.seconds
def test_bulk_encoder_encodes_every_character() -> None:
    encoder = BulkEncoder(WordPieceTokenizer(UNCASED, cased=False))
    characters = [chr(c) for c in range(0x3100) if chr(c) not in "\nΣ"]
    check(encoder, characters)
    check(encoder, [f"a{c}b" for c in characters])


def test_bulk_encoder_passes_whole_sentences_to_other_tokenizers() -> None:
    tokenizer = WordPieceTokenizer(UNCASED, cased=False)
    encoded = []

    class Other:
        kind, cased, tokens = "sentencepiece", False, tokenizer.tokens

        def encode(self, text: str) -> list[int]:
            encoded.append(text)
            return [7] * len(text)

    tokens, lengths = BulkEncoder(Other())(["a b", "", "c"])  # type: ignore[arg-type]
    assert encoded == ["a b", "", "c"]
    assert tokens.tolist() == [7] * 4
    assert lengths.tolist() == [3, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wiki_en", "wiki_ko", "wiki_zh"])
@pytest.mark.parametrize("vocab", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_bulk_encoder_encodes_real_text(data_dir: pathlib.Path, name: str, vocab: str) -> None:
    encoder = BulkEncoder(load_tokenizer(data_dir / "vocab" / f"{vocab}-vocab.txt"))
    documents = list(read_documents([str(data_dir / "text" / f"{name}.txt.xz")]))[:1000]
    for document in documents:
        check(encoder, [sentence for line in document for sentence in split_sentences(line)])


def test_bulk_encoder_accepts_lone_surrogates() -> None:
    tokenizer = WordPieceTokenizer(UNCASED, cased=False)
    check(BulkEncoder(tokenizer), ["a \ud800 b", "a\udfffb c"])
