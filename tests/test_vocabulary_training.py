"""Tests of vocabulary training."""

import hashlib
import itertools
import os
import pathlib
import pydoc_data.topics
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.vocabulary import training
from data_pipelines.vocabulary.counting import (
    count_words,
    sentencepiece_splitters,
    wordpiece_splitters,
)
from data_pipelines.vocabulary.sentencepiece_tokenizer import SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import (
    sentencepiece_from_counts,
    train_vocabulary,
    wordpiece_from_counts,
)
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LINES = [
    line for topic in sorted(pydoc_data.topics.topics.items()) for line in topic[1].split("\n")
]
FEW_LINES = LINES[:1500]
COUNTS = Counter({"low": 5, "lower": 2, "newest": 6, "widest": 3, "slow": 2})


def train_wordpiece(lines: Iterable[str], size: int, *, cased: bool) -> list[str]:
    return wordpiece_from_counts(count_words(lines, *wordpiece_splitters(cased)), size)


def train_sentencepiece(lines: Iterable[str], size: int, *, kind: str, cased: bool) -> bytes:
    counts = count_words(lines, *sentencepiece_splitters())
    return sentencepiece_from_counts(counts, size, kind=kind, cased=cased)


def sentence(error: pytest.ExceptionInfo[InputError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- WordPiece


@pytest.mark.seconds
@pytest.mark.parametrize("size", [300, 1999, 2000, 2001, 4000])
@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_has_the_exact_size(size: int, cased: bool) -> None:
    tokens = train_wordpiece(LINES, size, cased=cased)
    assert len(tokens) == len(set(tokens)) == size
    assert WordPieceTokenizer(tokens, cased=cased).tokens == tokens


def test_wordpiece_large_vocabulary_has_the_layout_of_bert() -> None:
    tokens = train_wordpiece(LINES, 2000, cased=False)
    assert tokens[0] == "[PAD]"
    assert tokens[1:100] == [f"[unused{i}]" for i in range(99)]
    assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert not any(token.startswith("[") and len(token) > 1 for token in tokens[104:])


def test_wordpiece_small_vocabulary_has_no_unused_tokens() -> None:
    tokens = train_wordpiece(LINES, 1999, cased=False)
    assert tokens[:5] == list(SPECIAL_TOKENS)
    assert not any("unused" in token for token in tokens)


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_contains_frequent_characters_in_both_forms(cased: bool) -> None:
    tokens = train_wordpiece(LINES, 2000, cased=cased)
    text = "".join(LINES) if cased else "".join(LINES).lower()
    counts = Counter(char for char in text if not char.isspace())
    frequent = {char for char, count in counts.items() if count >= max(2, 1e-6 * counts.total())}
    assert len(frequent) > 50
    assert frequent | {"##" + char for char in frequent} <= set(tokens)


def test_wordpiece_omits_a_character_seen_once() -> None:
    tokens = wordpiece_from_counts({"aa": 100, "b": 2, "c": 1}, 10)
    assert tokens == [*SPECIAL_TOKENS, "a", "##a", "b", "##b", "aa"]


def test_wordpiece_characters_take_half_of_a_small_vocabulary() -> None:
    counts = {f"{a}{b}": 3 for a, b in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)}
    tokens = wordpiece_from_counts(counts, 45)
    assert Counter(len(token.removeprefix("##")) for token in tokens[5:]) == {1: 20, 2: 20}


def test_wordpiece_characters_take_all_without_longer_tokens() -> None:
    counts = {chr(0x4E00 + i): 1000 - i for i in range(100)}
    tokens = wordpiece_from_counts(counts, 5 + 151)
    assert tokens[5:9] == ["一", "##一", "丁", "##丁"]
    assert len(tokens) == 156


def test_wordpiece_omits_lone_surrogates() -> None:
    assert wordpiece_from_counts({"a": 2, "\ud800": 9, "a\ud800": 9}, 7)[5:] == ["a", "##a"]


def test_merge_takes_the_most_frequent_pair_first() -> None:
    # e-s, o-w and s-t occur 9 times: the pair with the older token comes first, that of the more
    # frequent character. Then low 7 times; n-e, e-w and w-est 6 times each, and w is the oldest.
    tokens = training._merge(COUNTS, list("weslotndir"), room=25)
    assert tokens[:4] == ["w", "##w", "e", "##e"]
    assert tokens[20:] == ["##es", "##ow", "##est", "low", "##west"]


def merged_by_definition(counts: Mapping[str, int], alphabet: list[str], room: int) -> list[str]:
    """Merge by recounting all pairs for every merge. Ties go to the older tokens."""
    tokens = [form + char for char in alphabet for form in ("", "##")]
    words = {w: [w[0], *("##" + char for char in w[1:])] for w in counts if {*w} <= {*alphabet}}
    while len(tokens) < room:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, spelling in words.items():
            for pair in itertools.pairwise(spelling):
                pairs[pair] += counts[word]
        frequent = [pair for pair in pairs if pairs[pair] >= 2]
        if not frequent:
            break
        best = min(frequent, key=lambda pair: (-pairs[pair], *map(tokens.index, pair)))
        token = best[0] + best[1].removeprefix("##")
        for spelling in words.values():
            i = 0
            while i < len(spelling) - 1:
                if (spelling[i], spelling[i + 1]) == best:
                    spelling[i : i + 2] = [token]
                i += 1
        if token not in tokens:
            tokens.append(token)
    return tokens


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=12), st.integers(1, 5), min_size=1)


