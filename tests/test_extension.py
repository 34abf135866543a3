"""Tests of the choice of new tokens: each saves tokens of the greedy longest match."""

import itertools
import pydoc_data.topics
import string
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_vocabulary import TOKENS

from data_pipelines.errors import InputError
from data_pipelines.vocabulary.added_tokens import AddedToken
from data_pipelines.vocabulary.counting import count_words, wordpiece_splitters
from data_pipelines.vocabulary.extension import (
    choose_tokens,
    count_tokens,
    extend_tokenizer,
    longest_matches,
    replaced_ids,
)
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LETTERS = [form + char for char in string.ascii_lowercase for form in ("", "##")]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *LETTERS, "##ing", "walk"], cased=False)
TOPICS = [line for _, text in sorted(pydoc_data.topics.topics.items()) for line in text.split("\n")]


def num_tokens(counts: Mapping[str, int], *tokens: str, tokenizer=TOKENIZER) -> int:
    return count_tokens(counts, tokenizer.with_tokens([*tokenizer.tokens, *tokens])).tokens


@given(st.text("unaffwtedrgi日xé", min_size=1, max_size=12))
def test_longest_matches_are_those_of_the_tokenizer(word: str) -> None:
    tokenizer = WordPieceTokenizer(TOKENS, cased=True)
    ends = longest_matches(word, set(TOKENS))
    spans = itertools.pairwise((0, *ends))
    tokens = [("##" if start else "") + word[start:end] for start, end in spans]
    expected = [tokenizer.tokens[i] for i in tokenizer._longest_matches(word)]
    assert (tokens or ["[UNK]"]) == expected


def test_choose_tokens_takes_words_and_later_parts() -> None:
    counts = {"quark": 10, "abcization": 4, "defization": 4, "hijization": 4}
    # "quark" saves 4 x 10, "##ization" 6 x 12. Then "abc" of 3 characters saves 2 x 4.
    assert choose_tokens(counts, TOKENIZER, 2) == ["##ization", "quark"]


@pytest.mark.seconds
@given(st.dictionaries(st.text("abcing", min_size=1, max_size=7), st.integers(2, 9), min_size=1))
def test_choose_tokens_takes_the_best_first(counts: dict[str, int]) -> None:
    before = num_tokens(counts)
    parts = {
        ("##" if start else "") + word[start:end]
        for word in counts
        for start, end in itertools.combinations(range(len(word) + 1), 2)
    } - {*TOKENIZER.tokens}
    best = max((before - num_tokens(counts, part) for part in parts), default=0)
    if best < 2:
        with pytest.raises(InputError, match="only 0 tokens save"):
            choose_tokens(counts, TOKENIZER, 1)
    else:
        (chosen,) = choose_tokens(counts, TOKENIZER, 1)
        # The best may end within an old token, where its estimate is too low.
        assert before - num_tokens(counts, chosen) >= best / 2


@pytest.mark.seconds
def test_choose_tokens_every_token_is_used() -> None:
    counts = count_words(TOPICS, *wordpiece_splitters(cased=False))
    chosen = choose_tokens(counts, TOKENIZER, 300)
    assert len({*chosen} - {*TOKENIZER.tokens}) == 300
    assert any(token.startswith("##") for token in chosen)
    frequent = {word: count for word, count in counts.items() if count > 1}
    shortest = num_tokens(frequent, *chosen)
    for token in chosen[::7]:
        assert num_tokens(frequent, *({*chosen} - {token})) >= shortest + 2, token
    shuffled = dict(sorted(counts.items(), key=lambda item: item[0][::-1]))
    assert choose_tokens(shuffled, TOKENIZER, 300) == chosen


def test_choose_tokens_drops_a_token_that_a_later_one_replaces() -> None:
    # "embed" saves 4 x 20. Then "embeding" and "embedz" save 10 each, and "embed" nothing.
    counts = {"embeding": 10, "embedz": 10, "qrs": 4}
    assert choose_tokens(counts, TOKENIZER, 3) == ["embeding", "embedz", "qrs"]


def test_choose_tokens_makes_no_word_unknown() -> None:
    # With "##bc" the word "abcd" would have no token for "##d" alone.
    tokens = [*SPECIAL_TOKENS, "a", "x", "y", "##b", "##c", "##cd"]
    tokenizer = WordPieceTokenizer(tokens, cased=False)
    counts = {"abcd": 2, "xbc": 9, "ybc": 9}
    assert count_tokens(counts, tokenizer).unknown == 0
    assert choose_tokens(counts, tokenizer, 2) == ["xbc", "ybc"]


def test_choose_tokens_names_the_largest_number() -> None:
    with pytest.raises(InputError, match=r"add=5: only 2 tokens save .*\. Add fewer"):
        choose_tokens({"xyz": 5, "qrs": 5, "once": 1, "walk": 9, "日": 7}, TOKENIZER, 5)


def test_count_tokens_counts_unknown_words_and_surrogates() -> None:
    counts = Counter({"walking": 3, "привет": 2, "\ud800": 4})
    assert count_tokens(counts, TOKENIZER) == (9, 2 * 3 + 2 + 4, 6)


def test_extend_tokenizer_fills_unused_tokens_and_keeps_ids_and_options() -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused2]"]
    old = WordPieceTokenizer(
        [*special, "[unused7]", "@GENE$", *LETTERS, "[unused1]", "", "[unused3]", "[unused4]"],
        cased=True,
        strip_accents=True,
        max_input_chars_per_word=37,
        special_tokens=special,
        added_tokens=[AddedToken("@GENE$"), AddedToken("[unused3]")],
    )
    new, ids = extend_tokenizer(old, ["abc", "##xy", "qrs", "##pp", "zz"])
    first_end = len(old.tokens)
    assert ids == [5, old.tokens.index("[unused1]"), first_end - 1, first_end, first_end + 1]
    assert [new.tokens[i] for i in ids] == ["abc", "##xy", "qrs", "##pp", "zz"]
    kept = [i for i in range(first_end) if i not in ids]
    assert [new.tokens[i] for i in kept] == [old.tokens[i] for i in kept]
    options, old_options = new.identity(), old.identity()
    assert {**options, "tokens": 0} == {**old_options, "tokens": 0}
    assert new.max_input_chars_per_word == 37
    assert new.encode("@GENE$ abcxy") == [new.tokens.index("@GENE$"), ids[0], ids[1]]


def test_replaced_ids_spell_a_token() -> None:
    parts = replaced_ids(TOKENIZER, ["walking", "##xing"])
    names = [[TOKENIZER.tokens[i] for i in ids] for ids in parts]
    assert names == [["walk", "##ing"], ["##x", "##ing"]]
