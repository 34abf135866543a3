"""Added tokens stay whole: in texts of any kind, in bulk, in other files, and in an export."""

import io
import json
import logging
import pathlib
import pickle

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as CompiledTokenizer
from toy_vocabulary import CASED_TOKENS, TOKENS

from bertjax.formats.tokenizer_json import to_tokenizer_json
from bertjax.tasks.token_classification.pipeline import read_sentences
from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.errors import InputError
from data_pipelines.finetuning.token_classification.dataset import read_tagged_file
from data_pipelines.finetuning.token_classification.running_text import word_offsets
from data_pipelines.vocabulary.added_tokens import AddedToken
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer, describe_difference, load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

ADDED = (
    AddedToken("@GENE$", normalized=False),
    AddedToken("@GENE$x", normalized=False),
    AddedToken("@Été$"),
    AddedToken("want", single_word=True),
    AddedToken("[E1]", normalized=False),
    AddedToken("日本"),
    AddedToken("new york", normalized=False),
    AddedToken("##ed"),
)
PARTS = [token.content for token in ADDED]
PARTS += [
    "@gene$",
    "@ete$",
    "@ÉTE\u0301$",
    "Want",
    "unwanted",
    "\u00ad",
    "日 本",
    "x",
    "é",
    " ",
    ".",
]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join)


def make(cased: bool) -> WordPieceTokenizer:
    tokens = [*(CASED_TOKENS if cased else TOKENS)]
    tokens += [token.content for token in ADDED if token.content not in tokens]
    return WordPieceTokenizer(tokens, cased=cased, added_tokens=ADDED)


TOKENIZERS = {cased: make(cased) for cased in (False, True)}
COMPILED = {
    cased: CompiledTokenizer.from_str(to_tokenizer_json(tokenizer))
    for cased, tokenizer in TOKENIZERS.items()
}


def is_comparable(text: str) -> bool:
    """Return whether `tokenizers` reads no special token, and has the same Unicode tables.

    It lower-cases each character alone, and thus knows no final sigma.
    """
    is_special = any(token in text for token in SPECIAL_TOKENS)
    return not is_special and "Σ" not in text and text.isprintable()


@pytest.mark.seconds
@given(TEXTS, st.booleans())
@example("a@GENE$x@GENE$,@gene$", False)
@example("@ÉTE\u0301$x", False)
@example("wants want,Want unwant", False)
def test_encode_returns_the_ids_of_tokenizers(text: str, cased: bool) -> None:
    if is_comparable(text):
        expected = COMPILED[cased].encode(text, add_special_tokens=False).ids
        assert TOKENIZERS[cased].encode(text) == expected


@pytest.mark.seconds
@given(st.lists(TEXTS.filter(lambda text: "\n" not in text), max_size=4), st.booleans())
def test_bulk_and_offsets_have_the_ids_of_encode(texts: list[str], cased: bool) -> None:
    tokenizer = TOKENIZERS[cased]
    expected = [tokenizer.encode(text) for text in texts]
    tokens, lengths = BulkEncoder(tokenizer)(texts)
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [token for ids in expected for token in ids]
    for text, ids in zip(texts, expected, strict=True):
        found, offsets = tokenizer.encode_with_offsets(text)
        assert found == ids
        assert all(0 <= start < end <= len(text) for start, end in offsets)
        assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


def test_added_tokens_have_their_place_in_the_text() -> None:
    tokenizer = TOKENIZERS[False]
    text = "x @GENE$ @ÉTÉ$."
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert [tokenizer.tokens[i] for i in ids] == ["x", "@GENE$", "@Été$", "."]
    assert [text[start:end] for start, end in offsets] == ["x", "@GENE$", "@ÉTÉ$", "."]
    assert tokenizer.decode(ids) == "x @GENE$ @Été$ ."
    assert not np.flatnonzero(tokenizer.is_continuation[ids]).size
    assert pickle.loads(pickle.dumps(tokenizer)).encode(text) == ids


