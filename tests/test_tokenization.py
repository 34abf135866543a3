"""Tests of loading and saving tokenizers."""

import json
import pathlib
import pickle

import pytest
from toy_vocabulary import CASED_TOKENS, TOKENS

from data_pipelines.errors import InputError
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer


def write(path: pathlib.Path, tokens: tuple[str, ...] | list[str]) -> pathlib.Path:
    path.write_bytes(("\n".join(tokens) + "\n").encode())
    return path


def test_load_tokenizer_infers_case_from_the_vocabulary(tmp_path: pathlib.Path) -> None:
    assert not load_tokenizer(write(tmp_path / "uncased.txt", TOKENS)).cased
    assert load_tokenizer(write(tmp_path / "cased.txt", CASED_TOKENS)).cased


@pytest.mark.seconds
def test_load_tokenizer_keeps_accents_of_the_vocabulary(tmp_path: pathlib.Path, data_dir) -> None:
    hindi = load_tokenizer(write(tmp_path / "hi.txt", [*SPECIAL_TOKENS, "कि", "##ी", "é"]))
    assert isinstance(hindi, WordPieceTokenizer) and not hindi.strip_accents
    assert hindi.encode("कि É") == [5, 7]
    for name, strips in (("uncased", True), ("cased", False), ("multilingual-cased", False)):
        published = load_tokenizer(data_dir / "vocab" / f"bert-base-{name}-vocab.txt")
        assert getattr(published, "strip_accents") is strips  # noqa: B009 (not in the protocol)


@pytest.mark.parametrize("cased", [False, True])
def test_load_tokenizer_accepts_either_case_for_tokens_without_case(
    tmp_path: pathlib.Path, cased: bool
) -> None:
    path = write(
        tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "[X1]", "<S>", "日", "本", "1", "##1", "ا"]
    )
    assert load_tokenizer(path, cased=cased).cased is cased
    assert not load_tokenizer(path).cased


def test_load_tokenizer_accepts_a_line_separator_token(tmp_path: pathlib.Path) -> None:
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
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "a"]).encode(),
            r"lacks \[SEP\], \[MASK\]; it begins with '\[PAD\]'\. Use one with",
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
    with pytest.raises(InputError, match=r"none\.txt: does not exist. Name a vocabulary"):
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
    assert not load_tokenizer(tmp_path, cased=False).cased
    with pytest.raises(InputError, match=r"cased=True.*cased=False"):
        load_tokenizer(tmp_path, cased=True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "tokenizer_config.json: not JSON"),
        ("[]", "tokenizer_config.json: not an object"),
        ('{"tokenize_chinese_chars": false}', "has tokenize_chinese_chars=false"),
        ('{"do_lower_case": "false"}', r"do_lower_case='false': not true or false"),
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
