"""Tests of generators, permutations, the sequence index and the cache for threads."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.pretraining.streams import (
    SequenceIndex,
    ThreadSafeLRUCache,
    generator,
    permutation,
)


def test_generator_depends_on_its_key_alone():
    again = generator("train", 1, 2).random(5)
    np.testing.assert_array_equal(generator("train", 1, 2).random(5), again)
    np.testing.assert_array_equal(generator("train", np.int64(1), 2).random(5), again)
    for other in (("train", 1, 3), ("train", 12), ("train", 1, 2, 0), ("eval", 1, 2)):
        assert not np.array_equal(generator(*other).random(5), again)


def test_generator_is_the_same_on_any_machine():
    """A change of these numbers would change the data of every run."""
    expected = [0.34541665227821905, 0.5041221344107492, 0.901759807034406]
    assert generator("train", 0, 0, 0).random(3).tolist() == expected


@given(st.integers(0, 500))
def test_generator_skips_numbers(blocks):
    whole = generator("masks", 7).random(4 * blocks + 8)
    part = generator("masks", 7, skip=4 * blocks).random(8)
    np.testing.assert_array_equal(whole[4 * blocks :], part)


def test_permutation_is_complete_and_differs_by_key():
    one, other = permutation(1000, "a"), permutation(1000, "b")
    assert sorted(one) == sorted(other) == list(range(1000))
    assert (one != other).any()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=10).filter(any))
def test_sequence_index_finds_every_sequence(counts):
    index = SequenceIndex(list(range(len(counts))), list(itertools.accumulate(counts)))
    expected = [(item, i) for item, count in enumerate(counts) for i in range(count)]
    located = []
    for sequence in range(sum(counts)):
        item, first, end = index.find(sequence)
        assert end - first == counts[item]
        located.append((item, sequence - first))
    assert located == expected


def test_cache_calls_the_function_once_for_many_threads():
    calls = []
    start = threading.Barrier(8)

    def slow(n: int) -> int:
        calls.append(n)
        time.sleep(0.05)
        return n * n

    cache = ThreadSafeLRUCache(slow, 4)

    def call(n: int) -> int:
        start.wait()
        return cache(n)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, [3, 3, 3, 3, 5, 5, 5, 5])) == [9] * 4 + [25] * 4
    assert sorted(calls) == [3, 5]


def test_cache_keeps_the_latest_results():
    calls = []
    cache = ThreadSafeLRUCache(lambda n: calls.append(n), 2)
    for n in (1, 2, 1, 3, 1, 2):  # 3 evicts 2, the least recently used
        cache(n)
    assert calls == [1, 2, 3, 2]


def test_cache_does_not_keep_failures():
    answers = iter([ValueError("once"), 7])

    def fail_once() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = ThreadSafeLRUCache(fail_once, 2)
    with pytest.raises(ValueError, match="once"):
        cache()
    assert cache() == 7
