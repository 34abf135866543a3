"""Tests of reading and writing `tokenizer.json`."""

import json
import pathlib
import pydoc_data.topics
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import draw_model
from tokenizers import Tokenizer as CompiledTokenizer

from bertjax.formats import huggingface
from bertjax.formats.tokenizer_json import to_tokenizer_json
from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.counting import count_words, sentencepiece_splitters
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import sentencepiece_from_counts
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

GOLDEN = json.loads((pathlib.Path(__file__).parent / "goldens" / "tokenizer_json.json").read_text())
LETTERS = "abcdéüΣσABC'.日本कि"
TOKENS = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "ab", "##ba"]
TEXTS = st.text() | st.text(f"{LETTERS} \t\n▁Ａﬁé", max_size=40)


def publish(name: str, folder: pathlib.Path, **changed: str) -> pathlib.Path:
    for file, content in (GOLDEN["tokenizers"][name]["files"] | changed).items():
        (folder / file).write_text(content)
    return folder


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["uncased", "cased", "accents", "more tokens"])
def test_load_tokenizer_returns_the_ids_of_transformers(name: str, tmp_path) -> None:
    tokenizer = load_tokenizer(publish(name, tmp_path))
    assert [tokenizer.encode(text) for text in GOLDEN["texts"]] == GOLDEN["tokenizers"][name]["ids"]


def test_load_tokenizer_reads_the_longest_word(tmp_path) -> None:
    (tmp_path / "published").mkdir()
    tokenizer = load_tokenizer(publish("cased", tmp_path / "published"))
    assert isinstance(tokenizer, WordPieceTokenizer) and tokenizer.max_input_chars_per_word == 100
    tokenizer.save(tmp_path / "copy")
    copy = load_tokenizer(tmp_path / "copy")
    assert copy.encode("x" * 101) == [copy.unk_id]
    assert copy.fingerprint() == tokenizer.fingerprint()
    # It is the same vocabulary: vocab.txt alone does not state the length.
    default = WordPieceTokenizer(tokenizer.tokens, cased=True)
    assert default.fingerprint() == tokenizer.fingerprint()


def test_load_tokenizer_prefers_vocab_txt_and_reads_options_from_json(tmp_path) -> None:
    publish("accents", tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "é"]))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer.tokens) == 6 and not tokenizer.cased
    assert tokenizer.encode("É") == [5]
    with pytest.raises(InputError, match="the vocabulary is uncased"):  # reads no file beside it
        load_tokenizer(tmp_path / "vocab.txt", cased=True)


def changed(**fields: Any) -> str:
    data = json.loads(GOLDEN["tokenizers"]["cased"]["files"]["tokenizer.json"])
    for name, value in fields.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "FILE is not a tokenizer"),
        ("[]", "FILE is not a tokenizer"),
        (changed(added_tokens=[{"id": "one"}]), "FILE is not a tokenizer"),
        (changed(model={"type": "Unigram"}), "FILE has model='Unigram' instead of 'WordPiece'"),
        (
            changed(model={"continuing_subword_prefix": ""}),
            "FILE has continuing_subword_prefix='' instead of '##'",
        ),
        (changed(pre_tokenizer=None), "FILE has pre_tokenizer=None instead of 'BertPreTokenizer'"),
        (
            changed(normalizer={"type": "Sequence"}),
            "FILE has normalizer='Sequence' instead of 'BertNormalizer'",
        ),
        (changed(model={"vocab": {"a": 0, "b": 2}}), "ids in FILE are not contiguous from 0"),
        (changed(normalizer={"handle_chinese_chars": False}), "tokenize_chinese_chars"),
    ],
)
def test_load_tokenizer_rejects_other_tokenizers(content: str, message: str, tmp_path) -> None:
    publish("cased", tmp_path, **{"tokenizer.json": content, "tokenizer_config.json": "{}"})
    with pytest.raises(InputError, match=rf"FILE: .*{message}".replace("FILE", r"tokenizer\.json")):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"word_tokenizer_type": "mecab"},
            "has word_tokenizer_type='mecab', which is not supported",
        ),
        (
            {"subword_tokenizer_type": "character"},
            "has subword_tokenizer_type='character', which is not supported",
        ),
        ({"added_tokens_decoder": {"5": "a"}}, "added_tokens_decoder.5='a': not an object"),
    ],
)
def test_load_tokenizer_rejects_unsupported_options(fields, message: str, tmp_path) -> None:
    publish("cased", tmp_path, **{"tokenizer_config.json": json.dumps(fields)})
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("max_chars", [100, 200])
@pytest.mark.parametrize("strip_accents", [False, True])
@pytest.mark.parametrize("cased", [False, True])
def test_to_tokenizer_json_writes_a_wordpiece(cased, strip_accents, max_chars, tmp_path) -> None:
    tokenizer = WordPieceTokenizer(
        TOKENS, cased=cased, strip_accents=strip_accents, max_input_chars_per_word=max_chars
    )
    (tmp_path / "tokenizer.json").write_text(to_tokenizer_json(tokenizer))
    assert load_tokenizer(tmp_path).fingerprint() == tokenizer.fingerprint()
    compiled = CompiledTokenizer.from_str(to_tokenizer_json(tokenizer))
    for text in ("Abba's Éü. 日本कि", "a" * 100, "a" * 101, "a" * 201):
        assert compiled.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
    pair = compiled.encode("ab", "a b")
    assert pair.tokens == ["[CLS]", "ab", "[SEP]", "a", "b", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1, 1]


@pytest.fixture(scope="module", params=[("bpe", True), ("bpe", False), ("unigram", True)])
def sentencepiece(request) -> SentencePieceTokenizer:
    kind, cased = request.param
    lines = [*pydoc_data.topics.topics["specialnames"].split("\n"), *[LETTERS] * 9]
    counts = count_words(lines, *sentencepiece_splitters())
    return SentencePieceTokenizer(sentencepiece_from_counts(counts, 300, kind=kind, cased=cased))


@pytest.fixture(scope="module")
def ids_from_file(sentencepiece) -> Callable[[str], list[int]]:
    compiled = CompiledTokenizer.from_str(to_tokenizer_json(sentencepiece))
    return lambda text: compiled.encode(text, add_special_tokens=False).ids


@pytest.mark.seconds
@given(text=TEXTS)
def test_to_tokenizer_json_keeps_the_ids_of_sentencepiece(
    sentencepiece, ids_from_file, text: str
) -> None:
    has_special = any(special in text for special in (*SPECIAL_TOKENS, "▁"))
    if not has_special and not any(unicodedata.category(char)[0] == "M" for char in text):
        assert ids_from_file(text) == sentencepiece.encode(text)


def test_to_tokenizer_json_keeps_the_ids_of_prose(sentencepiece, ids_from_file) -> None:
    for line in pydoc_data.topics.topics["class"].split("\n"):
        assert ids_from_file(line) == sentencepiece.encode(line)


@pytest.mark.seconds
def test_export_writes_tokenizer_json_and_its_class(sentencepiece, tmp_path) -> None:
    model = draw_model(BertConfig(300, 1, 8, 1, max_position_embeddings=16), sentencepiece, "mlm")
    huggingface.write(model, tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == to_tokenizer_json(sentencepiece)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    tokenizer = huggingface.read(tmp_path).tokenizer
    assert tokenizer is not None and tokenizer.fingerprint() == sentencepiece.fingerprint()
