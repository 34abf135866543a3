"""Tests of SentencePiece models as tokenizers."""

import io
import pathlib
import pickle
import pydoc_data.topics

import pytest
import sentencepiece as sentencepiece_library
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.vocabulary.counting import count_words, sentencepiece_splitters
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import sentencepiece_from_counts


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sentencepiece(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    lines = pydoc_data.topics.topics["specialnames"].split("\n")
    counts = count_words(lines, *sentencepiece_splitters())
    model = sentencepiece_from_counts(counts, 300, kind=request.param, cased=True)
    return SentencePieceTokenizer(model)


def test_sentencepiece_has_the_special_tokens(sentencepiece: SentencePieceTokenizer) -> None:
    assert (sentencepiece.kind, sentencepiece.cased) == ("sentencepiece", True)
    assert sentencepiece.tokens[:5] == list(SPECIAL_TOKENS)
    assert sentencepiece.text_token_ids.tolist() == list(range(5, 300))
    for i in sentencepiece.text_token_ids:
        assert sentencepiece.is_continuation[i] == (not sentencepiece.tokens[i].startswith("▁"))
    assert not sentencepiece.is_continuation[:5].any()


def test_sentencepiece_encodes_and_decodes_text(sentencepiece: SentencePieceTokenizer) -> None:
    text = "A class definition is an executable statement"
    ids = [sentencepiece.cls_id, *sentencepiece.encode(text), sentencepiece.mask_id]
    assert sentencepiece.decode(ids) == f"[CLS] {text} [MASK]"
    assert sentencepiece.encode("") == []
    assert sentencepiece.unk_id in sentencepiece.encode("☃")


def test_sentencepiece_finds_no_special_token_in_text(
    sentencepiece: SentencePieceTokenizer,
) -> None:
    others = {sentencepiece.pad_id, sentencepiece.cls_id, sentencepiece.sep_id}
    for special in SPECIAL_TOKENS:
        ids = sentencepiece.encode(f"a {special} {special}b")
        assert not {*others, sentencepiece.mask_id} & set(ids)


@given(a=st.text(), b=st.text())
def test_sentencepiece_encodes_texts_independently_across_a_space(
    sentencepiece: SentencePieceTokenizer, a: str, b: str
) -> None:
    assert sentencepiece.encode(f"{a} {b}") == sentencepiece.encode(a) + sentencepiece.encode(b)


def test_sentencepiece_accepts_lone_surrogates(sentencepiece: SentencePieceTokenizer) -> None:
    assert sentencepiece.encode("a\ud800b") == sentencepiece.encode("a?b")


def test_save_and_load_restore_a_sentencepiece_model(
    sentencepiece: SentencePieceTokenizer, tmp_path: pathlib.Path
) -> None:
    sentencepiece.save(tmp_path)
    copies = [
        load_tokenizer(tmp_path),
        load_tokenizer(tmp_path / "spm.model", cased=True),
        pickle.loads(pickle.dumps(sentencepiece)),
    ]
    for copy in copies:
        assert copy.fingerprint() == sentencepiece.fingerprint()
        assert copy.encode("class C(B):") == sentencepiece.encode("class C(B):")


def test_load_tokenizer_rejects_options_that_contradict_sentencepiece(
    sentencepiece: SentencePieceTokenizer, tmp_path: pathlib.Path
) -> None:
    sentencepiece.save(tmp_path)
    with pytest.raises(InputError, match=r"spm\.model: cased=False, but the model keeps case"):
        load_tokenizer(tmp_path, cased=False)


def test_load_tokenizer_rejects_a_damaged_model(tmp_path: pathlib.Path) -> None:
    (tmp_path / "broken.model").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"broken\.model: not a SentencePiece model"):
        load_tokenizer(tmp_path / "broken.model")


def test_sentencepiece_rejects_a_model_with_special_tokens_in_text() -> None:
    model = io.BytesIO()
    sentencepiece_library.SentencePieceTrainer.train(
        sentence_iterator=iter(pydoc_data.topics.topics["specialnames"].split("\n")),
        model_writer=model,
        vocab_size=300,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="[PAD]",
        unk_piece="[UNK]",
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    with pytest.raises(InputError, match=r"finds the special token \[CLS\] in raw text"):
        SentencePieceTokenizer(model.getvalue())
