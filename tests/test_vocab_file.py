"""Vocabulary files of any line ends, with empty and repeated lines, and with ids."""

import json
import logging
import pathlib
import random

import pytest

from bertjax.formats.tokenizer_json import to_tokenizer_json
from data_pipelines import log
from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer
from data_pipelines.vocabulary.vocab_file import describe_unreachable_lines, parse_vocab
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

MUTATIONS = 40
# "oslo" is repeated, line 7 is empty; ids are line numbers from 0.
DAMAGED = [*SPECIAL_TOKENS, "oslo", "", "##way", "nor", "oslo", "is", "[MASK]", "日", "\u2028"]


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


def write(path: pathlib.Path, tokens: list[str]) -> pathlib.Path:
    path.write_text("\n".join(tokens) + "\n", "utf-8")
    return path


def test_load_tokenizer_keeps_ids_of_empty_and_repeated_lines(tmp_path, caplog) -> None:
    tokenizer: Tokenizer = load_tokenizer(write(tmp_path / "vocab.txt", DAMAGED))
    assert caplog.messages[0].endswith(
        "line 5 repeats as line 12, line 6 repeats as line 10, line 7 is empty. All tokens keep "
        "their ids. Leave it as it is."
    )
    assert tokenizer.encode("oslo is norway") == [9, 10, 8, 7]
    assert (tokenizer.mask_id, tokenizer.sep_id) == (11, 3)
    assert tokenizer.decode([5, 6, 9]) == "oslo  oslo"
    assert tokenizer.text_token_ids.tolist() == [7, 8, 9, 10, 12, 13]
    ids, spans = tokenizer.encode_with_offsets("norway oslo")
    assert (ids, spans) == ([8, 7, 9], [(0, 3), (3, 6), (7, 11)])
    bulk, _ = BulkEncoder(tokenizer)(["oslo is norway"])
    assert bulk.tolist() == [9, 10, 8, 7]
    tokenizer.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()
    assert load_tokenizer(tmp_path / "saved").fingerprint() == tokenizer.fingerprint()


def test_fingerprint_distinguishes_a_vocabulary_without_its_empty_line() -> None:
    shorter = [token for token in DAMAGED if token]
    digests = {
        WordPieceTokenizer(tokens, cased=False).fingerprint() for tokens in (DAMAGED, shorter)
    }
    assert len(digests) == 2


def test_fingerprint_ignores_names_that_no_text_reaches(tmp_path) -> None:
    tokenizer = WordPieceTokenizer(DAMAGED, cased=False)
    (tmp_path / "tokenizer.json").write_text(to_tokenizer_json(tokenizer))
    stored = load_tokenizer(tmp_path)
    assert stored.tokens[5] == "" and stored.tokens[9] == "oslo"
    assert stored.fingerprint() == tokenizer.fingerprint()


def mutate(tokens: list[str], draw: random.Random) -> bytes:
    """Return the file of a vocabulary with other line ends, spaces and empty lines at its end."""
    end = draw.choice(["\n", "\r\n", "\r"] if "\u2028" not in tokens else ["\n", "\r\n"])
    spaces = draw.choice(["", " ", "\t"])
    content = end.join(token + spaces * draw.randint(0, 1) for token in tokens)
    content += end * draw.randint(0, 3)
    return content.encode(draw.choice(["utf-8", "utf-8-sig"]))


def test_parse_vocab_ignores_how_the_file_was_written() -> None:
    draw = random.Random(0)
    for _ in range(MUTATIONS):
        tokens = DAMAGED[: draw.randint(5, len(DAMAGED))]
        while not tokens[-1]:
            tokens.pop()
        content = mutate(tokens, draw)
        assert parse_vocab(content) == tokens, content


def test_load_tokenizer_reads_tokens_with_their_ids(tmp_path, caplog) -> None:
    tokens = [*SPECIAL_TOKENS, "oslo", "##way", "nor"]
    expected = WordPieceTokenizer(tokens, cased=False).fingerprint()
    rows = [f"{token}\t{i}" for i, token in enumerate(tokens)]
    assert load_tokenizer(write(tmp_path / "ernie.txt", rows[::-1])).fingerprint() == expected
    index = {token: i for i, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(index))
    assert load_tokenizer(tmp_path / "vocab.json", cased=False).tokens == tokens
    for row in ("the\t1061396", "the\t-3.5", "a\tb"):
        with pytest.raises(InputError, match="is not a token, nor a token and its id"):
            load_tokenizer(write(tmp_path / "counts.txt", [*tokens, row]))
    assert not caplog.text


def test_describe_unreachable_lines_names_three() -> None:
    assert describe_unreachable_lines(["a", "b"]) == ""
    assert describe_unreachable_lines(["# a vocabulary", "a"]) == "line 1 has a space"
    assert describe_unreachable_lines(["", "a", "", "a", "", "b"]).endswith(
        "line 3 is empty and 1 more"
    )


def test_load_tokenizer_warns_of_another_vocabulary_beside(tmp_path, caplog) -> None:
    write(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "a", "b"])
    index = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "b", "a"])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(index))
    assert load_tokenizer(tmp_path).encode("a") == [5]
    assert "tokenizer.json beside it holds another vocabulary" in caplog.text


@pytest.mark.parametrize("method", ["encode", "encode_with_offsets"])
def test_special_tokens_in_texts_are_warned_of_once(method: str, caplog) -> None:
    caplog.set_level(logging.WARNING)
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *"[]ab", "##e", "##p", "s"], cased=False)
    for text in ("a [b]", "a [sep] b"):
        getattr(tokenizer, method)(text)
    assert not caplog.text
    for _ in range(2):
        ids = tokenizer.encode("a [SEP] b")
        getattr(tokenizer, method)("a [SEP] b")
    assert [tokenizer.tokens[i] for i in ids] == ["a", "[", "s", "##e", "##p", "]", "b"]
    assert caplog.messages == [
        "a text contains [SEP]. It is tokenized as any other text, but transformers "
        "reads it as the token. Give the texts of a pair separately."
    ]


@pytest.mark.parametrize("settings", [{"eos_token": "<e>"}, {"additional_special_tokens": ["<e>"]}])
def test_tokens_without_a_use_or_an_id_are_warned_of(settings: dict, tmp_path, caplog) -> None:
    tokens = ["a", "<e>"] if "eos_token" in settings else ["a"]
    write(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *tokens])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | settings))
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.encode("a < e >")
    assert not caplog.text
    tokenizer.encode("a <e>")
    assert "a text contains <e>." in caplog.text


def test_load_tokenizer_falls_back_to_the_default_name(tmp_path, caplog) -> None:
    write(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "a"])
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "<unk>"}')
    assert load_tokenizer(tmp_path).unk_id == 1
    assert "unk_token='<unk>' is not in the vocabulary: [UNK] is used" in caplog.text


def test_added_tokens_say_nothing_about_the_case(tmp_path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "@GENE$", "A1", "[E1]", "gene", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert not tokenizer.cased and tokenizer.encode("Genes") == [8, 9]
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, "Gene"]))
    assert load_tokenizer(tmp_path / "vocab.txt").cased