@given(WORDS, st.sampled_from(["abc", "cab", "ba", "a"]), st.integers(6, 40))
def test_merge_equals_the_definition(counts: dict[str, int], alphabet: str, room: int) -> None:
    expected = merged_by_definition(counts, list(alphabet), room)
    assert training._merge(counts, list(alphabet), room) == expected


@pytest.mark.seconds
@given(WORDS)
def test_wordpiece_error_names_the_largest_size(counts: dict[str, int]) -> None:
    with pytest.raises(
        InputError, match=r"vocab_size=1000: the text is too small\. Use at most"
    ) as error:
        wordpiece_from_counts(counts, 1000)
    largest = int(sentence(error).split()[-1].rstrip("."))
    if largest > len(SPECIAL_TOKENS):
        assert len(wordpiece_from_counts(counts, largest)) == largest
    with pytest.raises(InputError, match=rf"Use at most {largest}\.$"):
        wordpiece_from_counts(counts, largest + 1)


def test_wordpiece_largest_size_includes_unused_tokens() -> None:
    def largest(words: int) -> int:
        counts = {chr(0x4E00 + i): 2 for i in range(words)}
        with pytest.raises(InputError) as error:
            wordpiece_from_counts(counts, 9999)
        size = int(sentence(error).split()[-1].rstrip("."))
        assert len(wordpiece_from_counts(counts, size)) == size
        return size

    assert largest(900) == 1805  # 1800 tokens with 5 special ones
    assert largest(947) == 1899
    assert largest(948) == 2000  # 1896 tokens with 104
    assert largest(998) == 2100


def test_wordpiece_does_not_depend_on_the_order_of_words() -> None:
    counts = Counter(word for line in FEW_LINES for word in line.lower().split())
    backwards = dict(reversed(counts.items()))
    assert wordpiece_from_counts(counts, 1000) == wordpiece_from_counts(backwards, 1000)


def test_wordpiece_depends_on_relative_counts() -> None:
    tenfold = {word: 10 * count for word, count in COUNTS.items()}
    assert wordpiece_from_counts(tenfold, 38) == wordpiece_from_counts(COUNTS, 38)


def test_wordpiece_ignores_words_that_stay_unknown() -> None:
    counts = {"ab": 5, "c" * 201: 50, "d\u2603": 1}
    tokens = wordpiece_from_counts(counts, len(SPECIAL_TOKENS) + 7)
    assert tokens[5:] == ["c", "##c", "a", "##a", "b", "##b", "ab"]


@pytest.mark.seconds
def test_wordpiece_covers_the_text() -> None:
    tokenizer = WordPieceTokenizer(train_wordpiece(LINES, 4000, cased=True), cased=True)
    ids = [i for line in LINES for i in tokenizer.encode(line)]
    assert ids.count(tokenizer.unk_id) / len(ids) < 1e-3
    assert sum(tokenizer.is_continuation[i] for i in ids) / len(ids) < 0.15
    for word in ("the", "object", "Python", "function"):
        assert word in tokenizer.tokens


@pytest.mark.slow
@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_splits_real_text_into_few_tokens(data_dir: pathlib.Path, cased: bool) -> None:
    lines = (data_dir / "text" / "wiki_en_sentences.txt").read_text("utf-8").split("\n")
    tokenizer = WordPieceTokenizer(train_wordpiece(lines, 8000, cased=cased), cased=cased)
    ids = [i for line in lines for i in tokenizer.encode(line)]
    continuing = sum(tokenizer.is_continuation[i] for i in ids)
    assert ids.count(tokenizer.unk_id) < 5e-4 * len(ids)
    assert len(ids) < 1.3 * (len(ids) - continuing)