def write_vocab(path: pathlib.Path, tokens: list[str]) -> pathlib.Path:
    (path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return path


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"additional_special_tokens": ["@GENE$"]}),
        ("special_tokens_map.json", {"additional_special_tokens": ["@GENE$"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "@GENE$"}}}),
        ("added_tokens.json", {"@GENE$": 7}),
    ],
)
@pytest.mark.parametrize("in_vocabulary", [True, False])
def test_files_beside_vocab_txt_name_added_tokens(
    file: str, content: dict, in_vocabulary: bool, tmp_path
) -> None:
    """Their capitals do not make a vocabulary cased."""
    tokens = [*SPECIAL_TOKENS, "a", "b", *(["@GENE$"] if in_vocabulary else [])]
    has_id = "additional" not in str(content)
    (write_vocab(tmp_path, tokens) / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert not tokenizer.cased
    assert tokenizer.encode("A @GENE$ b") == (
        [5, 7, 6] if in_vocabulary or has_id else [5, 1, 1, 1, 6]
    )
    tokenizer.save(tmp_path / "saved")
    copy = load_tokenizer(tmp_path / "saved")
    assert copy.fingerprint() == tokenizer.fingerprint() and copy.tokens == tokenizer.tokens
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "tokenizer.json").write_text(to_tokenizer_json(tokenizer))
    assert load_tokenizer(tmp_path / "exported").fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_of_added_tokens_json_are_found_as_they_are_written(file, tmp_path) -> None:
    """Transformers normalizes a token unless it is special."""
    write_vocab(tmp_path, [*SPECIAL_TOKENS, "a", "location", "per", "##son"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"LOC": 9, "PER": 10}))
    (tmp_path / file).write_text(json.dumps({"additional_special_tokens": ["LOC"]}))
    assert load_tokenizer(tmp_path).encode("location a LOC") == [6, 5, 9]
    assert load_tokenizer(tmp_path).encode("a per") == [5, 10]
    content = {"added_tokens_decoder": {"9": {"content": "LOC", "normalized": True}}}
    content |= {"additional_special_tokens": ["LOC"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path).encode("a loc") == [5, 9]


def test_added_tokens_of_white_space_survive_vocab_txt(tmp_path) -> None:
    write_vocab(tmp_path, [*SPECIAL_TOKENS, "a"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"\n": 6, " b ": 7, "<e>": 8}))
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "saved")
    for loaded in (tokenizer, load_tokenizer(tmp_path / "saved")):
        assert loaded.encode("a\na b a<e>") == [5, 6, 5, 7, 5, 8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"@GENE$": 5}, r"'@GENE\$': has the id 5, which is that of 'a'. Write it in line 6"),
        ({"@GENE$": 10**9}, r"'@GENE\$': has the id 1000000000, and the vocabulary 6 tokens"),
        ({"@GENE$": -1}, r"'@GENE\$': has the id -1"),
    ],
)
def test_load_tokenizer_rejects_ids_of_added_tokens(content, message: str, tmp_path) -> None:
    write_vocab(tmp_path, [*SPECIAL_TOKENS, "a"])
    (tmp_path / "added_tokens.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


def test_load_tokenizer_logs_added_tokens(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO)
    write_vocab(tmp_path, [*SPECIAL_TOKENS, "a"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": 6, "there": 7}))
    assert load_tokenizer(tmp_path).tokens[6:] == ["[E1]", "there"]
    assert "2 added tokens: [E1], there." in caplog.text


def test_describe_difference_names_the_first() -> None:
    tokens = [*SPECIAL_TOKENS, "a", "é", "@GENE$"]

    def difference(tokens: list[str] = tokens, **options) -> str:
        ours = WordPieceTokenizer(tokens, **{"cased": False} | options)
        return describe_difference(
            ours, WordPieceTokenizer([*SPECIAL_TOKENS, "a", "é", "@GENE$"], cased=False)
        )

    assert difference() == difference(max_input_chars_per_word=100) == ""
    assert difference([*tokens, "b"]) == "it has 9 tokens, not 8"
    assert difference([*SPECIAL_TOKENS, "b", "é", "@GENE$"]) == "token 5 is 'b', not 'a'"
    assert difference(cased=True, strip_accents=True) == "it has cased=True, not False"
    assert difference(strip_accents=False) == "it has strip_accents=False, not True"
    added = {"added_tokens": [AddedToken("@GENE$")]}
    assert difference(**added) == "it has the added token @GENE$ (normalized)"
    ours, theirs = (WordPieceTokenizer(tokens, cased=False, **x) for x in ({}, added))
    assert describe_difference(ours, theirs) == "it lacks the added token @GENE$ (normalized)"
    assert "tokens, not" in describe_difference(ours, TOKENIZERS[True])


# Words of running text


def words_of(text: str, tokenizer: Tokenizer | None) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text, tokenizer)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@GENE$ binds.", ["@GENE$", "binds", "."]),
        ("(@GENE$-x) [E1] Ada", ["(", "@GENE$", "-", "x", ")", "[E1]", "Ada"]),
        ("in new york, @ÉTE\u0301$", ["in", "new york", ",", "@ÉTE\u0301$"]),
        ("@GENE$@GENE$x", ["@GENE$", "@GENE$x"]),
        ("unwanted want", ["unwanted", "want"]),
        ("@x$", ["@", "x", "$"]),
    ],
)
def test_word_offsets_keep_added_tokens_whole(text: str, words: list[str]) -> None:
    tokenizer = TOKENIZERS[False]
    assert words_of(text, tokenizer) == words
    assert words_of("@GENE$ [E1]", None) == ["@", "GENE", "$", "[", "E1", "]"]
    ids = [token for word in words for token in tokenizer.encode(word)]
    assert ids == tokenizer.encode(text)


