"""Tests of the tokenizers and of loading them."""

import hashlib
import io
import json
import pathlib
import pickle
import pydoc_data.topics

import pytest
import sentencepiece as sentencepiece_library
from hypothesis import assume, given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.vocabulary import wordpiece
from data_pipelines.vocabulary.counting import count_words, sentencepiece_splitters
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer
from data_pipelines.vocabulary.training import sentencepiece_from_counts
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer
from data_pipelines.vocabulary.words import basic_tokenize

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = (
    *SPECIAL_TOKENS,
    *("[unused0]", "un", "##aff", "##able", "want", "##want", "##ed", "runn", "##ing", "日", "本"),
    *(form + sign for sign in LETTERS + "0123456789,.!?'-[]#$" for form in ("", "##")),
    *("σ", "##σ", "##ς", "ß", "##ß", "é", "##é", "한", "##국"),
)
CASED_TOKENS = (*TOKENS, "Un", *LETTERS.upper(), *("##" + sign for sign in LETTERS.upper()))


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


TRICKY = st.sampled_from([*"aBΣσςéÉİ日,.'-:;()\"[ \t\n\r", *"\u0301\u00ad\x0b\u00a0\u2028\ud800"])
TEXTS = st.one_of(st.text(), st.text(TRICKY), st.lists(st.sampled_from(TOKENS)).map(" ".join))


@given(TEXTS)
def test_wordpiece_encode_returns_the_longest_matches(text: str) -> None:
    words = basic_tokenize(text, cased=False, strip_accents=True)
    assert tokens_of(text) == [token for word in words for token in longest_matches(word, TOKENS)]


@given(st.lists(TEXTS.map(lambda text: text.encode(errors="replace").decode())))
def test_wordpiece_encode_words_equals_encode(words: list[str]) -> None:
    tokenizer = uncased()
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


def test_wordpiece_cache_is_bounded_and_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


# ---------------------------------------------------------------- files


def write(path: pathlib.Path, tokens: tuple[str, ...] | list[str]) -> pathlib.Path:
    path.write_bytes(("\n".join(tokens) + "\n").encode())
    return path


def test_load_tokenizer_infers_case_from_the_vocabulary(tmp_path: pathlib.Path) -> None:
    assert not load_tokenizer(write(tmp_path / "uncased.txt", TOKENS)).cased
    assert load_tokenizer(write(tmp_path / "cased.txt", CASED_TOKENS)).cased


def test_load_tokenizer_keeps_accents_of_the_vocabulary(tmp_path: pathlib.Path, data_dir) -> None:
    hindi = load_tokenizer(write(tmp_path / "hi.txt", [*SPECIAL_TOKENS, "कि", "##ी", "é"]))
    assert isinstance(hindi, WordPieceTokenizer) and not hindi.strip_accents
    assert hindi.encode("कि É") == [5, 7]
    for name, strips in (("uncased", True), ("cased", False), ("multilingual-cased", False)):
        published = load_tokenizer(data_dir / "vocab" / f"bert-base-{name}-vocab.txt")
        assert getattr(published, "strip_accents") is strips  # noqa: B009


@pytest.mark.parametrize("cased", [False, True])
def test_load_tokenizer_accepts_either_case_for_tokens_without_case(
    tmp_path: pathlib.Path, cased: bool
) -> None:
    path = write(
        tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "[X1]", "<S>", "日", "本", "1", "##1", "ا"]
    )
    assert load_tokenizer(path, cased=cased).cased is cased
    assert not load_tokenizer(path).cased


def test_load_tokenizer_accepts_a_line_separator_token(
    tmp_path: pathlib.Path,
) -> None:
    tokens = [*SPECIAL_TOKENS, "a", "\u2028", "b"]
    path = write(tmp_path / "vocab.txt", tokens)
    assert load_tokenizer(path).tokens == tokens
    assert load_tokenizer(path).encode("a\u2028b") == [5, 7]