# ---------------------------------------------------------------- SentencePiece


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("cased", [False, True])
def test_sentencepiece_is_exact_and_deterministic(kind: str, cased: bool) -> None:
    model = train_sentencepiece(FEW_LINES, 500, kind=kind, cased=cased)
    assert train_sentencepiece(FEW_LINES, 500, kind=kind, cased=cased) == model
    tokenizer = SentencePieceTokenizer(model)
    assert len(tokenizer.tokens) == 500
    assert tokenizer.cased is cased
    assert any(token != token.lower() for token in tokenizer.tokens[5:]) is cased


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_error_names_the_possible_sizes(kind: str) -> None:
    counts = count_words(FEW_LINES, str.split, lambda word: [word])
    for size, message in ((100_000, r"Use at most (\d+)\."), (9, r"Use at least (\d+)\.")):
        with pytest.raises(InputError, match=message) as error:
            sentencepiece_from_counts(counts, size, kind=kind, cased=True)
        match = re.search(message, sentence(error))
        assert match
        model = sentencepiece_from_counts(counts, int(match[1]), kind=kind, cased=True)
        assert len(SentencePieceTokenizer(model).tokens) == int(match[1])


def test_sentencepiece_accepts_lone_surrogates() -> None:
    lines = [*FEW_LINES, "\ud800\0"] * 2
    assert SentencePieceTokenizer(train_sentencepiece(lines, 300, kind="bpe", cased=True))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("kind", "name"), [("wordpiece", "vocab.txt"), ("bpe", "a.model"), ("unigram", "a.model")]
)
@pytest.mark.parametrize("cased", [False, True])
def test_train_vocabulary_writes_a_tokenizer(
    tmp_path: pathlib.Path, kind: str, name: str, cased: bool
) -> None:
    output = tmp_path / "new" / name
    path = train_vocabulary([FEW_LINES], size=500, cased=cased, kind=kind, output=output)
    assert [path] == [output] == list(output.parent.iterdir())
    tokenizer = load_tokenizer(path, cased=cased)
    assert len(tokenizer.tokens) == 500
    assert tokenizer.cased is cased


TRAIN = """
import sys, pydoc_data.topics
from data_pipelines.vocabulary.training import train_vocabulary
lines = pydoc_data.topics.topics["specialnames"].split("\\n")
train_vocabulary([iter(lines)], size=700, cased=True, kind=sys.argv[1], output=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("wordpiece", "v.txt"), ("unigram", "v.model")])
def test_train_vocabulary_is_deterministic_across_processes(
    tmp_path: pathlib.Path, kind: str, name: str
) -> None:
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", TRAIN, kind, str(tmp_path / name)]
        root = pathlib.Path(__file__).parent.parent
        subprocess.run(command, env=environment, cwd=root, check=True)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "WordPiece"}, "kind='WordPiece': unknown value"),
        ({"kind": "bpe"}, r"must end in \.model"),
        ({"output": "vocab.model"}, r"must not end in \.model"),
        ({"output": "."}, ": is a directory"),
        ({"size": 5}, "vocab_size=5: only room for special tokens"),
    ],
)
def test_train_vocabulary_rejects_options_before_reading(
    tmp_path: pathlib.Path, changed: dict, message: str
) -> None:
    def lines() -> Iterator[str]:
        raise AssertionError("the text was read")
        yield ""

    options = {"size": 100, "cased": False, "kind": "wordpiece", "output": "vocab.txt", **changed}
    options["output"] = tmp_path / options["output"]
    with pytest.raises(InputError, match=message) as error:
        train_vocabulary([lines()], **options)
    sentence(error)


def test_train_vocabulary_replaces_the_file_atomically(tmp_path: pathlib.Path) -> None:
    def broken() -> Iterator[str]:
        yield from FEW_LINES
        raise OSError("the disk went away")

    output = tmp_path / "vocab.txt"
    output.write_text("precious")
    options = {"cased": False, "kind": "wordpiece", "output": output}
    with pytest.raises(OSError, match="went away"):
        train_vocabulary([broken()], size=300, **options)
    for lines, size in (([], 300), (["too few"], 300)):
        with pytest.raises(InputError):
            train_vocabulary([lines], size=size, **options)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]
    train_vocabulary([FEW_LINES], size=300, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]
    assert output.read_text() != "precious"