def test_word_offsets_leave_out_blank_added_tokens() -> None:
    added = [AddedToken("\n"), AddedToken(" a")]
    tokens = [*TOKENS, *(token.content for token in added)]
    tokenizer = WordPieceTokenizer(tokens, cased=False, added_tokens=added)
    assert words_of("x\nx a.", tokenizer) == ["x", "x", " a", "."]


def test_sentences_of_predict_and_of_spans_have_the_same_words(tmp_path) -> None:
    tokenizer, text = TOKENIZERS[False], "@GENE$ binds Ada"
    (tmp_path / "texts.txt").write_text(f"{text}\n")
    (tmp_path / "spans.jsonl").write_text(json.dumps({"text": text, "label": [[0, 6, "gene"]]}))
    (sentence,) = read_sentences(tmp_path / "texts.txt", tokenizer)
    data = read_tagged_file(tmp_path / "spans.jsonl", load_tokenizer=lambda: tokenizer)
    assert sentence.words == data.sentences[0].words == ["@GENE$", "binds", "Ada"]
    assert data.sentences[0].tags == ["B-gene", "O", "O"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def with_symbols(request) -> SentencePieceTokenizer:
    """A model trained elsewhere, with user-defined symbols."""
    lines = ["the cabbage added a faded decade", "a bad egg fed a deaf cab", "facade gab"] * 20
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=40, hard_vocab_limit=False,
        model_type=request.param,
        **{f"{name}_id": i for i, name in enumerate(("pad", "unk", "bos", "eos"))},
        pad_piece="[PAD]", unk_piece="[UNK]", bos_piece="[CLS]", eos_piece="[SEP]",
        control_symbols=["[MASK]"], user_defined_symbols=["@GENE$", "@GENE$a", "ad"],
        minloglevel=2,
    )  # fmt: skip
    return SentencePieceTokenizer(model.getvalue())


def test_word_offsets_keep_symbols_of_sentencepiece_whole(with_symbols) -> None:
    assert words_of("@GENE$a, (@GENE$)", with_symbols) == ["@GENE$a", ",", "(", "@GENE$", ")"]


SYMBOLS = st.sampled_from(["@GENE$", "@GENE$a", "ad", "@", "$", "fad", "a", "b", " ", "deca", "e"])


@pytest.mark.seconds
@given(st.lists(SYMBOLS, max_size=8).map("".join))
def test_user_defined_symbols_of_sentencepiece_are_exported(with_symbols, text: str) -> None:
    compiled = CompiledTokenizer.from_str(to_tokenizer_json(with_symbols))
    ids = with_symbols.encode(text)
    assert compiled.encode(text, add_special_tokens=False).ids == ids
    if "@GENE$" in text:
        assert "@GENE$" in "".join(with_symbols.tokens[i] for i in ids if i != with_symbols.unk_id)