def test_load_tokenizer_ignores_line_endings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "unix.txt").write_text("\n".join(TOKENS), "utf-8")
    (tmp_path / "dos.txt").write_bytes("\r\n".join([*TOKENS, ""]).encode())
    for path in tmp_path.iterdir():
        assert load_tokenizer(path).tokens == list(TOKENS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"the vocabulary is empty\. Write one token per line"),
        (
            "\n".join([*SPECIAL_TOKENS, "a", "b", "a"]).encode(),
            "token 'a' is repeated on lines 6 and 8",
        ),
        ("\n".join([*SPECIAL_TOKENS, "a", "", "b"]).encode(), "line 7 is empty"),
        (
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "a"]).encode(),
            r"lacks \[SEP\], \[MASK\]\. Add all",
        ),
        (b"[PAD]\n[UNK]\n\xff\n", "UTF-8: byte 0xff at offset 12"),
    ],
)
def test_load_tokenizer_rejects_a_damaged_vocabulary(
    tmp_path: pathlib.Path, content: bytes, message: str
) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_load_tokenizer_rejects_a_missing_vocabulary(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: no such vocabulary"):
        load_tokenizer(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"contains none of vocab\.txt, spm\.model"):
        load_tokenizer(tmp_path)


def test_load_tokenizer_rejects_the_other_case(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"is cased \(it contains 'Un'\), but text is lower-cased"):
        load_tokenizer(write(tmp_path / "vocab.txt", CASED_TOKENS), cased=False)
    with pytest.raises(InputError, match=r"is uncased .* but text is not lower-cased"):
        load_tokenizer(write(tmp_path / "vocab.txt", TOKENS), cased=True)


@pytest.mark.parametrize(("tokens", "lower_case"), [(TOKENS, False), (CASED_TOKENS, True)])
def test_load_tokenizer_keeps_a_published_option_and_warns(
    tmp_path: pathlib.Path, caplog, tokens: list[str], lower_case: bool
) -> None:
    write(tmp_path / "vocab.txt", tokens)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.cased is not lower_case
    assert "vocab.txt: the vocabulary is" in caplog.text
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint() == tokenizer.fingerprint()


def test_save_and_load_restore_a_wordpiece(tmp_path: pathlib.Path) -> None:
    for tokens, cased in ((TOKENS, False), (CASED_TOKENS, True)):
        for strip_accents in (None, False, True):
            tokenizer = WordPieceTokenizer(tokens, cased=cased, strip_accents=strip_accents)
            tokenizer.save(tmp_path / "saved")
            loaded = load_tokenizer(tmp_path / "saved")
            assert loaded.fingerprint() == tokenizer.fingerprint()
            assert loaded.encode("Été Unaffable") == tokenizer.encode("Été Unaffable")


def test_save_writes_the_files_of_transformers(tmp_path: pathlib.Path) -> None:
    WordPieceTokenizer(TOKENS, cased=False).save(tmp_path)
    assert (tmp_path / "vocab.txt").read_text("utf-8").split("\n") == [*TOKENS, ""]
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": True,
        "tokenize_chinese_chars": True,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    }


def test_load_tokenizer_rejects_options_that_contradict_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    WordPieceTokenizer([*SPECIAL_TOKENS, "日"], cased=False).save(tmp_path)
    assert not load_tokenizer(tmp_path, cased=False, strip_accents=True).cased
    with pytest.raises(InputError, match=r"cased=True.*cased=False"):
        load_tokenizer(tmp_path, cased=True)
    with pytest.raises(InputError, match=r"strip_accents=False.*strip_accents=True"):
        load_tokenizer(tmp_path, strip_accents=False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "tokenizer_config.json: not JSON"),
        ("[]", "tokenizer_config.json: not a JSON object"),
        ('{"tokenize_chinese_chars": false}', "has tokenize_chinese_chars=false"),
    ],
)
def test_load_tokenizer_rejects_an_invalid_configuration(
    tmp_path: pathlib.Path, config: str, message: str
) -> None:
    write(tmp_path / "vocab.txt", TOKENS)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


def test_fingerprint_depends_on_everything_that_determines_ids() -> None:
    a, b = [*SPECIAL_TOKENS, "日", "本"], [*SPECIAL_TOKENS, "本", "日"]
    tokenizers = [
        WordPieceTokenizer(tokens, cased=cased, strip_accents=strip_accents)
        for tokens in (a, b)
        for cased in (False, True)
        for strip_accents in (False, True)
    ]
    assert len({tokenizer.fingerprint() for tokenizer in tokenizers}) == len(tokenizers)
    assert WordPieceTokenizer(a, cased=False).fingerprint() == tokenizers[1].fingerprint()


def test_pickle_restores_a_wordpiece() -> None:
    tokenizer = WordPieceTokenizer(CASED_TOKENS, cased=True, strip_accents=True)
    tokenizer.encode("Unaffable " * 10)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint() == tokenizer.fingerprint()
    assert copy.encode("Été Unaffable") == tokenizer.encode("Été Unaffable")


# ---------------------------------------------------------------- SentencePiece


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


def test_sentencepiece_accepts_lone_surrogates(
    sentencepiece: SentencePieceTokenizer,
) -> None:
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
    with pytest.raises(InputError, match="strip_accents=True applies to WordPiece only"):
        load_tokenizer(tmp_path, strip_accents=True)


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
